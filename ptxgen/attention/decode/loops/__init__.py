"""Main loops of decode: the tiles of a warp's task become partial softmaxes in shared memory."""
