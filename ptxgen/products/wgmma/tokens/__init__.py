"""Tokens in memory: `layout`, and who writes it: `packing` and `scaled_packing` (PackTokens), `attention_output`."""
