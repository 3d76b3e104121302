"""Warps over their tiles of weights.

- `reader`: a lane's addresses and loads of packed weights.
- One token on tensor cores: `stream` (a warp's run of tiles), `columns` (how a tile is multiplied).
- Several tokens, or no tensor cores: `loop` (what all have in common), `mma` (tensor cores), `fma` (f32).
"""
