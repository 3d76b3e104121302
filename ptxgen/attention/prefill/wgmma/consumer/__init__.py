"""The warps that multiply: their `loop` over tiles of keys, the `registers` of a thread, and the `output`.

`softmax`: of a tile. `softmax_e5m2`: where probabilities become e5m2, for products of 8 bits. `sums_f32`: of these
products, behind every few tiles.
"""
