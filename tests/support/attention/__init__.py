"""Attention for tests: KV caches with known bytes, the float64 oracle of them, launches of decode attention."""
