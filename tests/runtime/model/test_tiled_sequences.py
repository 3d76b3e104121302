"""Models of nine to 64 sequences, whose products and attention leave rows in the tiles that the next product reads."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen.kernels import PackedGemm, PackedQkvAppend
from ptxgen.models.program import Program
from ptxgen.models.step.decode import step_program
from ptxgen.models.step.product_inputs import ProductInputs
from ptxgen.runtime import Model
from ptxgen.runtime.cpu.device import CpuDevice
from tests.support.models.array_file import ArrayFile
from tests.support.models.batches import WIDE, has_models_tokens
from tests.support.models.families import random_weights, small_spec

FIVE = ["qkv_append", "attention", "o_proj", "gate_up", "down_proj"]


def program(family: str, slots: int, precision: str, format: str, **changes: object) -> Program:
    """The step of a small model's batch."""
    spec = small_spec(family, **{**WIDE, **changes})
    model = Model(ArrayFile(spec, random_weights(spec), format), CpuDevice(mode="fast"), "f32", precision=precision)
    return model.program("batch", slots)


def roles(steps: Program, layer: int) -> list[str]:
    return [op.role for op in steps.ops if op.layer == layer]


@pytest.mark.parametrize(
    ("slots", "mode", "precision", "format"),
    [
        (9, "check", "fast", "bf16"), (17, "random", "fast", "bf16"), (16, "random", "exact", "bf16"),
        (33, "check", "fast", "int4_g128"), (10, "random", "fast", "e4m3_channel"),
    ],
)  # fmt: skip
def test_no_launch_norms_or_packs(slots: int, mode: str, precision: str, format: str) -> None:
    """Five launches a layer but for the first one's norm; free slots disturb nobody."""
    spec = small_spec("llama", **WIDE)
    file = ArrayFile(spec, random_weights(spec), format)
    batch = Model(file, CpuDevice(mode=mode), "f32", chunk=1, precision=precision).batch(slots=slots)
    batch.cache.zero()  # rows past a length are loaded early
    steps = batch._step.program
    assert roles(steps, 0) == ["qkv.pack", *FIVE]
    assert roles(steps, 1) == FIVE
    assert "lm_head.pack" not in roles(steps, -1)
    has_models_tokens(batch, file, slots - 1, 3, precision)


@pytest.mark.parametrize("more", [0, 1])
def test_attention_waits_for_the_last_of_q_k_and_v_where_keys_are_many(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of values in a format of their own the launch of q and k lets the next begin."""
    spec = small_spec("llama", **WIDE)
    kv_width = spec.shape.n_kv_heads * spec.shape.head_dim
    monkeypatch.setattr("ptxgen.models.step.attention.MANY_KEYS", 17 * kv_width + more)
    formats = {name: "q4_k" for name, shape in spec.tensors().items() if len(shape) == 2}
    formats |= {"layers.1.v_proj": "q6_k"}
    steps = step_program(spec, formats, "batch", rows=17, target="sm_90a", precision="fast")
    found = [[(op.role, op.spec.holds) for op in steps.ops
              if op.layer == layer and isinstance(op.spec, PackedQkvAppend)] for layer in (0, 1)]  # fmt: skip
    holds = not more
    assert found == [[("qkv_append", holds)], [("qk_append", False), ("v_append", holds)]]


@pytest.mark.parametrize(("kv_dtype", "changes"), [("s8", {}), ("f16", {"head_dim": 24})])
def test_what_the_product_cannot_append_a_launch_does(kv_dtype: str, changes: dict[str, int]) -> None:
    spec = small_spec("llama", **{**WIDE, **changes})
    fields: dict[str, Any] = {"rows": 9, "target": "sm_90a", "precision": "fast", "kv_dtype": kv_dtype}
    assert roles(step_program(spec, "bf16", "batch", **fields), 1)[:2] == ["qkv", "rope_append"]


def test_norms_behind_a_product_are_launches() -> None:
    """Gemma 2 norms what it adds; its attention leaves tiles, as others' does."""
    steps = program("gemma2", 9, "fast", "bf16")
    assert {"qkv.pack", "gate_up.pack"} <= set(roles(steps, 1))
    assert "o_proj.pack" not in roles(steps, 1)
    assert not any(getattr(op.spec, "norm_out", False) for op in steps.ops)


@pytest.mark.parametrize(
    ("slots", "precision", "format"),
    [(16, "fast", "q4_k"), (9, "e4m3", "e4m3_channel"), (65, "fast", "bf16"), (9, "exact", "int4_g128")],
)
def test_rows_in_units_of_their_own_and_many_rows_are_packed(slots: int, precision: str, format: str) -> None:
    steps = program("llama", slots, precision, format)
    assert not any(getattr(op.spec, "norm_out", False) or getattr(op.spec, "tile_tokens", 0) for op in steps.ops)


@pytest.mark.parametrize(("slots", "mode", "precision"), [(9, "check", "fast"), (17, "random", "exact")])
def test_rows_that_end_within_a_block(slots: int, mode: str, precision: str) -> None:
    """Tiles that attention and products leave have zeros behind such rows, in memory that all layers share."""
    spec = small_spec("llama", **{**WIDE, "hidden_size": 320, "head_dim": 80})
    file = ArrayFile(spec, random_weights(spec), "bf16")
    batch = Model(file, CpuDevice(mode=mode), "f32", chunk=1, precision=precision).batch(slots=slots)
    batch.cache.zero()
    assert roles(batch._step.program, 1) == FIVE
    has_models_tokens(batch, file, slots - 1, 3, precision)


def test_rows_that_are_no_whole_loads_of_squares_are_packed() -> None:
    """Of 64 columns a lane loads the squares together."""
    steps = program("llama", 9, "fast", "bf16", hidden_size=336, head_dim=80)
    assert "gate_up.pack" in roles(steps, 1)
    assert "o_proj.pack" not in roles(steps, 1)


def test_invariant_batches_round_alike_however_many_there_are() -> None:
    """Their rows are normed before they are rounded, up to eight of them and beyond."""
    spec = small_spec("llama", **WIDE)
    fields = {"target": "sm_90a", "precision": "fast", "batch_invariant": True}
    few, more = (step_program(spec, "bf16", "batch", rows=rows, **fields) for rows in (8, 9))
    assert roles(few, 1) == roles(more, 1)
    assert "gate_up.pack" in roles(more, 1)


@pytest.mark.parametrize(
    ("gate", "down", "precision", "leaves"),
    [
        ("int4_g128", "bf16", "fast", True), ("bf16", "q4_k", "fast", False), ("q4_k", "bf16", "fast", False),
        ("bf16", "e4m3_channel", "e4m3", False), ("e4m3_channel", "bf16", "e4m3", False),
    ],
)  # fmt: skip
def test_gate_and_up_leave_tiles_where_down_reads_such(gate: str, down: str, precision: str, leaves: bool) -> None:
    """Of K-quants and of e4m3 rows have units of their own."""
    spec = small_spec("llama", **WIDE)
    formats = {name: "bf16" for name, shape in spec.tensors().items() if len(shape) == 2}
    for layer in range(2):
        made = {"gate_proj": gate, "up_proj": gate, "down_proj": down}
        formats |= {f"layers.{layer}.{name}": of for name, of in made.items()}
    steps = step_program(spec, formats, "batch", rows=9, target="sm_90a", precision=precision)
    product = next(op.spec for op in steps.ops if op.role == "gate_up")
    assert isinstance(product, PackedGemm)
    assert product.packed_out == leaves
    assert ("down_proj.pack" in roles(steps, 1)) == (not leaves)


def test_gate_and_up_of_two_formats_are_apart() -> None:
    """And what they make is packed; so it is where rows are no whole tiles, though of one product."""
    fields: dict[str, Any] = {"rows": 9, "target": "sm_90a", "precision": "fast"}
    spec = small_spec("llama", **WIDE)
    formats = {name: "bf16" for name, shape in spec.tensors().items() if len(shape) == 2}
    steps = step_program(spec, formats | {"layers.1.up_proj": "int4_g128"}, "batch", **fields)
    assert roles(steps, 1)[-5:] == ["gate_proj", "up_proj", "activation", "down_proj.pack", "down_proj"]
    ragged = step_program(small_spec("llama", **{**WIDE, "intermediate_size": 520}), "bf16", "batch", **fields)
    assert roles(ragged, 1)[-3:] == ["gate_up", "down_proj.pack", "down_proj"]


@pytest.mark.parametrize(
    ("n", "packs"),
    [(512, ["qkv"]), (768, ["qkv", "gate_up", "lm_head"]), (131, ["lm_head"])],
    ids=("qkv", "gate_up", "head"),
)
def test_tiles_of_as_many_tokens_as_the_next_product_has(
    n: int, packs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the product with n rows has tiles of more tokens, so has what reads its results."""
    monkeypatch.setattr(ProductInputs, "_tile_tokens", lambda _self, _kinds, rows, _k, **_: 32 if rows == n else 16)
    spec = small_spec("llama", **{**WIDE, "intermediate_size": 768})
    steps = step_program(spec, "bf16", "batch", rows=9, target="sm_90a", precision="fast")
    assert [op.role for op in steps.ops if op.role.endswith(".pack") and op.layer] == [f"{each}.pack" for each in packs]
