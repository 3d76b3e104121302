"""Tests of the CPU executor."""
