"""Tests of model configurations and plans."""
