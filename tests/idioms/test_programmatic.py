"""Whether the next kernel may start by what a warp sees of the sequences' positions."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.builder import Builder
from ptxgen.dtypes import s32
from ptxgen.idioms.programmatic import are_short
from ptxgen.launch import buffer
from tests.support.idiom_kernel import Idiom, run_idiom

LIMIT = 100


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 70])
@pytest.mark.parametrize(
    ("row", "position", "short"),
    [(0, 99, 1), (0, 100, 0), (30, 4000, 0), (32, 100, 0), (63, 100, 0), (64, 4000, 1), (5, -1, 1)],
)
def test_one_long_sequence_of_the_first_64_holds(rows: int, row: int, position: int, short: int) -> None:
    def code(b: Builder) -> None:
        with b.fragment("told", "1 where all are short"):
            lane = b.op("mov.u32", "lane", b.special("laneid"))
            told = are_short(b, b.ld_param("positions"), b.op("mov.s32", "rows", rows), LIMIT, lane)
            out = b.op("mad.wide.u32", "out_at", lane, 4, b.ld_param("out"))
            b.op("st.global.s32", out[0], b.op("selp.b32", "result", 1, 0, told))

    positions = np.zeros(70, np.int32)
    positions[row] = position
    spec = Idiom((buffer("positions", s32, 70), buffer("out", s32, 32, access="out")), code=code)
    _, found = run_idiom(spec, "{{ told }}", positions, np.full(32, -1, np.int32))
    assert set(found) == {short if row < rows else 1}
