"""Prefill on wgmma (sm_90a): a producer warpgroup fills a ring of K and V, consumer warpgroups multiply."""
