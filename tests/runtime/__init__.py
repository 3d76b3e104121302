"""Tests of what all devices share, run on the CPU executor, a GPU or a recording driver."""
