"""A package with a kernel type of its own."""
