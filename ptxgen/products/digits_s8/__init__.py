"""Products of a few tokens, whose values are three signed bytes each, by weights whose codes are bytes.

- How tokens lie: `layout`; who writes them so: `digits` (PackDigits). `geometry`: how work is shared out.
- `units`: tokens on their way to shared memory. `columns`: how a tile is multiplied.
- `results`: from sums to the output. `roots`: a norm that is divided out of results.
"""
