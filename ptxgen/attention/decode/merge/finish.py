"""The end of an attention: sink, division by the sum, conversion, the store, the log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Callable

from ptxgen.attention.decode.merge.cta import Elements, Partial
from ptxgen.attention.variant import take_sink
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms import convert

# What becomes of four outputs of the CTA's heads: the number of their element, and whether they exist.
Keep = Callable[[Reg, tuple[Reg, ...], Reg | None], None]


def apply_sink(b: Builder, elements: Elements, part: Partial, sinks: Reg, exists: Reg | None) -> None:
    """A logit per head that takes weight and gives no value; `sinks` is the address of the CTA's first head's."""
    address = b.op("mad.wide.u32", "sink_address", elements.head, 4, sinks)
    sink = b.op("mov.f32", "sink", 0.0)
    b.op("ld.global.f32", sink, address[0], pred=exists)
    take_sink(b, sink, part.maximum, part.total, part.values)


def store_output(
    b: Builder, elements: Elements, part: Partial, dtype: DType, rows: Reg, exists: Reg | None,
    scale: Reg | None = None, keep: Keep | None = None,
) -> None:  # fmt: skip
    """Write values / sum, times the values' `scale` where they have one; a softmax over nothing gives zeros. `rows`:
    address of the CTA's first head in the output. `keep` writes them otherwise."""
    inverse = b.op("rcp.approx.ftz.f32", "output_inverse", part.total)
    nothing = b.op("setp.eq.f32", "output_nothing", part.total, 0.0)
    b.op("selp.f32", inverse, 0.0, inverse, nothing)
    if scale is not None:
        b.op("mul.f32", inverse, inverse, scale)
    place = None if keep else b.op("mad.wide.u32", "output_place", elements.element, 4 * dtype.bytes, rows)
    values = b.array("output", "f32", 4).regs
    for value, term in zip(values, part.values, strict=True):
        b.op("mul.f32", value, term, inverse)
    if keep is not None:
        keep(elements.element, values, exists)
        return
    assert place is not None
    if dtype.name == "f32":
        b.op("st.global.v4.f32", place[0], values, pred=exists)
        return
    words = b.array("output_word", "b32", convert.words_of(dtype, 4)).regs
    convert.pack(b, words, values, dtype)
    convert.store_words(b, place, words, pred=exists)


def store_lse(b: Builder, elements: Elements, part: Partial, rows: Reg, exists: Reg | None) -> None:
    """Write the natural log-sum-exp of a head, once; −inf over nothing. `rows`: address of the CTA's first head's."""
    first = b.op("setp.eq.u32", "lse_first", elements.chunk, 0)
    if exists is not None:
        b.op("and.pred", first, first, exists)
    lse = b.op("lg2.approx.ftz.f32", "lse_value", part.total)
    b.op("add.f32", lse, lse, part.maximum)
    b.op("mul.f32", lse, lse, math.log(2))
    place = b.op("mad.wide.u32", "lse_place", elements.head, 4, rows)
    b.op("st.global.f32", place[0], lse, pred=first)
