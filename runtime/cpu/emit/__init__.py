"""From basic blocks to the LLVM IR of a warp function; the instructions are in `families`."""
