"""Decode attention whose results are bf16 digits, as a product of a few tokens reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.dtypes import bf16
from ptxgen.kernels import IncrementalAttention
from ptxgen.products.digits_bf16 import layout
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial

SHAPE: dict[str, Any] = {"max_len": 200, "head_dim": 64, "n_heads": 4, "n_kv_heads": 2, "kv_dtype": "f16"}


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(("halves", "sums"), [(1, False), (3, False), (1, True), (3, True)])
@pytest.mark.parametrize(
    ("batch", "fields"),
    [
        (3, {}),
        (8, {"programmatic": True, "n_heads": 8, "max_len": 500}),
        (2, {"head_dim": 80, "kv_dtype": "f32", "n_kv_heads": 1}),
        (5, {"page_size": 16, "kv_dtype": "s8"}),
        (9, {"ring": 64, "window": 40, "n_heads": 6}),
    ],
    ids=str,
)
def test_every_loop_and_cache(mode: str, halves: int, sums: bool, batch: int, fields: dict[str, Any]) -> None:
    heads = {"n_heads": 16 if fields.get("head_dim") == 80 else 8} if sums else {}  # whole units of 256 columns
    spec = IncrementalAttention(**{**SHAPE, **fields, **heads}, batched=True, halves=halves, sums=sums)
    trial(spec, CpuDevice(mode=mode), target="sm_90", batch=batch).require()


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_digits_are_those_of_the_rows(device: Device, target: str) -> None:
    """Three of them add up to the row that is not packed, to the bit; one is the row rounded."""
    rows = IncrementalAttention(**SHAPE, batched=True)
    given = rows.example(np.random.default_rng(2), batch=5)
    del given["out"]
    out = trial(rows, device, target=target, arguments=given, batch=5).require().outputs["out"].reshape(5, -1)
    for halves, want in ((3, out), (1, out.astype(bf16.numpy).astype(np.float32))):
        for sums in (False, True):
            spec = IncrementalAttention(**SHAPE, batched=True, halves=halves, sums=sums)
            packed = trial(spec, device, target=target, arguments=given, batch=5).require().outputs["out"]
            assert (layout.unpack(packed, 5, 256, halves, sums=sums) == want).all()


def test_rows_of_a_tile_that_no_sequence_has_are_left_as_they_are() -> None:
    spec = IncrementalAttention(**SHAPE, batched=True, halves=1)
    out = trial(spec, CpuDevice(mode="check"), target="sm_90", batch=3).require().outputs["out"]
    whole = layout.unpack(out, 8, 256, 1)
    assert np.isnan(whole[3:]).all()
    assert np.isfinite(whole[:3]).all()


@pytest.mark.parametrize(
    ("head_dim", "n_heads", "n_kv_heads"), [(256, 8, 1), (128, 28, 4), (128, 12, 2), (80, 16, 2), (128, 5, 1)]
)
def test_heads_of_real_models(head_dim: int, n_heads: int, n_kv_heads: int) -> None:
    for kv_dtype, max_len in (("f16", 4096), ("f32", 64), ("s8", 4096)):
        if n_heads * head_dim % 64 == 0:
            generate(IncrementalAttention(max_len, head_dim, n_heads, n_kv_heads, kv_dtype=kv_dtype, batched=True,
                                          programmatic=True, halves=3), "sm_90")  # fmt: skip


def test_mistakes() -> None:
    with pytest.raises(SpecError, match=r"halves: needs batched=True \(got halves=3, batched=False; nearest: halves=0"):
        IncrementalAttention(**SHAPE, halves=3)
    with pytest.raises(SpecError, match=r"halves: must be one of 0, 1, 3"):
        IncrementalAttention(**SHAPE, batched=True, halves=2)
    with pytest.raises(SpecError, match=r"halves: n_heads \* head_dim must be a multiple of 64 \(got 16"):
        IncrementalAttention(32, 8, 2, 2, batched=True, halves=1)
    with pytest.raises(SpecError, match=r"halves: n_heads \* head_dim must be a multiple of 256 \(got 128"):
        IncrementalAttention(32, 64, 2, 2, batched=True, halves=1, sums=True)
    with pytest.raises(SpecError, match=r"sums: needs bf16 digits and heads of whole chunks of 16 \(got sums=True"):
        IncrementalAttention(32, 8, 32, 2, batched=True, halves=1, sums=True)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("fields", [
    {"max_len": 1500, "head_dim": 128, "n_heads": 12, "kv_dtype": "f16", "programmatic": True},  # clusters of two
    {"max_len": 3000, "head_dim": 48, "n_heads": 16, "n_kv_heads": 1, "kv_dtype": "f16"},
], ids=str)  # fmt: skip
def test_sums_where_several_ctas_merge(mode: str, fields: dict[str, Any]) -> None:
    """Every one of them has whole chunks."""
    spec = IncrementalAttention(**{"n_kv_heads": 2, **fields}, batched=True, halves=3, sums=True)
    trial(spec, CpuDevice(mode=mode), target="sm_90", batch=8).require()
