"""Tests of the checks of a text."""
