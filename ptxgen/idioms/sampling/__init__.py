"""The choice of a token from a row of logits.

- The largest: `order` (floats as integers that order as they do), `best` (of a CTA, of all CTAs).
- A token by its probability: `draw`, which is made of `threshold` (selection by exact sums), `probabilities` (as
  integers), `philox` (random numbers) and `bit_set` (tokens of a history).
"""
