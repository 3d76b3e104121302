"""Tests of goldens: their files, check, diff and runs."""
