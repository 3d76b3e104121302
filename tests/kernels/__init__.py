"""Tests of single kernel types outside attention."""
