"""Kernels in which every CTA has one tile of rows: their main loops on plain FMA (`simt`) and `mma.sync` (`mma/`).

Both use `tiles` (how large a tile is), `queries` and `keys` (tiles in shared memory).
"""
