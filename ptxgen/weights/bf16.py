"""bf16 weights: laid out as those of f16."""

from __future__ import annotations

from ptxgen.dtypes import bf16
from ptxgen.weights.f16 import Half, in_tiles

FORMATS = (in_tiles(Half, "bf16", dtype=bf16),)
