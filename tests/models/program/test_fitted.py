"""On a device with fewer multiprocessors a step has no product whose CTAs would wait for some that cannot run."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ptxgen.kernels import PackedGemm
from ptxgen.models.program import Program
from ptxgen.models.step.decode import step_program
from ptxgen.models.step.fitted import fitted
from ptxgen.models.step.products import TILE
from ptxgen.products.wgmma.tiling.shape import PROCESSORS
from ptxgen.targets import target
from tests.support.models.families import small_spec

WIDE = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip


def _together(program: Program) -> list[str]:
    return [op.name for op in program.ops if op.spec.launch(target("sm_90a")).together]


@pytest.mark.parametrize(
    ("weights", "precision", "rows", "more"),
    [
        ("q4_k", "exact", 16, {}),
        ("bf16", "fast", 192, {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 2}),
        ("bf16", "fast", 1024, {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 2}),
    ],
)
def test_no_product_waits_for_ctas_that_do_not_run(
    weights: str, precision: str, rows: int, more: dict[str, int]
) -> None:
    model = small_spec("llama", **WIDE | more)
    program = step_program(model, weights, "prefill", rows=rows, kv_dtype="f16", target="sm_90a", precision=precision)
    assert _together(program)
    assert fitted(program, PROCESSORS) is program
    fewer = fitted(program, 114)
    assert _together(fewer) == []
    assert [op.name for op in fewer.ops] == [op.name for op in program.ops]
    assert {t.name for t in program.of_kind("weight")} == {t.name for t in fewer.of_kind("weight")}
    for op in (op for op, was in zip(fewer.ops, program.ops, strict=True) if op is not was):
        alone = {"stream": False, "by_memory": False, "last_split": 0}
        given = {each.name: getattr(op.spec, each.name) for each in fields(op.spec) if each.name not in TILE}
        assert PackedGemm.best(op.sizes["rows"], **given, **alone) == op.spec


@pytest.mark.parametrize(("rows", "hidden", "intermediate"), [(192, 5120, 13824), (128, 1536, 8960), (64, 2560, 9728)])
def test_products_have_the_tiles_that_best_takes(rows: int, hidden: int, intermediate: int) -> None:
    """All that it says of a tile, sums by memory among it."""
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": 2}
    program = step_program(
        small_spec("llama", **WIDE | sizes), "bf16", "prefill", rows=rows, kv_dtype="f16", target="sm_90a",
        precision="fast", programmatic=True,
    )  # fmt: skip
    # behind the last layer's attention there is one row
    packed = [op.spec for op in program.ops if isinstance(op.spec, PackedGemm) and op.spec.tokens > 8]
    assert any(spec.by_memory for spec in packed) == (rows > 64)
    for spec in packed:
        given = {each.name: getattr(spec, each.name) for each in fields(spec) if each.name not in TILE}
        assert PackedGemm.best(rows, **given) == spec


@pytest.mark.parametrize("invariant", [False, True])
def test_rows_of_invariant_batches_are_summed_alike(invariant: bool) -> None:
    """Of no tile is k shared because it is of the last turn: a row's bits would depend on where it is."""
    model = small_spec("llama", **WIDE | {"hidden_size": 17152, "intermediate_size": 8192, "num_hidden_layers": 2})
    program = step_program(
        model, "bf16", "batch", rows=256, kv_dtype="f16", target="sm_90a", precision="fast", batch_invariant=invariant,
    )  # fmt: skip
    packed = [op.spec for op in program.ops if isinstance(op.spec, PackedGemm)]
    assert any(spec.last_split for spec in packed) != invariant
    more = {"last_split": 0} if invariant else {}
    (o_proj,) = {op.spec for op in program.ops if op.role == "o_proj"}
    given = {each.name: getattr(o_proj, each.name) for each in fields(o_proj) if each.name not in (*TILE, "tokens")}
    assert PackedGemm.best(256, **given, **more) == o_proj
