"""Tests of the decode step in one launch."""
