"""Prefill on wgmma (sm_90a): a producer warpgroup fills a ring of K and V, consumer warpgroups multiply.

- `kernel` puts all together. `tile`: how much a CTA takes, and of which attention. `items`: the tile scheduler.
- `producer/`: rows of q, K and V into shared memory. `ring`: the mbarriers between it and the consumers.
- `consumer/`: both products, the softmax between them, and the output. `variants`: steps in the exponent.
- `workspace/`: 8-bit K and V that the launch itself makes ready in global memory.
"""
