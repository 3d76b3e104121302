"""What is asked for.

- Fields: `weighted` (what all products have), `product` (Gemv, Gemm and those made of them), `heads` and
  `qkv_append` (rows that are heads of q, k and v), `rows_given` (how many rows count).
- What is expected: `reference` (example and product in float64), `readings` (how results in digits are compared).
"""
