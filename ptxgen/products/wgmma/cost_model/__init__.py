"""Which tile is likely the fastest, by cycles or µs as they were measured on an H200.

`choice` compares the `candidates` by their `cycles`. Models: `few_tokens` (up to 64), `weights_16bit` (16-bit weights
as they lie, more than 64), `weights_converted` (other weights, from 257 rows on), `token_blocks` (e4m3 with scales of
blocks on both sides). `waves`: how many tiles a CTA has of a launch.
"""
