"""Products of many tokens on wgmma."""
