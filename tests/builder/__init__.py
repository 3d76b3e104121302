"""Tests of the builder, of rendering, and of where lines come from."""
