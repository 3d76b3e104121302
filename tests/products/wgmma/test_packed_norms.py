"""A norm that is divided out of packed products: what a product leaves for it, and what reads that."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.dtypes import bf16
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.products.wgmma.epilogue import norms
from ptxgen.products.wgmma.tiling.geometry import VECTOR, Geometry
from ptxgen.products.wgmma.tokens import layout
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.weights.format import TILE_ROWS
from tests.support.norm_chain import Chain, N, assert_as_exact_as_a_norm_before
from tests.support.packed_products import EXACT, FAST, WHERE, tried

LIMITS = {"exact": EXACT, "fast": FAST}


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (17, {"n": 70, "k": 512, "tokens": 16, "norm": "rms", "programmatic": True, "split": 4}),
        (15, {"n": 33, "k": 1536, "tokens": 16, "norm": "rms", "eps": 0.1, "bias": True, "indirect": True}),
        (63, {"n": 256, "k": 256, "tokens": 64, "norm": "rms", "gated": True, "activation": "silu",
              "packed_out": True}),
        (65, {"n": 136, "k": 256, "tokens": 64, "norm": "rms", "out_dtype": "bf16", "activation": "gelu"}),
        (9, {"n": 256, "k": 64, "tokens": 8, "residual": True, "norm_out": True}),
        (9, {"n": 192, "k": 64, "tokens": 8, "residual": True, "norm_out": True, "tile_rows": 128, "split": 1}),
        (17, {"n": 320, "k": 320, "tokens": 16, "norm": "rms", "residual": True, "norm_out": True, "split": 2}),
        (31, {"n": 512, "k": 512, "tokens": 32, "residual": True, "norm_out": True, "norm_offset": 1.0, "split": 3}),
        (33, {"n": 256, "k": 256, "tokens": 32, "norm": "rms", "residual": True, "norm_out": True, "bias": True}),
        (33, {"n": 256, "k": 512, "tokens": 32, "weights": "int4_g128", "norm": "rms", "residual": True,
              "norm_out": True, "programmatic": True}),
        (17, {"n": 256, "k": 512, "tokens": 16, "weights": "e4m3_channel", "norm": "rms", "tile_rows": 192}),
    ],
    ids=str,
)  # fmt: skip
def test_ragged_shapes_and_fusions(
    mode: str, precision: str, rows: int, fields: dict[str, Any], few_processors: None
) -> None:
    tried(PackedGemm(precision=precision, **fields), mode, rows, LIMITS[precision])


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("more", [{"norm": "rms"}, {"residual": True, "norm_out": True}], ids=str)
def test_warpgroups_that_share_k(mode: str, more: dict[str, Any], few_processors: None) -> None:
    """Each finishes tokens of its own."""
    fields: dict[str, Any] = {"precision": "fast", "tile_rows": 64, "split": 1, "slices": 2}
    tried(PackedGemm(n=256, k=512, tokens=32, **fields, **more), mode, 33, FAST)


@pytest.mark.parametrize("mode", ["check", "random"])
def test_roots_are_found_anew_for_other_tokens(mode: str, few_processors: None) -> None:
    """A CTA has tiles of the same tokens, and then of others."""
    spec = PackedGemm(n=320, k=256, tokens=8, norm="rms", precision="fast", split=1, tile_rows=64)
    at = Geometry.of(spec)
    assert at.row_groups > 1
    assert 4 * at.row_groups > 2 * at.most_turns
    tried(spec, mode, 31, FAST)


@pytest.mark.parametrize("wide", [False, True])
def test_roots_of_rows_that_are_longer_than_a_load(wide: bool) -> None:
    """A lane asks for a token's squares several times, and for some tokens after the others; where warps give registers
    up, even of one token not all are on their way at once."""
    fields: dict[str, Any] = {"precision": "exact", "tile_rows": 128} if wide else {"precision": "fast"}
    spec = PackedGemm(n=64, k=2304, tokens=16, norm="rms", split=1, **fields)
    assert Geometry.of(spec).wide == wide
    loads = spec.k // TILE_ROWS / (norms.LANES * VECTOR)
    assert norms.FEWER_LOADS < loads < norms.MOST_LOADS < loads * spec.tokens // norms.TOKENS
    tried(spec, "random", 15, LIMITS[spec.precision])


CHAIN = Chain(
    partial(PackedGemm, tokens=16), lambda precision: PackTokens(N, 16, norm="rms", precision=precision),
    lambda rows, precision: layout.pack(rows, 16, bf16, layout.DIGITS[precision]), (13, N // 16), 13, WHERE,
)  # fmt: skip


@pytest.mark.parametrize(("scale", "shape"), [
    (1e-3, {}), (1.0, {"split": 3}), (1e9, {"tile_rows": 128}), (1e9, {"weights": "int4_g128"}),
    (1.0, {"tile_rows": 64, "split": 1, "slices": 2}),
], ids=str)  # fmt: skip
def test_a_norm_divided_out_is_as_exact_as_one_before(device: Device, scale: float, shape: dict[str, Any]) -> None:
    assert_as_exact_as_a_norm_before(CHAIN, device, scale, LIMITS, **shape)


def test_tokens_past_the_last_are_zero() -> None:
    spec = PackedGemm(n=256, k=64, tokens=16, bias=True, residual=True, norm_out=True)
    out = trial(spec, CpuDevice(mode="check"), target=WHERE, rows=40, n_rows=3).require().outputs
    found = layout.unpack(out["digits"][:1], 16, 256)
    assert found[:3].all()
    assert not found[3:].any()
    assert out["out_squares"][:3].all()
    assert np.isnan(out["out_squares"][3:]).all()
    assert np.isnan(out["digits"][1:].astype(np.float32)).all()


def test_no_row_is_a_size_as_others() -> None:
    for more in ({"norm": "rms"}, {"residual": True, "norm_out": True}):
        tried(PackedGemm(n=256, k=256, tokens=8, **more), "check", 7, None, n_rows=0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"norm_out": True}, r"norm_out: needs a residual stream \(got residual=False; nearest: residual=True\)"),
        ({"norm": "layer"}, r"norm: must be one of '', rms"),
        ({"eps": 2.0}, r"eps: must be from 0.0 to 1.0 \(got 2.0; nearest: 1.0\)"),
        ({"norm_offset": 17.0}, r"norm_offset: must be from -16.0 to 16.0 \(got 17.0; nearest: 16.0\)"),
        ({"n": 200, "norm_out": True, "residual": True}, r"norm_out: needs n a multiple of 64 \(got 200; nearest"),
        ({"k": 336, "norm": "rms"}, r"norm: needs k a multiple of 64 \(got 336; nearest: norm=''\)"),
        ({"tokens": 96, "norm": "rms"}, r"norm: is for at most 64 tokens \(got tokens=96; nearest: norm=''\)"),
        ({"x_dtype": "f16", "norm": "rms"}, r"norm: needs bf16, which has f32's range \(got x_dtype=f16; nearest"),
        ({"stream": True, "norm": "rms"}, r"norm: is for whole tiles \(got stream=True; nearest: stream=False\)"),
        ({"carried": True, "out_dtype": "bf16", "tokens": 64, "norm": "rms"}, "carried: is for tokens that are normed"),
        ({"norm_out": True, "residual": True, "gated": True, "activation": "silu"}, "norm_out: no product of gate"),
    ],
)
def test_mistakes(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        PackedGemm(**{"n": 256, "k": 256, "tokens": 16, "precision": "fast", **fields})
