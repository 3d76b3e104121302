"""Rows in memory: conversions of every type and count, tails, passes; nothing beyond a row is read or written."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.builder import Builder
from ptxgen.dtypes import DType, bf16, e4m3, f16, f32, s8
from ptxgen.errors import SpecError
from ptxgen.idioms.dot import add, dot
from ptxgen.idioms.elements import pieces, widest
from ptxgen.idioms.rows import RowShare, RowWalk
from ptxgen.launch import buffer
from tests.support import sweep
from tests.support.cpu_run import MODES
from tests.support.idiom_kernel import Idiom, run_idiom

DIMS = (1, 2, 3, 4, 7, 31, 32, 33, 63, 64, 100, 127, 129, 1000, 1023, 1025, 4096, 4100, 8191, 8193, 20000)


def values(dtype: DType, count: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    if dtype == s8:
        return rng.integers(-128, 128, count).astype(np.int8)
    return rng.normal(0, 4, count).astype(np.float32).astype(dtype.numpy)


def copies(share: RowShare, source: DType, target: DType) -> Idiom:
    """out = x, in passes."""

    def code(b: Builder) -> None:
        walk, here = RowWalk(b, share), b.array("value", "f32", share.elements)
        with b.fragment("locate"):
            walk.begin(b.op("mov.u32", "thread", b.special("tid.x")))
            x, out = b.ld_param("x"), b.ld_param("out")
        with b.fragment("copy"):
            walk.step()
            came = pieces(b, "came", source, here, share.vector)
            walk.load(walk.at("from", x, source.bytes), came)
            goes = pieces(b, "goes", target, here, share.vector)
            for i in range(share.flight):
                mine = here[i * share.vector : (i + 1) * share.vector]
                came[i].widen(b, mine)
                goes[i].narrow(b, mine)
            walk.store(walk.at("to", out, target.bytes), goes)
            walk.advance("again")

    align = share.vector
    x = buffer("x", source, share.dim, align=align * source.bytes)
    return Idiom(
        (x, buffer("out", target, share.dim, access="out", align=align * target.bytes)), share.threads, code=code
    )


BODY = '{{ locate }}\n{% call loop("row", again) %}\n{{ copy }}\n{% endcall %}'


@pytest.mark.parametrize("dim", DIMS)
def test_every_length_is_copied_whole_and_no_further(dim: int) -> None:
    """Check mode knows the bounds of both buffers."""
    x = values(f32, dim)
    _, out = run_idiom(copies(RowShare.of(dim, 4), f32, f32), BODY, x, np.full(dim, np.nan, np.float32))
    assert out.tobytes() == x.tobytes()


@pytest.mark.parametrize(("vector", "target"), sweep.pairs([1, 2, 4, 8, 16], ["sm_75", "sm_80", "sm_89"], 2))
@pytest.mark.parametrize("dtype", [f32, f16, bf16, e4m3, s8])
def test_every_type_there_and_back_in_pieces_of_every_size(dtype: DType, vector: int, target: str) -> None:
    if vector * dtype.bytes > 16:
        vector = 16 // dtype.bytes
    share = RowShare(96 * vector + vector, vector, 32, 2)
    x = values(dtype, share.dim)
    for way in ((dtype, dtype), (dtype, f32), (f32, dtype)):
        there = x.astype(way[0].numpy)
        wide = there.astype(np.float32)
        if way[1] == e4m3:
            wide = np.clip(wide, -448, 448)
        share = RowShare(share.dim, min(vector, 16 // max(t.bytes for t in way)), 32, 2)
        _, out = run_idiom(copies(share, *way), BODY, there, np.zeros(share.dim, way[1].numpy), target=target)
        assert out.tobytes() == wide.astype(way[1].numpy).tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_several_ctas_take_the_passes_of_a_row_in_turn(mode: str) -> None:
    share = RowShare.of(20_000, 4, most=64, ctas=3)
    assert share.passes > 1

    def code(b: Builder) -> None:
        walk, here = RowWalk(b, share), b.array("value", "f32", share.elements)
        with b.fragment("locate"):
            walk.begin(b.op("mov.u32", "thread", b.special("tid.x")), b.op("mov.u32", "cta", b.special("ctaid.x")))
            x = b.ld_param("x")
        with b.fragment("copy"):
            walk.step()
            at, parts = walk.at("from", x, 4), pieces(b, "", f32, here, share.vector)
            walk.load(at, parts)
            add(b, here, here)
            walk.store(at, parts)
            walk.advance("again")

    spec = Idiom((buffer("x", f32, share.dim, access="inout"),), share.threads, 3, code=code)
    x = values(f32, share.dim)
    (out,) = run_idiom(spec, BODY, x, mode=mode)
    assert out.tobytes() == (2 * x).tobytes()


def test_shares_of_rows() -> None:
    assert [widest(n, 4) for n in (8, 4, 6, 3)] == [4, 4, 2, 1]
    assert [widest(n, 1) for n in (32, 8, 3)] == [16, 8, 1]
    small, large = RowShare.of(64, 4), RowShare.of(65536, 4)
    assert (small.threads, small.flight, small.passes, small.whole) == (32, 1, 1, False)
    assert (large.threads, large.elements, large.passes, large.whole) == (512, 16, 8, True)
    for dim in DIMS:
        share = RowShare.of(dim, 4)
        assert share.threads <= 512
        assert (share.passes - 1) * share.reach < dim <= share.passes * share.reach


def test_a_dot_product_adds_in_the_order_of_its_registers() -> None:
    def code(b: Builder) -> None:
        x, total = b.array("value", "f32", 4), b.reg("total", "f32")
        with b.fragment("all"):
            base = b.ld_param("x")
            b.op("ld.global.v4.f32", x.regs, base[0])
            b.op("mov.f32", total, 0.0)
            b.op("st.global.f32", base[0], dot(b, total, x, x))

    spec = Idiom((buffer("x", f32, 4, access="inout"),), 1, code=code)
    (out,) = run_idiom(spec, "{{ all }}", np.float32([1, 2, 3, 4]))
    assert out[0] == 30


def test_vectors_that_would_reach_past_a_row_are_refused():
    with pytest.raises(SpecError, match=r"must divide a row of 77 elements \(got 8 in each\)"):
        RowShare(77, 8, 32, 1)
    assert RowShare.of(77, 2, most=32).vector == 1
