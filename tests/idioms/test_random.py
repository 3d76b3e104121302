"""Philox against its published words; weights in NumPy and in PTX, bit for bit, and how near they are to 2^y."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.builder import Builder
from ptxgen.dtypes import f32, u32
from ptxgen.idioms.sampling import philox, probabilities
from ptxgen.launch import buffer
from tests.support.idiom_kernel import Idiom, run_idiom

# Random123's kat_vectors, philox 4x32 10: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert philox.words(counter, key) == words

    def code(b: Builder) -> None:
        with b.fragment("all"):
            base = b.ld_param("x")
            c, k = b.array("c", "u32", 4), b.array("k", "u32", 2)
            b.op("ld.global.v4.u32", c.regs, base[0])
            b.op("ld.global.v2.u32", k.regs, base[16])
            philox.emit(b, c, k)
            b.op("st.global.v4.u32", base[0], c.regs)

    x = np.array([*counter, *key], np.uint32)
    (out,) = run_idiom(Idiom((buffer("x", u32, 6, access="inout"),), 1, code=code), "{{ all }}", x)
    assert tuple(map(int, out[:4])) == words


def exponents() -> np.ndarray:
    rng = np.random.default_rng(0)
    near = np.float32([0.0, -0.0, -0.5, -1.5, -31, -31.5, -32, -32.5, -33, -64, -65, -1e30, -np.inf, np.nan, -1e-40])
    many = (-rng.uniform(0, 40, 8192 - len(near) - 1024)).astype(np.float32)
    return np.concatenate([near, many, (-rng.uniform(0, 1, 1024)).astype(np.float32)])


def test_weights_are_the_same_bits_in_ptx_and_in_numpy() -> None:
    def code(b: Builder) -> None:
        with b.fragment("all"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            rank = b.op("mov.u32", "rank", b.special("ctaid.x"))
            b.op("mad.lo.u32", thread, rank, 1024, thread)
            at = b.op("mad.wide.u32", "at", thread, 4, b.ld_param("x"))
            y, weight = b.op("ld.global.f32", "y", at[0]), b.reg("weight", "u32")
            probabilities.emit(b, weight, y)
            out = b.op("mad.wide.u32", "to", thread, 4, b.ld_param("out"))
            b.op("st.global.u32", out[0], weight)

    x = exponents()
    params = (buffer("x", f32, len(x)), buffer("out", u32, len(x), access="out"))
    _, out = run_idiom(Idiom(params, 1024, 8, code=code), "{{ all }}", x, np.zeros(len(x), np.uint32))
    assert out.astype(np.uint64).tolist() == probabilities.probabilities(x).tolist()


def test_weights_are_within_3e_7_of_the_power_and_half_a_unit() -> None:
    y = exponents()[15:]
    got, want = probabilities.probabilities(y).astype(float), np.exp2(y.astype(float)) * 2.0**31
    assert (np.abs(got - want) <= 0.5 + 3e-7 * want).all()
    assert probabilities.probabilities(np.float32([0.0])) == 1 << 31
    assert probabilities.probabilities(np.float32([-33.0, -64, -np.inf, np.nan])).tolist() == [0, 0, 0, 0]
