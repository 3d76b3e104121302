"""Products of many tokens on wgmma (sm_90a): weights as the rows of A, in registers; tokens as the columns of B."""
