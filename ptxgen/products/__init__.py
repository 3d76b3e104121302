"""Matrix products of packed weights: of one token, of a few, of many.

What all of them have:

- `tokens/`: how rows of x lie for tensor cores. `geometry/`: how work is shared out.
- `problem/`: what is asked for: fields, rules, parameters, references.

Products of one token, and of several whose rows are f32; `compose` puts their parts together:

- `prologue/`: x into shared memory, its norm. `mainloop/`: warps over their tiles of weights.
- `split_k/`: sums of warps, and of CTAs that share k. `epilogue/`: from sums to results.

A folder each, as rows of x are packed:

- `digits_s8/`: a few tokens as signed bytes. `digits_bf16/`: a few tokens as bf16 digits.
- `wgmma/`: many tokens.
"""
