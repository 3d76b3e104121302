"""Rows of q, K and V into swizzled shared memory.

- `by_tensor_maps`: boxes of K and V, by maps that the CTA makes itself (`tensor_maps`).
- `by_threads`: 16 bytes for each thread, for pages, rings and batches (`swizzled_copies`).
- `converting`: 8-bit K and V that become 16-bit on the way; `widening`: how values do.
- `queries_e4m3`: rows of q, rounded to e4m3.
"""
