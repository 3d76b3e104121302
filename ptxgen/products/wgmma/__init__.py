"""Products of many tokens on wgmma (sm_90a): weights as the rows of A, in registers; tokens as the columns of B.

- What is asked for: `product` (fields), `rules` (what they may be).
- `tiling/`: how a product is cut into tiles, and what follows from it. `cost_model/`: which tile is likely the fastest.
- `tokens/`: how tokens lie in memory, and who writes them so.
- `ring`: stages in shared memory. `tasks`: the tile scheduler: which tile a CTA takes next.
- `producer/`: the warp that copies. `mainloop/`: the warps that multiply.
- `split_k/`: where CTAs or warpgroups share k. `epilogue/`: from accumulators to results in memory.
"""
