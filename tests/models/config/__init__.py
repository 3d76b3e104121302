"""Tests of configurations: families, keys, refusals, and transformers' own classes."""
