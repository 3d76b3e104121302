"""Sums of parts of k: `slots` (of warps, in shared memory), `cluster` (of CTAs of a cluster)."""
