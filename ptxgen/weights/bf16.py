"""bf16 weights: laid out as those of f16, but always in tiles of 64 columns, as PersistentStep reads them."""

from __future__ import annotations

from ptxgen.dtypes import bf16
from ptxgen.weights.f16 import PIECES, Half

FORMATS = (Half("bf16", 64, 2048, PIECES, dtype=bf16),)
