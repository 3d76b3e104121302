"""Sums of parts of k: `cluster` (split-K, CTAs of a cluster), `memory` (split-K, CTAs that are no cluster), `sliced`
(warpgroups of a CTA), `stream` (stream-K)."""
