"""Tests of exports to hosts in other languages."""
