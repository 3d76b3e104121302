"""x before the loop, and sums of squares for its norm.

- x into shared memory: `prepare` (one token, as digits), `stage` (rows in f32).
- `squares`: sums of squares alone, of rows that stay in global memory.
"""
