"""Kernels with synchronisation bugs that were met in the wild, and their mended twins."""
