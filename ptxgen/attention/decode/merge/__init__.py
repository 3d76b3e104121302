"""The merges of partial softmaxes: of a CTA's warps, a cluster's CTAs, a sequence's splits; and the output."""
