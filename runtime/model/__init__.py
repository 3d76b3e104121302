"""A model's Program on a device: scratch memory, weights, bound launches, a graph of a step, `Model`."""
