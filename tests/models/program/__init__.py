"""Tests of a step as data: Programs, their kernels, their weights in memory."""
