"""On a device with fewer multiprocessors a step has no product whose CTAs would wait for some that cannot run."""

from __future__ import annotations

import pytest

from ptxgen.models.program import Program
from ptxgen.models.step.decode import step_program
from ptxgen.models.step.fitted import fitted
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
    [("q4_k", "exact", 16, {}), ("bf16", "fast", 192, {"hidden_size": 5120, "intermediate_size": 13824})],
)
def test_no_product_waits_for_ctas_that_do_not_run(
    weights: str, precision: str, rows: int, more: dict[str, int]
) -> None:
    model = small_spec("llama", **WIDE | more)
    program = step_program(
        model, weights, "prefill", rows=rows, kv_dtype="f16", target="sm_90a", precision=precision
    )
    assert _together(program)
    assert fitted(program, PROCESSORS) is program
    fewer = fitted(program, 114)
    assert _together(fewer) == []
    assert [op.name for op in fewer.ops] == [op.name for op in program.ops]
    assert {t.name for t in program.of_kind("weight")} == {t.name for t in fewer.of_kind("weight")}
