"""Tests of benchmarks' commands, rows and reports."""
