"""KV caches: of one sequence, of several, in pages; their layers, sizes and snapshots."""
