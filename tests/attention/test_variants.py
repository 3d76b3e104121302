"""What a user adds without touching a kernel: a step of the score, sinks and slopes in prefill, rows of two widths, V
inside K. Each on the CPU executor against the one reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from ptxgen import generate
from ptxgen.attention.attention import Attention
from ptxgen.attention.cache import Cache
from ptxgen.attention.prefill.contract import Prefill as PrefillProblem
from ptxgen.attention.problem import Problem
from ptxgen.attention.reference import attend, cached_rows
from ptxgen.attention.variant import PerHead, Scores
from ptxgen.builder import Builder
from ptxgen.dtypes import dtype
from ptxgen.errors import SpecError
from ptxgen.idioms.convert import scratch
from ptxgen.kernel import KernelType, supports
from ptxgen.kernels import IncrementalAttention, MultiHeadAttention, PersistentStep
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target


def run(device: Device, where: str, one: KernelType) -> None:
    trial(one, device, target=where, arguments=one.example(np.random.default_rng(3))).require()


# -- a step of the score -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """score · sigmoid(t(h) · score); in units of log2 that is s / (1 + 2^(−t · s))."""

    temperature = PerHead("temperatures", "score_temperature", -1.0)

    @property
    def per_head(self) -> tuple[PerHead, ...]:
        return (self.temperature,)

    def apply(self, b: Builder, scores: Scores) -> None:
        gate = scratch(b, "score_gate", "f32")
        for minus_t, registers in scores.heads(self.temperature):
            for score in registers:
                b.op("mul.f32", gate, score, minus_t)
                b.op("ex2.approx.ftz.f32", gate, gate)
                b.op("add.f32", gate, gate, 1.0)
                b.op("rcp.approx.ftz.f32", gate, gate)
                b.op("mul.f32", score, score, gate)

    def reference(self, scores: np.ndarray, distance: np.ndarray, arguments: Any) -> np.ndarray:
        t = arguments["temperatures"].astype(np.float64)[:, None, None]
        return scores / (1 + np.exp(-t * scores))


def gated(attention: Attention) -> Attention:
    return replace(attention, variant=replace(attention.variant, more=(Gate(),)))


@dataclass(frozen=True, eq=False)
class GatedDecode(IncrementalAttention):
    @property
    def attention(self) -> Attention:
        return gated(super().attention)

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return super().given(rng, sizes) | {"temperatures": np.asarray(rng.uniform(0.25, 2, self.n_heads), np.float32)}


@dataclass(frozen=True, eq=False)
class GatedPrefill(MultiHeadAttention):
    @property
    def attention(self) -> Attention:
        return gated(super().attention)

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return super().given(rng, sizes) | {"temperatures": np.asarray(rng.uniform(0.25, 2, self.n_heads), np.float32)}


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("sm_80", {"head_dim": 64, "n_heads": 6, "n_kv_heads": 2, "q_dtype": "f16", "kv_dtype": "f16"}),
        (
            "sm_90",
            {"head_dim": 128, "n_heads": 12, "n_kv_heads": 1, "kv_dtype": "e4m3", "alibi": True, "batched": True},
        ),
        ("sm_75", {"head_dim": 32, "n_heads": 20, "n_kv_heads": 1, "soft_cap": 5.0, "sinks": True, "lse": True}),
    ],
)
def test_a_step_of_the_score_in_decode(device: Device, where: str, fields: dict[str, Any]) -> None:
    run(device, where, GatedDecode(max_len=100, **fields))


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("sm_80", {"head_dim": 64, "n_heads": 4, "n_kv_heads": 2, "lse": True}),
        ("sm_90", {"head_dim": 16, "n_heads": 3, "n_kv_heads": 1, "kv_dtype": "s8", "max_len": 32, "batched": True}),
        (
            "sm_75",
            {"head_dim": 40, "n_heads": 2, "n_kv_heads": 2, "kv_dtype": "f32", "layout": "heads", "causal": False},
        ),
    ],
)
def test_a_step_of_the_score_in_prefill(device: Device, where: str, fields: dict[str, Any]) -> None:
    run(device, where, GatedPrefill(**fields))


@dataclass(frozen=True, eq=False)
class GatedSlopes(GatedPrefill):
    """With slopes before the gate."""

    alibi: bool = False


@pytest.mark.parametrize(
    ("types", "fields"),
    [
        ("bf16", {"head_dim": 64, "lse": True}),
        ("f16", {"head_dim": 128, "alibi": True, "causal": False}),
        ("bf16", {"head_dim": 96, "alibi": True, "window": 20}),
        ("f16", {"head_dim": 64, "alibi": True, "soft_cap": 20.0, "max_len": 80, "batched": True, "page_size": 16}),
    ],
)
def test_steps_of_the_score_on_wgmma(device: Device, types: str, fields: dict[str, Any]) -> None:
    one = GatedSlopes(n_heads=4, n_kv_heads=2, q_dtype=types, kv_dtype=types, **fields)
    assert "wgmma.mma_async" in generate(one, "sm_90a").text
    run(device, "sm_90a", one)


def test_steps_of_the_score_in_wide_rows_go_through_mma_sync(device: Device) -> None:
    one = GatedSlopes(n_heads=2, n_kv_heads=1, head_dim=192, q_dtype="bf16", kv_dtype="bf16", alibi=True, causal=False)
    assert "wgmma" not in generate(one, "sm_90a").text
    run(device, "sm_90a", one)


@dataclass(frozen=True, eq=False)
class GatedStep(PersistentStep):
    @property
    def attention(self) -> Attention:
        whole = gated(super().attention)
        return replace(whole, variant=replace(whole.variant, alibi=True, soft_cap=8.0))

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        most = {"temperatures": 2.0, "alibi_slopes": 0.1}
        drawn = {name: np.asarray(rng.uniform(0.02, high, self.n_heads), np.float32) for name, high in most.items()}
        return super().given(rng, sizes) | drawn


@pytest.mark.parametrize(
    "more", [{"n_kv_heads": 2, "max_len": 80}, {"n_kv_heads": 1, "max_len": 300, "split_rows": 16, "group_parts": 2}]
)
def test_steps_of_the_score_in_a_persistent_step(device: Device, more: dict[str, Any]) -> None:
    one = GatedStep(
        n_layers=2, dim=64, hidden=96, n_heads=6, head_dim=16, vocab=100, ctas=9, shared_bytes=100_000, **more
    )
    plain = PersistentStep(**{f.name: getattr(one, f.name) for f in fields(one)})
    arguments = one.example(np.random.default_rng(3), position=one.max_len - 5)
    trial(one, device, target="sm_90", arguments=arguments).require()
    kept = {param.name: arguments[param.name] for param in plain.params() if param.name in arguments}
    apart = np.abs(one.reference(**arguments)["logits"] - plain.reference(**kept)["logits"])
    assert apart.max() > 0.1  # which the kernel without the steps would not pass


@pytest.mark.parametrize("more", [{"window": 8}, {"sinks": True}, {"causal": False}])
def test_a_persistent_step_refuses_what_positions_it_sees(more: dict[str, Any]) -> None:
    @dataclass(frozen=True, eq=False)
    class Refused(PersistentStep):
        @property
        def attention(self) -> Attention:
            whole = super().attention
            return replace(whole, variant=replace(whole.variant, **more))

    with pytest.raises(SpecError, match="attention: all positions are seen, without sinks and scales of heads"):
        generate(
            Refused(n_layers=1, dim=64, hidden=96, n_heads=4, n_kv_heads=2, head_dim=16, vocab=100, max_len=80, ctas=9),
            "sm_90",
        )


# -- fields of a variant in prefill ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prefill(MultiHeadAttention):
    alibi: bool = False


@pytest.mark.parametrize("more", [{"sinks": True}, {"alibi": True}, {"sinks": True, "alibi": True, "window": 9}])
@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("sm_80", {"head_dim": 64, "n_heads": 4, "n_kv_heads": 2, "lse": True}),
        ("sm_90", {"head_dim": 16, "n_heads": 3, "n_kv_heads": 1, "kv_dtype": "s8", "max_len": 32, "batched": True}),
        ("sm_75", {"head_dim": 64, "n_heads": 4, "n_kv_heads": 1, "soft_cap": 20.0, "lse": True}),
    ],
)
def test_sinks_and_slopes_in_prefill(device: Device, where: str, fields: dict[str, Any], more: dict[str, Any]) -> None:
    run(device, where, Prefill(**fields, **more))


# -- rows of two widths, and V inside K --------------------------------------------------------------------------------


def with_problem(attention: Attention, **fields: Any) -> Attention:
    return replace(attention, cache=replace(attention.cache, problem=replace(attention.problem, **fields)))


@dataclass(frozen=True, eq=False)
class TwoWidths(IncrementalAttention):
    """K's rows have head_dim elements, V's, and an output, `v_dim`."""

    v_dim: int = 8
    v_in_k: bool = False

    @property
    def attention(self) -> Attention:
        return with_problem(super().attention, v_dim=self.v_dim, v_in_k=self.v_in_k)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        length = int(np.ravel(a["seq_len"])[0])
        k, v = (rows[:, :length] for rows in cached_rows(self.attention, a, 0))
        values, _ = attend(self.attention, a["q"][:, None], k, v, length - 1, a)
        return {"out": values[:, 0].astype(self.q_dtype.numpy)}


@pytest.mark.parametrize("v_in_k", [False, True])
@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("sm_80", {"max_len": 300, "head_dim": 128, "v_dim": 64, "n_heads": 6, "n_kv_heads": 2, "kv_dtype": "f16"}),
        ("sm_90", {"max_len": 600, "head_dim": 192, "v_dim": 128, "n_heads": 16, "n_kv_heads": 1, "kv_dtype": "bf16"}),
        ("sm_80", {"max_len": 96, "head_dim": 64, "v_dim": 32, "n_heads": 8, "n_kv_heads": 1, "kv_dtype": "s8"}),
    ],
)
def test_rows_of_two_widths_and_v_inside_k(device: Device, where: str, fields: dict[str, Any], v_in_k: bool) -> None:
    one = TwoWidths(q_dtype="f16", indirect=True, v_in_k=v_in_k, **fields)
    assert ("v_cache" in {p.name for p in one.params()}) is not v_in_k
    run(device, where, one)


@pytest.mark.parametrize(("where", "kv_dtype"), [("sm_75", "f32"), ("sm_75", "f16"), ("sm_90", "f32")])
def test_decode_without_tensor_cores_refuses_two_widths_by_name(where: str, kv_dtype: str) -> None:
    one = TwoWidths(max_len=96, head_dim=64, v_dim=32, n_heads=2, n_kv_heads=1, kv_dtype=kv_dtype)
    width, cores = str(supports(one, where).reasons[0]).split("; kv_dtype")
    assert width == (
        "v_dim: must be qk_dim where tensor cores do not compute it (got v_dim=32, qk_dim=64; nearest: 64)"
    )
    assert cores == f": tensor cores take f16, bf16, e4m3, s8 from sm_80 on (got {kv_dtype} on {where})"
    with pytest.raises(SpecError, match="v_dim: must be qk_dim"):
        one.plan(target(where))


@dataclass(frozen=True, eq=False)
class TwoWidthsPrefill(MultiHeadAttention):
    v_dim: int = 64
    v_in_k: bool = False

    @property
    def attention(self) -> Attention:
        return with_problem(super().attention, v_dim=self.v_dim, v_in_k=self.v_in_k)


@pytest.mark.parametrize("where", ["sm_75", "sm_90"])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"v_dim": 32}, "v_dim: prefill takes rows of q, K, V and out of one width (got v_dim=32, qk_dim=64; "),
        ({"v_in_k": True}, "v_in_k: prefill reads V from its own buffer (got v_in_k=True; nearest: False)"),
    ],
)
def test_prefill_refuses_two_widths_and_v_inside_k(where: str, fields: dict[str, Any], reason: str) -> None:
    one = TwoWidthsPrefill(head_dim=64, n_heads=2, n_kv_heads=1, **fields)
    assert supports(one, where).reasons[0].startswith(reason)
    with pytest.raises(SpecError) as refused:
        PrefillProblem(one.attention)
    assert reason in str(refused.value)


def test_both_refuse_a_problem_with_other_query_positions() -> None:
    """`Problem.queries` is the one place that says how many there are."""

    class Several(IncrementalAttention):
        @property
        def attention(self) -> Attention:
            return with_problem(super().attention, queries=4)

    decode = Several(max_len=64, head_dim=64, n_heads=2, n_kv_heads=1)
    for where in ("sm_75", "sm_90"):
        refused = "queries: decode takes one query position of a sequence (got 4; nearest: 1)"
        assert supports(decode, where).reasons == (refused,)
    one = with_problem(MultiHeadAttention(head_dim=64, n_heads=2, n_kv_heads=1).attention, queries=1)
    with pytest.raises(SpecError, match="queries: prefill takes all positions of a prompt"):
        PrefillProblem(one)


@pytest.mark.parametrize(
    ("fields", "rows"),
    [({"queries": 1}, (6,)), ({"queries": "n", "by_token": True}, ("n", 6)), ({"queries": "n"}, (6, "n"))],
)
def test_a_problem_says_where_queries_and_outputs_lie(fields: dict[str, Any], rows: tuple[Any, ...]) -> None:
    one = Problem(6, 2, 64, 32, dtype("f16"), dtype("s8"), **fields)
    out, lse = one.outputs("batch", lse=True)
    assert (one.q("batch").shape, out.shape, lse.shape) == (
        ("batch", *rows, 64),
        ("batch", *rows, 32),
        ("batch", *rows),
    )
    assert (out.dtype.name, lse.dtype.name, out.access) == ("f16", "f32", "out")


@pytest.mark.parametrize("v_in_k", [False, True])
def test_a_cache_has_its_rows_from_the_problem(v_in_k: bool) -> None:
    cache = Cache(Problem(6, 2, 64, 32, dtype("f16"), dtype("s8"), v_in_k=v_in_k), 40)
    assert (cache.k.pitch, cache.v.dim, cache.v.pitch) == (64, 32, 64 if v_in_k else 32)
    assert [p.name for p in cache.params()] == ["k_cache", "k_scales"] if v_in_k else [
        "k_cache", "v_cache", "k_scales", "v_scales",
    ]  # fmt: skip


def test_prefill_takes_one_width() -> None:
    assert supports(TwoWidthsPrefill(head_dim=64, n_heads=2, n_kv_heads=1), "sm_75")
