"""Rope and RopeKvAppend against an independent oracle: angles in float64, at positions where f32 angles fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.idioms.rope.rotation import Rotation
from ptxgen.kernel import KernelType
from ptxgen.kernels import KvCacheScatter, Rope, RopeKvAppend
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial
from ptxgen.scales import dequantise

POSITIONS = (0, 1, 8191, 131071)
APPROXIMATE, PRECISE = 2.0**-20, 2.0**-23  # absolute error of sine and cosine
LLAMA3 = {"theta": 500000.0, "scaling": "llama3", "factor": 8.0}


def frequencies(dim: int, theta: float = 10000.0) -> np.ndarray:
    return np.array([theta ** (-2.0 * i / dim) for i in range(dim // 2)])


def llama3_frequencies(dim: int, theta: float, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """By wavelengths, as the model's authors describe it."""
    out = []
    for f in frequencies(dim, theta):
        wavelength = 2 * math.pi / f
        if wavelength < original / high:
            out.append(f)
        elif wavelength > original / low:
            out.append(f / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return np.array(out)


def rotated(x: np.ndarray, positions: Any, freqs: np.ndarray, style: str, magnitude: float = 1.0) -> np.ndarray:
    """Rows as complex numbers, times e^(i·angle)."""
    dim = 2 * freqs.size
    wide = x.astype(np.float64)
    turn = magnitude * np.exp(1j * np.multiply.outer(np.asarray(positions, np.float64), freqs))[:, None, :]
    out = wide.copy()
    if style == "norm":
        pairs = (wide[..., 0:dim:2] + 1j * wide[..., 1:dim:2]) * turn
        out[..., 0:dim:2], out[..., 1:dim:2] = pairs.real, pairs.imag
    else:
        pairs = (wide[..., : dim // 2] + 1j * wide[..., dim // 2 : dim]) * turn
        out[..., : dim // 2], out[..., dim // 2 : dim] = pairs.real, pairs.imag
    return out


def run(spec: KernelType, device: Device, target: str | None = None, **arguments: Any) -> dict[str, np.ndarray]:
    done = trial(spec, device, target=target, arguments=arguments, rows=arguments["q"].shape[0])
    return dict(done.require().outputs)


def errors(spec: Rope, device: Device, freqs: np.ndarray, magnitude: float = 1.0, target: str | None = None) -> float:
    """Largest error of unit vectors rotated to the anchor positions: that of sine and cosine, plus f32 rounding."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((len(POSITIONS), spec.n_heads, spec.head_dim)).astype(np.float32)
    got = run(spec, device, target, q=x, positions=np.array(POSITIONS, np.int32))["q"]
    want = rotated(x, POSITIONS, freqs, spec.style, magnitude)
    pairs = np.abs(x).max() * math.sqrt(2)
    return float(np.abs(got - want).max() / pairs)


# -- angles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize(("precise", "bound"), [(False, APPROXIMATE), (True, PRECISE)])
def test_angles_are_right_at_every_position(
    device: Device, style: str, precise: bool, bound: float, target: str
) -> None:
    spec = Rope(64, 2, style=style, theta=500000.0, precise=precise, batched=True)
    assert errors(spec, device, frequencies(64, 500000.0), target=target) < 2 * bound


def test_a_product_in_f32_would_not_be() -> None:
    """Why the angle is an integer: what f32 angles are off by at 131071."""
    freqs = frequencies(128)
    off = np.abs(np.float32(131071) * freqs.astype(np.float32) - 131071 * freqs).max()
    assert off > 1000 * APPROXIMATE


@pytest.mark.parametrize("position", [2**20 - 1, 2**30, 2**31 - 1, -1, -131071])
def test_far_and_negative_positions(device: Device, position: int) -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 32)).astype(np.float32)
    spec = Rope(32, 1, precise=True, indirect=True)  # the host's own must be a position
    got = run(spec, device, q=x, position=np.array([position], np.int32))["q"]
    freqs = np.array([math.fmod(position * f, 2 * math.pi) for f in frequencies(32)])  # float64 is off by 1e-7 itself
    assert np.abs(got - rotated(x, [1], freqs, "neox")).max() < 2e-6


def test_position_zero_leaves_the_row_as_it_is(device: Device) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 32)).astype(np.float32)
    for style in ("norm", "neox"):
        for precise in (False, True):
            got = run(Rope(32, 2, style=style, precise=precise), device, q=x, position=np.int32(0))["q"]
            assert np.array_equal(got, x)


@pytest.mark.parametrize("fields", [LLAMA3, {**LLAMA3, "factor": 32.0, "low_freq_factor": 1.5}])
def test_llama3_scaling(device: Device, fields: dict[str, Any]) -> None:
    spec = Rope(128, 1, precise=True, batched=True, **fields)
    freqs = llama3_frequencies(128, 500000.0, spec.factor, spec.low_freq_factor, 4.0, 8192)
    assert np.allclose(Rotation.of(spec).frequencies(), freqs, rtol=1e-14, atol=0)
    assert len(set(np.round(freqs / frequencies(128, 500000.0), 6))) > 3  # untouched, divided, and between
    assert errors(spec, device, freqs) < 2 * PRECISE


def test_linear_scaling_and_frequency_factors_and_attention_factor(device: Device) -> None:
    linear = Rope(32, 1, scaling="linear", factor=4.0, precise=True, batched=True)
    assert errors(linear, device, frequencies(32) / 4) < 2 * PRECISE
    divisors = tuple(1.0 + 0.25 * i for i in range(16))
    factors = Rope(32, 1, freq_factors=divisors, attention_factor=1.19, precise=True, batched=True)
    assert errors(factors, device, frequencies(32) / np.array(divisors), 1.19) < 3 * PRECISE


def test_the_table_is_the_frequency_in_turns() -> None:
    text = generate(Rope(128, 1), "sm_90").text
    words = [int(word, 16) for word in text.split("= {")[1].split("}")[0].replace(",", " ").split()]
    assert np.allclose(np.array(words, np.float64) / 2.0**64, frequencies(128) / (2 * np.pi), rtol=1e-15, atol=2.0**-64)


# -- layouts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"), [(8, None), (40, None), (40, 24), (64, 16), (80, 32), (96, None), (512, 8)]
)
def test_every_layout(
    device: Device, style: str, dtype: str, in_place: bool, head_dim: int, rotary_dim: int | None
) -> None:
    spec = Rope(head_dim, 5, 2, dtype=dtype, style=style, rotary_dim=rotary_dim, in_place=in_place, batched=True)
    trial(spec, device, rows=3).require()


@pytest.mark.parametrize("style", ["norm", "neox"])
def test_elements_beyond_rotary_dim_keep_their_bits(device: Device, style: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    x[..., 40:44] = np.float32([np.inf, -np.inf, np.nan, -0.0])
    for in_place in (False, True):
        spec = Rope(64, 3, rotary_dim=32, style=style, in_place=in_place)
        got = run(spec, device, q=x, position=np.int32(7))["q" if in_place else "q_out"]
        assert got[..., 32:].tobytes() == x[..., 32:].tobytes()
        assert not np.array_equal(got[..., :32], x[..., :32])


def test_positions_direct_indirect_and_batched_agree(device: Device) -> None:
    x = np.random.default_rng(0).standard_normal((3, 2, 32)).astype(np.float32)
    direct = run(Rope(32, 2), device, q=x, position=np.int32(100))["q"]
    indirect = run(Rope(32, 2, indirect=True), device, q=x, position=np.array([100], np.int32))["q"]
    batched = run(Rope(32, 2, batched=True), device, q=x, positions=np.array([100, 101, 102], np.int32))["q"]
    assert direct.tobytes() == indirect.tobytes() == batched.tobytes()


# -- fused with the append ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "e4m3"])
@pytest.mark.parametrize("style", ["norm", "neox"])
def test_append_of_rotated_rows(device: Device, target: str, kv_dtype: str, style: str) -> None:
    for more in (
        {}, {"indirect": True, "in_place": False}, {"indirect": True, "kept": True}, {"batched": True, "page_size": 8},
    ):  # fmt: skip
        spec = RopeKvAppend(40, 40, 6, 2, kv_dtype=kv_dtype, style=style, rotary_dim=16, **more)
        trial(spec, device, target=target, rows=3, pages=15).require()


@pytest.mark.parametrize("stacked", ["qk", "qkv"])
@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize("src_dtype", ["f32", "bf16"])
def test_append_of_heads_that_lie_in_one_row(device: Device, stacked: str, style: str, src_dtype: str) -> None:
    for more in (
        {},
        {"indirect": True, "kv_dtype": "f16", "out_dtype": "f16"},
        {"batched": True, "page_size": 8, "kv_dtype": "s8"},
    ):
        spec = RopeKvAppend(
            40, 40, 6, 2, style=style, rotary_dim=16, in_place=False, stacked=stacked, src_dtype=src_dtype, **more
        )
        trial(spec, device, target="sm_80", rows=3, pages=15).require()
    with pytest.raises(SpecError, match="stacked: needs in_place=False"):
        RopeKvAppend(40, 40, 6, 2, stacked=stacked)


def test_queries_of_kept_and_negative_positions_rotate(device: Device) -> None:
    """They are rows like others; their keys and values go nowhere."""
    spec = RopeKvAppend(40, 40, 6, 2, in_place=False, indirect=True, kept=True)
    for position, n_kept in ((-4, 0), (9, 13), (36, 38)):
        given = spec.example(np.random.default_rng(1), rows=7)
        given |= {"position": np.array([position], np.int32), "n_kept": np.array([n_kept], np.int32)}
        out = trial(spec, device, arguments=given, rows=7).require().outputs
        want = rotated(given["q"], list(range(position, position + 7)), frequencies(40), "neox")
        np.testing.assert_allclose(out["q_out"], want, rtol=0, atol=1e-5)
        for name in ("k_cache", "v_cache"):
            changed = np.flatnonzero((out[name] != given[name]).any((0, 2)))
            assert list(changed) == list(range(max(n_kept, 0), min(position + 7, 40)))


@pytest.mark.parametrize("head_dim", [8, 16, 128, 256])
@pytest.mark.parametrize("stacked", ["", "qk", "qkv"])
@pytest.mark.parametrize(("kv_dtype", "src_dtype"), [("f32", "f32"), ("f16", "bf16"), ("s8", "f32")])
def test_heads_are_normed_first(device: Device, head_dim: int, stacked: str, kv_dtype: str, src_dtype: str) -> None:
    """Those of q and of k, each with weights of its own; v stays as it is."""
    for more in ({}, {"batched": True, "norm_offset": 1.0, "eps": 0.01}):
        spec = RopeKvAppend(
            20, head_dim, 6, 2, style="norm", in_place=not stacked, stacked=stacked, kv_dtype=kv_dtype,
            src_dtype=src_dtype, qk_norm=True, **more,
        )  # fmt: skip
        trial(spec, device, target="sm_80", rows=3).require()


@pytest.mark.parametrize("mode", ["check", "random"])
def test_heads_are_normed_in_every_order(mode: str) -> None:
    for head_dim, heads in ((32, (6, 2)), (128, (3, 1)), (256, (2, 2))):
        spec = RopeKvAppend(20, head_dim, *heads, style="norm", rotary_dim=16, qk_norm=True)
        trial(spec, open_device("cpu", mode=mode), rows=3).require()


@pytest.mark.parametrize(("head_dim", "style"), [(24, "norm"), (512, "norm"), (64, "neox")])
def test_lanes_of_one_warp_norm_heads_whose_pairs_they_have(head_dim: int, style: str) -> None:
    with pytest.raises(SpecError, match=r"qk_norm: needs style='norm' and a head_dim of 8, 16, 32, 64, 128 or 256"):
        RopeKvAppend(20, head_dim, 6, 2, style=style, qk_norm=True)


@pytest.mark.parametrize("src_dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "s8", "e4m3"])
def test_fused_equals_rope_then_scatter(device: Device, src_dtype: str, kv_dtype: str) -> None:
    """The query bit for bit; the cache too where the rotated key is not rounded to src_dtype in between."""
    fused = RopeKvAppend(32, 64, 8, 2, kv_dtype=kv_dtype, src_dtype=src_dtype, **LLAMA3)
    given = fused.example(np.random.default_rng(2), rows=2, position=9)
    both = run(fused, device, **given) if kv_dtype != "s8" else _launch(fused, device, given)
    alone = Rope(64, 8, 2, dtype=src_dtype, **LLAMA3)
    rope = run(alone, device, q=given["q"], k=given["k"], position=given["position"])
    append = KvCacheScatter(32, 64, 2, kv_dtype=kv_dtype, src_dtype=src_dtype)
    rest = {n: v for n, v in given.items() if n != "q"}
    apart = dict(trial(append, device, arguments={**rest, "k": rope["k"]}, rows=2).require().outputs)
    assert both["q"].tobytes() == rope["q"].tobytes()
    assert both["v_cache"].tobytes() == apart["v_cache"].tobytes()
    if src_dtype == "f32":
        assert both["k_cache"].tobytes() == apart["k_cache"].tobytes()


def _launch(spec: RopeKvAppend, device: Device, given: dict[str, Any]) -> dict[str, np.ndarray]:
    """Outputs without a comparison of int8 values, of which one in thousands may round the other way."""
    return dict(trial(spec, device, arguments=given, rows=2).outputs)


def test_int8_cache_stands_for_the_rotated_rows(device: Device) -> None:
    spec = RopeKvAppend(16, 96, 4, 2, kv_dtype="s8", precise=True)
    given = spec.example(np.random.default_rng(4), rows=3, position=2)
    out = dict(trial(spec, device, arguments=given, rows=3).outputs)
    stored = dequantise(out["k_cache"], out["k_scales"])[:, 2:5].swapaxes(0, 1)
    want = rotated(given["k"], [2, 3, 4], frequencies(96), "neox")
    step = np.repeat(out["k_scales"][:, 2:5].astype(np.float32), 32, -1).swapaxes(0, 1)
    assert np.all(np.abs(stored - want) <= 0.501 * step)


@pytest.mark.parametrize("position", [-1, 32, 2**31 - 1])
def test_a_row_outside_the_cache_appends_nothing(device: Device, position: int) -> None:
    """Its query is rotated, as attention loads it whatever the length."""
    for style in ("norm", "neox"):
        spec = RopeKvAppend(32, 64, 4, 2, style=style, indirect=True)
        given = {**spec.example(np.random.default_rng(0)), "position": np.array([position], np.int32)}
        out = run(spec, device, **given)
        for name in ("k_cache", "v_cache"):
            assert out[name].tobytes() == given[name].tobytes(), name
        want = rotated(given["q"], [position], frequencies(64), style)
        np.testing.assert_allclose(out["q"], want, atol=1e-5)


def test_batched_rows_outside_leave_the_others_alone(device: Device) -> None:
    spec = RopeKvAppend(32, 64, 4, 2, batched=True, kv_dtype="f16")
    given = spec.example(np.random.default_rng(0), rows=3)
    out = run(spec, device, **{**given, "positions": np.array([5, -1, 31], np.int32)})
    np.testing.assert_allclose(out["q"], rotated(given["q"], [5, -1, 31], frequencies(64), "neox"), atol=1e-5)
    changed = np.argwhere((out["k_cache"] != given["k_cache"]).any((1, 3)))
    assert changed.tolist() == [[0, 5], [2, 31]]


# -- text and rules ----------------------------------------------------------------------------------------------------


def test_programmatic_reads_constants_before_the_wait_and_rows_after_it() -> None:
    spec = RopeKvAppend(4096, 128, 32, 8, kv_dtype="f16", src_dtype="f16", indirect=True, programmatic=True)
    ptx = generate(spec, "sm_90")
    table, wait = ptx.text.index("ld.global.nc"), ptx.text.index("griddepcontrol.wait")
    rows = ptx.text.index("ld.global.v4.b32")
    assert table < wait < rows
    assert ptx.launch.programmatic
    assert supports(spec, "sm_89").reasons == ("programmatic: needs sm_90 or later (got sm_89; nearest: False)",)


def test_one_token_is_one_wave() -> None:
    launch = generate(RopeKvAppend(4096, 128, 32, 8, kv_dtype="f16"), "sm_90").launch.at({"rows": 1})
    assert launch.grid == (1, 6, 1)
    assert launch.block == (128, 1, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"head_dim": 100}, "head_dim: must be a multiple of 8 from 8 to 512 (got 100; nearest: 96 or 104)"),
        ({"rotary_dim": 20}, "rotary_dim: must be a multiple of 8 from 8 to 64 (got 20; nearest: 16 or 24)"),
        ({"rotary_dim": 72}, "rotary_dim: must be a multiple of 8 from 8 to 64 (got 72; nearest: 64)"),
        ({"style": "gptj"}, "style: must be one of norm, neox (got gptj)"),
        ({"scaling": "yarn"}, "scaling: must be one of default, linear, llama3 (got yarn)"),
        ({"theta": 0.0}, "theta: must be from 1.0 to 1000000000000.0 (got 0.0; nearest: 1.0)"),
        ({"factor": 2.0}, "factor: must be 1 with scaling default (got 2.0; nearest: scaling linear)"),
        ({"freq_factors": (1.0,)}, "freq_factors: must be 32 divisors, one a pair (got 1)"),
        ({"freq_factors": "many"}, "freq_factors: must be a sequence of numbers (got 'many')"),
        (
            {"scaling": "llama3", "high_freq_factor": 1.0},
            "high_freq_factor: must be above low_freq_factor=1.0 (got 1.0)",
        ),
    ],
)
def test_an_illegal_spec_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as alone:
        Rope(**{"head_dim": 64, "n_heads": 4, **fields})
    with pytest.raises(SpecError) as fused:
        RopeKvAppend(**{"max_len": 64, "head_dim": 64, "n_heads": 4, "n_kv_heads": 2, **fields})
    assert reason in str(alone.value)
    assert reason in str(fused.value)


def test_query_heads_are_a_multiple_of_kv_heads() -> None:
    with pytest.raises(SpecError, match=r"n_heads: must be a multiple of n_kv_heads \(got n_heads=4, n_kv_heads=3"):
        RopeKvAppend(64, 64, 4, 3)
