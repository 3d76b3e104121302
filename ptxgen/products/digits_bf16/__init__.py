"""Products of up to eight tokens in bf16 digits: weights are read once, by a run of tiles as one token reads them.

- How tokens lie: `layout`; who writes them so: `digits` (PackDigits, attention), `results` (a product).
- `geometry`: how work is shared out. `columns`: how a tile is multiplied.
- `heads`: results that are heads of q, k and v.
"""
