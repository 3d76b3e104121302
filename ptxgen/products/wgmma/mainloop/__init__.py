"""The warps that multiply (consumers): `multiplier`, and its variants by the forms of weights and tokens.

- Tokens in f16 in units of their rows, weights as codes: `codes`.
- Both in e4m3: `scaled`; with short sums, added in f32, `promoted`, `pipelined`; with block scales of weights alone
  `weight_block_scales`, of tokens too `token_block_scales`.
- `skipped_tiles`: small tiles that one warpgroup multiplies alone.
"""
