"""A Hugging Face `config.json` → `ModelShape` (`shape`).

- `fields`: its values, with the family's defaults. `reader`: the shape that they describe, or a refusal. `warned`: what
  is warned of.
- Tables: `families` (what a family's config means), `keys` (what keys there are).
- Parts: `layers` (windows, which layers rotate), `rope`, `kv_scheme` (how the model's own cache is quantised).
"""
