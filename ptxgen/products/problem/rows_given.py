"""Rows of which only the first `n_rows` count: the parameter, a scalar or `[1]` in device memory, and its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import s32
from ptxgen.launch import Param, buffer, scalar

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg


def n_rows_param(indirect: bool) -> Param:
    """The scalar `n_rows`."""
    return buffer("n_rows", s32, 1, align=4) if indirect else scalar("n_rows", s32)


def rows_counted(b: Builder, indirect: bool, name: str = "row_count") -> Reg:
    """How many rows there are, not below 0; `name` is the register of what is loaded; part of an open fragment."""
    if indirect:
        count = b.reg(name, "s32")
        b.op("ld.global.s32", count, b.ld_param("n_rows")[0])
    else:
        count = b.ld_param("n_rows")
    counted: Reg = b.op("max.s32", "rows_counted", count, 0)
    return counted


def n_rows_given(sizes: Mapping[str, int], indirect: bool) -> Any:
    """An example's argument: as many as `sizes` say, all with -1."""
    import numpy as np

    count = sizes["rows"] if sizes["n_rows"] < 0 else sizes["n_rows"]
    return np.array([count], np.int32) if indirect else count


def rows_of(arguments: Mapping[str, Any]) -> int:
    """How many rows an argument says."""
    import numpy as np

    return max(0, int(np.ravel(arguments["n_rows"])[0]))
