"""Sums of parts of k: `cluster` (split-K, CTAs of a cluster), `memory` (the
same of CTAs that are none), `sliced` (warpgroups of a CTA), `stream` (stream-K)."""
