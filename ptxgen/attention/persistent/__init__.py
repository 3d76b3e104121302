"""Attention of one query position inside a kernel that stays on the GPU: the head's queries, key and value are what
other CTAs publish, and so is its result."""
