"""Attention of many query rows over a tile of keys at a time: what `MultiHeadAttention` is made of."""
