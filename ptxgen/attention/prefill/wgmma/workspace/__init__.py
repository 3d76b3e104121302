"""8-bit K and V made ready in global memory by the launch itself, before or while it multiplies.

- `rows_16bit`: as 16-bit rows, of the keys that `key_blocks` finds. `worth`: where that is the faster way.
- `transposed_values`: V by element, for products of 8 bits.
"""
