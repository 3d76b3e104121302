"""Products, rotation and append of a token in one launch: against the parts, every format and cache, and the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.generator import _generate
from ptxgen.kernels import Gemv, QkvAppend, RopeKvAppend
from ptxgen.models.program import Pairs
from ptxgen.products.geometry.runs import Runs
from ptxgen.render import environment
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from ptxgen.weights import weight_formats

SHAPE: dict[str, Any] = {"max_len": 70, "head_dim": 32, "n_heads": 6, "n_kv_heads": 2, "k": 256}


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "e4m3"])
def test_every_cache(device: Device, kv_dtype: str, target: str) -> None:
    for more in ({}, {"ring": 64, "rotary_dim": 16, "bias": True}, {"v_weights": "q8_0", "norm": "rms"}):
        trial(QkvAppend(**SHAPE, kv_dtype=kv_dtype, precise=True, **more), device, target=target).require()


@pytest.mark.parametrize("name", sorted(weight_formats()))
def test_every_format_alone_and_beside_another(device: Device, name: str) -> None:
    other = "q4_k" if name != "q4_k" else "q6_k"
    for more in ({}, {"v_weights": other}):
        trial(QkvAppend(**SHAPE, weights=name, norm="rms", bias=True, **more), device, target="sm_90").require()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("v_weights", ["", "q6_k"])
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_in_any_order_of_threads_and_without_a_finding(mode: str, v_weights: str, target: str) -> None:
    spec = QkvAppend(**SHAPE, weights="q4_k", v_weights=v_weights, norm="rms", bias=True, kv_dtype="f16")
    trial(spec, CpuDevice(mode=mode), target=target).require()


def test_it_is_the_product_and_then_the_append(device: Device) -> None:
    """Bit for bit: the same sums, and the same rotation but for the sign of an angle."""
    fused = QkvAppend(**SHAPE, weights="bf16", norm="rms", precise=True, kv_dtype="f16")
    given = fused.example(np.random.default_rng(3), position=17)
    both = dict(trial(fused, device, arguments=given).require().outputs)
    gemv = Gemv(fused.n, fused.k, "bf16", norm="rms")
    rows = {name: given[name] for name in ("x", "weight", "norm_weight")}
    heads = trial(gemv, device, arguments=rows).require().outputs["out"].reshape(1, -1, 32)
    q, k, v = np.split(heads, [6, 8], 1)
    append = RopeKvAppend(70, 32, 6, 2, style="norm", precise=True, kv_dtype="f16", indirect=True)
    caches = {name: given[name] for name in ("k_cache", "v_cache", "position")}
    apart = dict(trial(append, device, arguments={"q": q, "k": k, "v": v, **caches}, rows=1).require().outputs)
    assert both["v_cache"].tobytes() == apart["v_cache"].tobytes()
    assert np.abs(both["q"] - apart["q"]).max() < 2e-6
    assert np.abs(both["k_cache"].astype(np.float32) - apart["k_cache"].astype(np.float32)).max() < 4e-3


@pytest.mark.parametrize("mode", ["check", "fast"])
def test_ctas_of_three_records_in_which_half_a_warp_has_no_result(mode: str) -> None:
    spec = QkvAppend(max_len=70, head_dim=128, n_heads=32, n_kv_heads=8, k=64, weights="bf16", bias=True)
    (runs,) = spec.geometries(target("sm_90"))
    assert isinstance(runs, Runs)
    assert runs.most == 3
    trial(spec, CpuDevice(mode=mode), target="sm_90").require()


@pytest.mark.parametrize("position", [-1, 70, 2**31 - 1])
@pytest.mark.parametrize("v_weights", ["", "q8_0"])
def test_a_position_outside_the_cache_writes_nothing(device: Device, position: int, v_weights: str) -> None:
    spec = QkvAppend(**SHAPE, v_weights=v_weights)
    given = {**spec.example(np.random.default_rng(0)), "position": np.array([position], np.int32)}
    given["q"] = np.ones((1, 6, 32), np.float32)
    out = trial(spec, device, arguments=given).outputs
    for name in ("q", "k_cache", "v_cache"):
        assert out[name].tobytes() == given[name].tobytes(), name


@pytest.mark.parametrize("heads", [(3, 1), (5, 5), (32, 8)])
def test_heads_that_fill_no_group_of_records(device: Device, heads: tuple[int, int]) -> None:
    for head_dim in (16, 48, 80):
        shape = {**SHAPE, "n_heads": heads[0], "n_kv_heads": heads[1], "head_dim": head_dim}
        for v_weights in ("", "q6_k"):
            trial(QkvAppend(**shape, weights="q4_k", v_weights=v_weights), device, target="sm_90").require()


def test_weights_are_asked_for_before_the_producer_is_waited_for_in_both_bodies() -> None:
    spec = QkvAppend(**SHAPE, weights="q4_k", v_weights="q6_k", norm="rms", programmatic=True)
    text = generate(spec, "sm_90").text
    before, of_v, of_qk = text.split("    griddepcontrol.wait")
    assert "ld.global.L1::no_allocate" in before
    assert "%qk_tile" in of_v.partition("$matrix_otherwise")[2]
    assert "ld.global.s32 %v_row_position" in of_v
    assert "ld.global.s32 %qk_row_position" in of_qk
    assert not supports(spec, "sm_89")


def test_pairs_are_neighbours_where_the_file_has_halves() -> None:
    assert Pairs(8, 8).order(16).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert Pairs(8, 4).order(8).tolist() == [0, 2, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"head_dim": 40}, "head_dim: must be a multiple of 16 from 16 to 512 (got 40; nearest: 32 or 48)"),
        ({"kv_dtype": "s8"}, "kv_dtype: must be one of f32, f16, bf16, e4m3 (got s8)"),
        ({"v_weights": "q9"}, "v_weights: must be one of"),
        ({"v_weights": "q4_k", "k": 64}, "k: must be a multiple of 256"),
    ],
)
def test_an_illegal_spec_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as refused:
        QkvAppend(**{**SHAPE, **fields})
    assert reason in str(refused.value)


def test_a_body_has_the_macros_that_its_skeleton_imports() -> None:
    environment.cache_clear()  # nothing is compiled
    text = _generate(QkvAppend(**SHAPE, weights="q4_k", v_weights="q6_k"), target("sm_90")).text
    assert text.count("    bar.sync 0;") == 4
