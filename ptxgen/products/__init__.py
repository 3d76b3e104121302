"""Matrix products of packed weights: geometry, loops and what is fused to them.

Here are those of one token, and of several whose rows are f32. A folder each: `bytes` (a few tokens as digits of
bytes), `few` (a few tokens as bf16 digits), `wgmma` (many tokens).

- What is asked for: `product`, `weighted`, `qkv_append`; `geometry`: how work is shared out.
- x: `stage` (f32), `prepare` and `digits` (digits of one token), `squares`, `rows_given`.
- Loops: `loop`, `fma` (no tensor cores), `mma`, `stream` with `columns` (one token), `reader` (a lane's weights).
- After the loop: `slots`, `join`, `epilogue`, `heads`, `likeliest`; `compose` puts all together.
- `elements`: rows that attention writes for the product after it. `example`, `readings`: references.
"""
