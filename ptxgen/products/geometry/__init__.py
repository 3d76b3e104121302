"""How work is shared out among warps and CTAs: `groups` (warps take records in groups), `runs` (one token on tensor
cores: each warp has a run of tiles), `split_k` (which of those have CTAs that share k)."""
