"""The main loop on tensor cores, mma.m16n8k16: `loop`, the `registers` of a thread, and the `output`."""
