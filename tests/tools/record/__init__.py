"""Recorders: what other libraries or the shipped model make of a case, written to tests/data for tests to compare."""
