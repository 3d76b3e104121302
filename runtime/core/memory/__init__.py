"""Memory of a device: allocations, the buffers over them, their order among streams, and other libraries' arrays."""
