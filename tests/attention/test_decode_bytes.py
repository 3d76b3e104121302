"""Decode attention over caches of bytes on tensor cores: every code, every width of block."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ptxgen import generate
from ptxgen.assembler import assemble
from ptxgen.attention.decode.loops.mma import loop as mma
from ptxgen.dtypes import dtype
from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from tests.support import sweep
from tests.support.marks import needs_assembler

WHERE = ("sm_80", "sm_86", "sm_89", "sm_90")
KINDS = ("e4m3", "s8")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_go_the_tensor_cores_way(where: str, kind: str) -> None:
    spec = IncrementalAttention(64, 64, 4, 1, kv_dtype=kind)
    assert spec.plan(target(where)).loop is mma
    converted = "cvt.rn.f16x2.e4m3x2" in generate(spec, where).text
    assert converted == (kind == "e4m3" and where in ("sm_89", "sm_90"))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_code_of_k_is_widened_exactly(device: Device, where: str, kind: str) -> None:
    """A head a code, in each place of a word in turn; one position, so that the log-sum-exp is the score."""
    spec = IncrementalAttention(1, 8, 256, 256, q_dtype="f16", kv_dtype=kind, scale=1.0, lse=True)
    given = spec.example(np.random.default_rng(0), seq_len=1)
    codes = np.arange(256, dtype=np.uint8).view(dtype(kind).numpy)
    head, place = np.arange(256), np.arange(256) * 5 % 8
    given["q"][...], given["k_cache"][...], given["v_cache"][...] = 0, 0, 0
    given["q"][head, place], given["k_cache"][head, 0, place] = 1, codes
    want: np.ndarray = codes.astype(np.float32)
    if kind == "s8":
        given["k_scales"][...] = 0.5
        want = want / 2
    scores = trial(spec, device, target=where, arguments=given).outputs["lse"]
    assert np.array_equal(np.isnan(scores), np.isnan(want))
    assert np.allclose(scores, want, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 1])
def test_every_code_of_v_is_widened_exactly(device: Device, where: str, kind: str, first: int) -> None:
    """One position, whose row is the output; a row whose end is as narrow as a block gets."""
    spec = IncrementalAttention(1, 264, 1, 1, q_dtype="f16", kv_dtype=kind)
    given = spec.example(np.random.default_rng(0), seq_len=1)
    codes = (np.arange(264) + first).astype(np.uint8).view(dtype(kind).numpy)
    given["v_cache"] = codes.reshape(1, 1, 264)
    want: np.ndarray = codes.astype(np.float32)
    if kind == "s8":
        given["v_scales"][...] = 2.0**-5
        want = want * 2.0**-5
    out = trial(spec, device, target=where, arguments=given).outputs["out"][0].astype(np.float32)
    assert np.array_equal(out, want, equal_nan=True)


WAYS = [(where, kind) for where in ("sm_80", "sm_90") for kind in KINDS]


@pytest.mark.parametrize(("head_dim", "way"), sweep.pairs([8, 16, 24, 40, 72, 128, 264, 312, 512], WAYS, 3), ids=str)
@pytest.mark.parametrize(("group", "q_dtype"), [(1, "f16"), (5, "f32"), (17, "bf16")])
def test_shapes(device: Device, way: tuple[str, str], head_dim: int, group: int, q_dtype: str) -> None:
    """The query in registers and staged, with and without a last block of single pairs."""
    where, kind = way
    spec = IncrementalAttention(50, head_dim, group, 1, q_dtype=q_dtype, kv_dtype=kind, indirect=True)
    trial(spec, device, target=where, seq_len=37, repeat=False).require()


def test_nan_past_the_length_does_not_come_through(device: Device) -> None:
    for length, more in ((0, {}), (1, {}), (20, {"indirect": True}), (50, {"window": 10}), (69, {"batched": True})):
        fields: dict[str, Any] = {"q_dtype": "f16", "kv_dtype": "e4m3", **more}
        spec = IncrementalAttention(70, 64, 4, 1, **fields)
        sizes = {"batch": 1} if spec.batched else {}
        given = spec.example(np.random.default_rng(length), seq_len=length, **sizes)
        if spec.batched:
            given["seq_lens"] = np.array([length], np.int32)
        for name in ("k_cache", "v_cache"):
            given[name][..., length:, :] = np.nan
        trial(spec, device, target="sm_80", arguments=given, **sizes).require()


TIGHTEST = ((128, 8), (128, 24), (256, 8), (264, 1), (328, 16), (512, 7))  # head_dim, query heads


@needs_assembler
@pytest.mark.parametrize(("shape", "where"), sweep.pairs(TIGHTEST, ["sm_80", "sm_86", "sm_90", "sm_120"], 3), ids=str)
def test_the_tightest_shapes_do_not_spill(shape: tuple[int, int], where: str) -> None:
    head_dim, group = shape
    for kind in KINDS:
        spec = IncrementalAttention(
            4096, head_dim, group, 1, kv_dtype=kind, alibi=True, soft_cap=30.0, page_size=16, batched=True
        )
        assert assemble(generate(spec, where).text, where).resources[spec.kernel_name].clean


def test_a_word_of_int8_takes_three_integer_instructions_to_two_pairs() -> None:
    """They are what the loop has most of beside loads: a shift, and a lop3 a pair."""
    text = generate(IncrementalAttention(4096, 128, 32, 8, q_dtype="f16", kv_dtype="s8"), "sm_90").text
    loop = text[text.index("$tiles:") : text.rindex("$tiles_end:")]
    pairs = loop.count("sub.rn.f16x2")
    assert loop.count("lop3") == pairs
    assert len(re.findall(r"shr.u32 %kv_shifted", loop)) == pairs / 2
