"""How a product is cut into tiles: `shape` (rows of a CTA, CTAs that share k or tokens) and what follows from it.

`geometry`: stages, shared memory, how results leave. `registers`: how many sums a thread can keep. `refusals`: why a
product cannot be shared out in some way.
"""
