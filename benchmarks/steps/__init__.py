"""Decode steps of our models that are measured: bound to a device, in graphs, by their parts."""
