"""Tests of where lines come from, and of the words above them."""
