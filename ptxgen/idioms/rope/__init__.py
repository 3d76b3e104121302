"""Rotary position embedding.

`settings`: by which angles heads rotate. `rotation`: frequencies, sine and cosine, the rotation of a chunk. `rows`:
what kernel types have in common that rotate rows of heads.
"""
