"""Products, rotation and append of a batch in one launch on wgmma: the parts, every cache, tails, pages, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.kernels import PackedGemm, PackedQkvAppend, RopeKvAppend
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial

WHERE = "sm_90a"
SHAPE: dict[str, Any] = {"max_len": 70, "head_dim": 32, "n_heads": 6, "n_kv_heads": 2, "k": 256, "tokens": 16}
UNITS: dict[str, Any] = {"x_dtype": "f16", "by_row": True}
OF_PRODUCT = ("x", "x_scales", "x_sums", "weight", "bias", "squares", "n_rows")

CASES: list[tuple[int, dict[str, Any]]] = [
    (15, {"kv_dtype": "bf16", "precision": "fast"}),
    (16, {"kv_dtype": "e4m3", "norm": "rms", "rotary_dim": 16, "programmatic": True}),
    (17, {"kv_dtype": "f16", "bias": True, "page_size": 16, "precise": True, "split": 2, "k": 512}),
    (9, {"page_size": 16, "page_layout": "nhd", "norm": "rms", "precision": "fast", "tokens": 8}),
    (11, {"ring": 64, "max_len": 100, "head_dim": 48, "bias": True, "norm": "rms"}),
    (33, {"head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "tokens": 32, "precision": "fast", "tile_rows": 128}),
    (31, {"tokens": 32, "precision": "fast", "tile_rows": 64, "split": 1, "slices": 2, "k": 512}),
    (32, {"tokens": 32, "precision": "fast", "tile_rows": 128, "share": 2}),
    (4, {"head_dim": 16, "n_heads": 1, "n_kv_heads": 1}),
    (65, {"tokens": 64, "precision": "fast", "weights": "e4m3_channel", "x_dtype": "e4m3", "k": 512}),
    (9, {**UNITS, "weights": "q4_k", "bias": True, "programmatic": True, "stream": True, "heads": "qk", "k": 512}),
    (20, {**UNITS, "weights": "q6_k", "heads": "v", "bias": True, "page_size": 16, "kv_dtype": "f16"}),
    (12, {**UNITS, "weights": "q8_0", "split": 2, "page_size": 32, "page_layout": "nhd", "kv_dtype": "bf16"}),
]


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(("rows", "fields"), CASES, ids=str)
def test_every_cache_in_any_order(mode: str, rows: int, fields: dict[str, Any]) -> None:
    trial(PackedQkvAppend(**{**SHAPE, **fields}), CpuDevice(mode=mode), target=WHERE, rows=rows).require()


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "fields"), CASES, ids=str)
def test_every_cache_on_a_gpu(rows: int, fields: dict[str, Any], gpu: Device) -> None:
    """And the same bytes twice."""
    spec = PackedQkvAppend(**{**SHAPE, **fields})
    first, second = (trial(spec, gpu, target=WHERE, rows=rows, seed=2).require().outputs for _ in range(2))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.parametrize("tokens", [8, 16, 32])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_tails_of_tiles(tokens: int, more: int) -> None:
    spec = PackedQkvAppend(**{**SHAPE, "tokens": tokens}, precision="fast", kv_dtype="f16", norm="rms")
    trial(spec, CpuDevice(mode="check"), target=WHERE, rows=tokens + more).require()


@pytest.mark.parametrize(
    "fields",
    [
        {"norm": "rms", "kv_dtype": "f16", "precise": True},
        {"kv_dtype": "e4m3", "precision": "fast", "bias": True, "rotary_dim": 16},
        {**UNITS, "weights": "int4_g128", "page_size": 16},
    ],
    ids=str,
)
def test_it_is_the_product_and_then_the_append(device: Device, fields: dict[str, Any]) -> None:
    """Bit for bit: the same sums, the same rotation."""
    if not device.target.name.startswith("sm_90"):
        pytest.skip(f"runs on sm_90a alone (this is {device.target})")
    fused = PackedQkvAppend(**SHAPE, **fields)
    given = fused.example(np.random.default_rng(3), rows=13)
    both = dict(trial(fused, device, target=WHERE, arguments=given, rows=13).require().outputs)
    product = {name: given[name] for name in OF_PRODUCT if name in given}
    heads = trial(fused.product, device, target=WHERE, arguments=product, rows=13).require().outputs["out"]
    own = ("max_len", "head_dim", "n_heads", "n_kv_heads", "kv_dtype", "precise", "page_size", "rotary_dim")
    append = RopeKvAppend(
        **{name: getattr(fused, name) for name in own}, style="norm", batched=True, in_place=False, stacked="qkv"
    )
    places = ("k_cache", "v_cache", "positions", "page_table", "n_pages")
    arguments = {"qkv": heads.reshape(13, -1, 32), **{name: given[name] for name in places if name in given}}
    apart = dict(trial(append, device, target=WHERE, arguments=arguments, rows=13).require().outputs)
    assert both["q"].tobytes() == apart["q_out"].tobytes()
    assert both["k_cache"].tobytes() == apart["k_cache"].tobytes()
    assert both["v_cache"].tobytes() == apart["v_cache"].tobytes()


def test_a_page_that_does_not_exist_takes_nothing() -> None:
    spec = PackedQkvAppend(**SHAPE, page_size=16, precision="fast")
    given = spec.example(np.random.default_rng(0), rows=3, pages=16)
    given["positions"] = np.array([5, 20, 40], np.int32)
    given["page_table"][:] = np.array([[0, 9, 9, 9, 9], [1, -1, 9, 9, 9], [2, 3, 16, 9, 9]], np.int32)
    out = trial(spec, CpuDevice(mode="check"), target=WHERE, arguments=given, rows=3, pages=16).require().outputs
    written = (out["k_cache"] != given["k_cache"]).any(axis=(1, 2, 3))
    assert list(np.flatnonzero(written)) == [0]


def test_its_tile_is_that_of_the_product() -> None:
    spec = PackedQkvAppend(**SHAPE, tile_rows=128, share=2, evict_first=True)
    wanted = PackedGemm(n=320, k=256, tokens=16, tile_rows=128, share=2, evict_first=True)
    assert spec.product == wanted
    assert spec.launch("sm_90a") == wanted.launch("sm_90a")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kv_dtype": "s8"}, r"kv_dtype: must be one of f32, f16, bf16, e4m3"),
        ({"head_dim": 24}, r"head_dim: must be a multiple of 16"),
        ({"k": 192, "weights": "q4_k"}, r"k: must be a multiple of 256 .* \(got 192"),
        ({"heads": "kv"}, r"heads: must be one of qkv, qk, v"),
        ({"tokens": 20}, r"tokens: must be one of 8, 16"),
    ],
)
def test_mistakes(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        PackedQkvAppend(**{**SHAPE, **fields})
