"""Rows: atom and red, scalar, packed and vector."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

SECTIONS: dict[str, tuple[Row, ...]] = {}
