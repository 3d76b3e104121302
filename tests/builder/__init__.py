"""Tests of the builder and templates."""
