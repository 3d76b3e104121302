"""Tokens as tensor cores want them: `digits` (one token, in shared memory), `attention_output` (what attention leaves
for the product behind it)."""
