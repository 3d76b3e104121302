"""From sums to results: `results` (norm, bias, activation, gate, residual, store), `heads` (heads of q, k and v that
rotate and go to the cache), `likeliest` (the next token)."""
