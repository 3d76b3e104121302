"""What every backend shares: devices, buffers, streams, modules, kernels, launches, graphs."""
