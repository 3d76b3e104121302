"""Launches: modules and kernels that are loaded, arguments bound to them, and graphs of them."""
