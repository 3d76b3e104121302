"""From accumulators to results in memory.

- Results change places in shared memory: `results` (four outputs of a token for each lane), `results_16bit`
  (`stmatrix`), `transpose_rounds` (what both have in common). `carried`: other warps store them during the next tile.
- What becomes of them: `outlets` (rows, or tiles for the next product), `norms` (a norm divided out of a product),
  `qkv_append` (heads that rotate and go to the caches).
"""
