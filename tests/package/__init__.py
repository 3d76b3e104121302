"""Tests of modules at the top of the package, and the package itself."""
