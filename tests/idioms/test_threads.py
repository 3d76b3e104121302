"""Index arithmetic with constants: quotients as assemblers would have them, the long way."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.builder import Builder
from ptxgen.dtypes import u32
from ptxgen.idioms.threads import divide_any
from ptxgen.launch import buffer
from tests.support.idiom_kernel import Idiom, run_idiom

MOST = (1 << 31) - 1


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 48, 64, 96, 104, 112, 132, 224, 641, 7152, 65537, 1048577, MOST])
def test_any_value_below_2_to_the_31_by_a_constant(divisor: int) -> None:
    """The largest values, and those about a multiple, are where a quotient would be off by one."""

    def code(b: Builder) -> None:
        with b.fragment("divide"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            at = b.op("mad.wide.u32", "at", thread, 4, b.ld_param("x"))
            value = b.op("ld.global.u32", "value", at[0])
            b.op("st.global.u32", at[0], divide_any(b, "quotient", value, divisor))

    largest = MOST // divisor * divisor
    chosen = [0, 1, divisor - 1, divisor, divisor + 1, largest - 1, largest, MOST - 1, MOST]
    drawn = np.random.default_rng(divisor).integers(0, MOST, 32 - len(chosen))
    x = np.array([*(min(value, MOST) for value in chosen), *drawn], np.uint32)
    spec = Idiom((buffer("x", u32, 32, access="inout"),), code=code)
    (out,) = run_idiom(spec, "{{ divide }}", x)
    assert (out == x // divisor).all()
