"""Tests of matrix products."""
