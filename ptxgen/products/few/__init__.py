"""Products of up to eight tokens with weights in bf16, each read once by a run of tiles as one token reads them."""
