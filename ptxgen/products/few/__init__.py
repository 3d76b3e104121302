"""Products of up to eight tokens in bf16 digits: weights are read once, by a run of tiles as one token reads them."""
