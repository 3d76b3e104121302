"""Tests of the parser."""
