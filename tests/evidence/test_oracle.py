"""The NumPy oracle itself: its rounding against exact arithmetic, its scheduling, and what it refuses."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.evidence.corpus.cases import CASES
from tests.evidence.oracle import Oracle, OracleFault, numbers

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def kernel(body: str, params: str = ".param .u64 out") -> str:
    """A module with one entry `k`."""
    registers = ".reg .pred %p<9>; .reg .b32 %r<30>; .reg .b64 %rd<9>; .reg .f32 %f<9>;"
    return f"{HEAD}.visible .entry k({params}) {{ {registers} ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; {body} }}"


def launch(text: str, size: int, block: int, shared: int = 0) -> np.ndarray:
    device = Oracle()
    out = device.array(np.zeros(size, np.uint32))
    device.module(text)["k"].launch(grid=(1,), block=(block,), args=[out], shared=shared)
    return out.numpy()


STORE = "mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r9; ret;"


@pytest.mark.parametrize("name", CASES)
def test_every_corpus_kernel_gives_what_numpy_says(name):
    CASES[name].run(Oracle())


@pytest.mark.parametrize(("format_", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16), ("f32", np.float32),
                                                ("e5m2", ml_dtypes.float8_e5m2)])  # fmt: skip
def test_rounding_of_rationals_agrees_with_the_library_conversions(format_, dtype):
    rng = np.random.default_rng(1)
    values = rng.standard_normal(2000) * 2.0 ** rng.integers(-150, 130, 2000)
    with np.errstate(over="ignore"):
        expected = values.astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(numbers.rounded(values, format_, "rn"), expected)


def test_directed_roundings_bracket_the_value_by_one_step():
    rng = np.random.default_rng(2)
    values = rng.standard_normal(500)
    down, up = (numbers.rounded(values, "f16", mode).astype(np.float16) for mode in ("rm", "rp"))
    assert (down.astype(float) <= values).all()
    assert (up.astype(float) >= values).all()
    np.testing.assert_array_equal(np.nextafter(down, np.float16(np.inf)), up)
    np.testing.assert_array_equal(numbers.rounded(values, "f16", "rz"), np.where(values > 0, down, up))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_fma_rounds_once(kind):
    rng = np.random.default_rng(3)
    dtype = numbers.DTYPES[kind]
    a, b = rng.standard_normal((2, 3000)).astype(dtype)
    c = (-a.astype(np.float64) * b.astype(np.float64) * (1 + rng.integers(-1, 2, 3000) * 2.0**-20)).astype(dtype)
    c[::3] *= dtype.type(1024)
    got = numbers.fma(a, b, c, kind).astype(np.float64)
    for x, y, z, r in zip(*(v.astype(np.float64) for v in (a, b, c)), got, strict=True):
        assert r == numbers.round_to(Fraction(x) * Fraction(y) + Fraction(z), kind)


def test_fma_sees_an_addend_far_below_a_tie():
    a, b, c = (np.array([v], ml_dtypes.bfloat16) for v in (9.4375, 3.0, 1e-38))
    assert [float(numbers.fma(a, b, s, "bf16")[0]) for s in (c, -c, c * 0)] == [28.375, 28.25, 28.25]


def test_diverged_threads_meet_again_at_the_join():
    body = (
        """and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0; @%p0 bra even; mov.u32 %r2, 1; bra join;
              even: mov.u32 %r2, 2; join: activemask.b32 %r9; """
        + STORE
    )
    assert set(launch(kernel(body), 32, 32).tolist()) == {0xFFFFFFFF}


def test_a_shuffle_waits_for_lanes_that_come_later():
    body = (
        """mov.u32 %r2, %r0; setp.lt.u32 %p0, %r0, 16; @%p0 bra shuffle; add.u32 %r2, %r0, 100;
              shuffle: shfl.sync.bfly.b32 %r9, %r2, 16, 31, -1; """
        + STORE
    )
    lanes = np.arange(32)
    np.testing.assert_array_equal(launch(kernel(body), 32, 32), (lanes ^ 16) + np.where(lanes < 16, 100, 0))


def test_a_barrier_that_some_threads_never_reach_is_a_deadlock():
    body = "setp.lt.u32 %p0, %r0, 32; @%p0 bra there; bar.sync 0; ret; there: bar.sync 1; ret;"
    with pytest.raises(OracleFault, match="deadlock"):
        launch(kernel(body), 1, 64)


def test_threads_that_left_no_longer_count_at_a_barrier():
    body = "setp.lt.u32 %p0, %r0, 32; @%p0 ret; bar.sync 0; mov.u32 %r9, 7; " + STORE
    assert launch(kernel(body), 64, 64)[32:].tolist() == [7] * 32


def test_cp_async_lands_at_the_wait_and_not_before():
    copy = """.shared .align 16 .b8 tile[16]; st.global.u32 [%rd0], 11; mov.u32 %r1, tile;
              cp.async.ca.shared.global [%r1], [%rd0], 4; cp.async.commit_group; WAIT
              ld.shared.u32 %r9, [%r1]; st.global.u32 [%rd0+4], %r9; ret;"""
    assert launch(kernel(copy.replace("WAIT", "cp.async.wait_group 0;")), 2, 1)[1] == 11
    assert launch(kernel(copy.replace("WAIT", "cp.async.wait_group 1;")), 2, 1)[1] == 0xCBCBCBCB


@pytest.mark.parametrize(("instruction", "message"), [
    ("st.global.u32 [%rd0+8], %r0;", "no memory"), ("st.global.u32 [%rd0+2], %r0;", "misaligned"),
    ("st.shared.u32 [%r0], %r0;", "no memory"), ("frobnicate.b32 %r1, %r0;", "unknown instruction"),
    ("trap;", "trap"),
])  # fmt: skip
def test_wild_accesses_and_unknown_instructions_are_refused_with_their_line(instruction, message):
    with pytest.raises(OracleFault, match=f"line 4: .*{message}"):
        launch(kernel(instruction + " ret;"), 2, 1)
