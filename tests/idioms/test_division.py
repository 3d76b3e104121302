"""Indices divided by constants: quotients as assemblers would have them, the long way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import u32
from ptxgen.idioms.division import divide_any, divide_bounded
from ptxgen.launch import buffer
from tests.support.idiom_kernel import Idiom, run_idiom

MOST = (1 << 31) - 1


def quotients(x: np.ndarray, divide: Callable[[Builder, Reg], Reg]) -> np.ndarray:
    """What a kernel of 32 threads makes of 32 values."""

    def code(b: Builder) -> None:
        with b.fragment("divide"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            at = b.op("mad.wide.u32", "at", thread, 4, b.ld_param("x"))
            value = b.op("ld.global.u32", "value", at[0])
            b.op("st.global.u32", at[0], divide(b, value))

    (out,) = run_idiom(Idiom((buffer("x", u32, 32, access="inout"),), code=code), "{{ divide }}", x)
    return out


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 48, 64, 96, 104, 112, 132, 224, 641, 7152, 65537, 1048577, MOST])
def test_any_value_below_2_to_the_31_by_a_constant(divisor: int) -> None:
    """The largest values, and those about a multiple, are where a quotient would be off by one."""
    largest = MOST // divisor * divisor
    chosen = [0, 1, divisor - 1, divisor, divisor + 1, largest - 1, largest, MOST - 1, MOST]
    drawn = np.random.default_rng(divisor).integers(0, MOST, 32 - len(chosen))
    x = np.array([*(min(value, MOST) for value in chosen), *drawn], np.uint32)
    assert (quotients(x, lambda b, value: divide_any(b, "quotient", value, divisor)) == x // divisor).all()


@pytest.mark.parametrize("divisor", [1, 3, 7, 48, 641])
def test_bounded_values_are_divided_by_one_product_up_to_the_largest_that_is_taken(divisor: int) -> None:
    excess = -(-(1 << 32) // divisor) * divisor - (1 << 32)
    most = min(((1 << 32) - 1) // excess if excess else MOST, MOST)
    x = np.linspace(0, most, 32).astype(np.uint32)
    x[-3:] = most // divisor * divisor - 1, most // divisor * divisor, most

    def divide(b: Builder, value: Reg) -> Reg:
        return divide_bounded(b, b.reg("quotient", "u32"), value, divisor, most)

    assert (quotients(x, divide) == x // divisor).all()
    if excess:
        with pytest.raises(ValueError, match=f"{1 << 32} may be too large for a division by {divisor}"):
            quotients(x, lambda b, value: divide_bounded(b, b.reg("quotient", "u32"), value, divisor, 1 << 32))
