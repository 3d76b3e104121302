"""Sums of parts of k: `cluster` (split-K, CTAs of a cluster), `sliced` (warpgroups of a CTA), `stream` (stream-K)."""
