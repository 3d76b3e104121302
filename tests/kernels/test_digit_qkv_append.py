"""Products, rotation and append of a few tokens in one launch: against the parts, every cache, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.kernels import DigitGemm, DigitQkvAppend, RopeKvAppend
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial

WHERE = "sm_90"
SHAPE: dict[str, Any] = {"max_len": 70, "head_dim": 32, "n_heads": 6, "n_kv_heads": 2, "k": 256}


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (2, {"kv_dtype": "bf16", "precision": "fast"}),
        (3, {"kv_dtype": "e4m3", "norm": "rms", "rotary_dim": 16, "programmatic": True}),
        (8, {"kv_dtype": "f16", "bias": True, "page_size": 16, "precise": True, "split": 2, "k": 512}),
        (5, {"page_size": 16, "page_layout": "nhd", "norm": "rms", "precision": "fast"}),
        (9, {"ring": 64, "max_len": 100, "head_dim": 48, "bias": True, "norm": "rms"}),
        (7, {"head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "norm": "rms"}),  # CTAs of three records, others of two
        (4, {"head_dim": 16, "n_heads": 1, "n_kv_heads": 1}),
        (8, {"weights": "q4_k", "norm": "rms", "bias": True, "programmatic": True}),
        (3, {"weights": "q5_k", "heads": "qk", "bias": True, "split": 2, "k": 512, "precision": "fast"}),
        (6, {"weights": "q6_k", "heads": "v", "bias": True, "norm": "rms", "page_size": 16, "precision": "fast"}),
        (8, {"weights": "q6_k", "heads": "v", "head_dim": 128, "n_heads": 24, "n_kv_heads": 24, "bias": True}),
    ],
    ids=str,
)
def test_every_cache_in_any_order(mode: str, rows: int, fields: dict[str, Any]) -> None:
    trial(DigitQkvAppend(**{**SHAPE, **fields}), CpuDevice(mode=mode), target=WHERE, rows=rows).require()


def test_it_is_the_product_and_then_the_append(device: Device) -> None:
    """Bit for bit: the same sums, and the same rotation but for the sign of an angle."""
    if not device.target.name.startswith("sm_90"):
        pytest.skip(f"runs on sm_90 alone (this is {device.target})")
    fused = DigitQkvAppend(**SHAPE, precise=True, kv_dtype="f16", norm="rms")
    given = fused.example(np.random.default_rng(3), rows=5)
    both = dict(trial(fused, device, target=WHERE, arguments=given, rows=5).require().outputs)
    rows = {name: given[name] for name in ("x", "weight", "squares", "n_rows")}
    product = DigitGemm(fused.n, 256, "bf16", norm="rms")
    heads = trial(product, device, target=WHERE, arguments=rows, rows=5).require().outputs["out"]
    append = RopeKvAppend(70, 32, 6, 2, style="norm", precise=True, kv_dtype="f16", batched=True, in_place=False,
                          stacked="qkv")  # fmt: skip
    caches = {name: given[name] for name in ("k_cache", "v_cache", "positions")}
    arguments = {"qkv": heads.reshape(5, -1, 32), **caches}
    apart = dict(trial(append, device, target=WHERE, arguments=arguments, rows=5).require().outputs)
    assert both["v_cache"].tobytes() == apart["v_cache"].tobytes()
    assert np.abs(both["q"] - apart["q_out"]).max() < 2e-6
    assert np.abs(both["k_cache"].astype(np.float32) - apart["k_cache"].astype(np.float32)).max() < 4e-3


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(("weights", "heads"), [("q4_k", "qk"), ("q6_k", "v"), ("q5_k", "qkv")])
def test_rows_of_some_heads(device: Device, weights: str, heads: str, precision: str) -> None:
    """As mixes of K-quants have them: values in another format than queries and keys."""
    if not device.target.name.startswith("sm_90"):
        pytest.skip(f"runs on sm_90 alone (this is {device.target})")
    spec = DigitQkvAppend(**SHAPE | {"k": 1536}, weights=weights, heads=heads, bias=True, norm="rms",
                          kv_dtype="f16", precision=precision, programmatic=True)  # fmt: skip
    trial(spec, device, target=WHERE, rows=7).require()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kv_dtype": "s8"}, r"kv_dtype: must be one of f32, f16, bf16, e4m3"),
        ({"head_dim": 24}, r"head_dim: must be a multiple of 16"),
        ({"k": 200}, r"k: must be a multiple of 64 .* \(got 200"),
        ({"k": 192, "weights": "q4_k"}, r"k: must be a multiple of 256 .* \(got 192"),
        ({"precision": "e4m3"}, r"precision: must be one of exact, fast"),
    ],
)
def test_mistakes(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        DigitQkvAppend(**{**SHAPE, **fields})
