"""Tests of attention kernels."""
