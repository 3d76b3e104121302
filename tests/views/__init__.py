"""Tests of texts as they are shown."""
