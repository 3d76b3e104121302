"""Attention of many query rows over a tile of keys at a time: what `MultiHeadAttention` is made of.

- What is asked for: `contract`; `example`: of tests.
- Rows of queries and their keys: `rows`, of a ragged batch `ragged`; `sources`: where K and V lie in global memory.
- What all loops use: `copies` (rows to shared memory), `softmax`.
- `loops/`: a tile of rows for each CTA, by FMA or `mma.sync`. `wgmma/`: a persistent kernel for sm_90a.
"""
