"""Models that norm heads of q and k, or what they add to the residual stream: their launches, and batches' results
beside the float64 model."""

from __future__ import annotations

import pytest

from ptxgen.kernels import DigitGemm
from ptxgen.models.step.decode import step_program
from ptxgen.runtime import Model
from ptxgen.runtime.cpu.device import CpuDevice
from tests.support.models.array_file import ArrayFile
from tests.support.models.batches import WIDE, has_models_tokens
from tests.support.models.families import random_weights, small_spec

PRODUCTS = ["o_proj", "gate_up", "down_proj"]
HEADS_NORMED = ["qkv", "rope_append", "attention", *PRODUCTS]
ADDED = ["o_proj", "post_attention_layernorm", "gate_up", "down_proj", "post_feedforward_layernorm"]


def with_digits(*before: str) -> list[str]:
    """`ADDED`, with digits made before some ops."""
    return [role for each in ADDED for role in ((f"{each}.digits", each) if each in before else (each,))]


@pytest.mark.parametrize(
    ("family", "slots", "mode", "precision", "format", "roles"),
    [
        ("qwen3", 3, "check", "exact", "bf16", HEADS_NORMED),
        ("qwen3", 8, "random", "fast", "bf16", HEADS_NORMED),
        ("qwen3", 5, "check", "exact", "q8_0", HEADS_NORMED),
        ("qwen3", 2, "random", "exact", "q4_k", HEADS_NORMED),
        ("qwen3", 17, "check", "fast", "bf16", HEADS_NORMED),
        ("gemma3_text", 3, "check", "exact", "q8_0", ["qkv.digits", "qkv", "rope_append", "attention"]),
        ("gemma3_text", 9, "random", "fast", "bf16", ["qkv.pack", "qkv", "rope_append", "attention"]),
        ("gemma2", 3, "random", "fast", "bf16", ["qkv.digits", "qkv_append", "attention", *with_digits("gate_up")]),
        ("olmo2", 3, "check", "exact", "q8_0", ["qkv.digits", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm"]),
        ("olmo2", 5, "random", "fast", "bf16", ["qkv.digits", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm"]),
        ("olmo2", 2, "random", "exact", "q4_k", ["qkv.digits", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm"]),
    ],
)  # fmt: skip
def test_batches(family: str, slots: int, mode: str, precision: str, format: str, roles: list[str]) -> None:
    """One product of q, k and v where heads are normed in the launch that rotates and appends; norms of what is added
    are one launch each, which adds."""
    spec = small_spec(family, **WIDE)
    file = ArrayFile(spec, random_weights(spec), format)
    batch = Model(file, CpuDevice(mode=mode), "f32", chunk=1, precision=precision).batch(slots=slots)
    batch.cache.zero()  # rows past a length are loaded early
    assert [op.role for op in batch._step.program.ops if op.layer == 1][: len(roles)] == roles
    has_models_tokens(batch, file, max(1, slots - 1), 3, precision)


@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_one_sequence(step: str) -> None:
    """Heads of 24 are no power of two of lanes: their norms are launches."""
    rows = {"decode": 1, "prefill": 3}[step]
    for family, head_dim, norms in (
        ("qwen3", 32, 0),
        ("gemma3_text", 24, 2),
        ("gemma3_text", 256, 0),
        ("olmo2", 32, 2),
    ):
        made = step_program(small_spec(family, head_dim=head_dim), "f16", step, rows=rows, target="sm_90a")
        roles = [op.role for op in made.ops if op.layer == 1]
        assert sum(role in ("q_norm", "k_norm") for role in roles) == norms
        assert not any(op.spec.kernel_name == "residual_add" for op in made.ops)


@pytest.mark.parametrize(
    ("family", "changes", "kv_dtype", "hidden", "halves"),
    [
        ("mistral", {}, "f16", 8192, True),  # 3 · 2^24 weights of gate and up
        ("mistral", {}, "f16", 8448, False),
        ("mistral", {}, "s8", 8192, False),  # keys and values are appended by a launch
        ("mistral", {"head_dim": 120}, "f16", 8192, False),
        ("qwen3", {}, "f16", 8192, False),
        ("gemma2", {}, "f16", 8192, False),
        ("qwen3", {}, "f16", 5120, True),
        ("gemma2", {}, "f16", 5376, True),
        ("gemma2", {}, "f16", 5632, False),
    ],
)
def test_exact_k_quants_are_bf16_digits_by_launches_and_weights(
    family: str, changes: dict[str, int], kv_dtype: str, hidden: int, halves: bool
) -> None:
    shape = {"hidden_size": 3072, "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 8} | changes
    spec = small_spec(family, **shape, intermediate_size=hidden, num_hidden_layers=1)
    made = step_program(spec, "q4_k", "batch", rows=8, kv_dtype=kv_dtype, target="sm_90a")
    (gate,) = [op.spec for op in made.ops if op.role == "gate_up"]
    assert isinstance(gate, DigitGemm)
    assert gate.halves == halves
