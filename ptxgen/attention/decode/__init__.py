"""Decode attention in parts: where a CTA finds its work, main loops, and the merges of their partial softmaxes."""
