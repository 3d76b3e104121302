"""The tiles that `PackedGemm.best` takes for matrices of real models have the registers that they need."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen import assemble, generate
from ptxgen.assembler import VARIABLE, available_assemblers
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.tiling.geometry import Geometry
from tests.support.marks import needs_assembler

GATED = {"gated": True, "activation": "silu", "programmatic": True}
BYTES = {"x_dtype": "e4m3"}
BY_ROW = {"x_dtype": "f16", "by_row": True}
CODES = ("int4_g128", "int4_g32", "q4_0", "q8_0", "e4m3_channel", "e4m3_block")
# weights, precision, outputs and inputs, rows, more: gate and up of models of 1 to 70 billion weights, and others
CASES: list[tuple[str, str, int, int, int, dict[str, Any]]] = [
    *(("bf16", "fast", n, k, rows, GATED) for n, k in ((14336, 4096), (8960, 1536)) for rows in (128, 512, 2048)),
    ("bf16", "fast", 14336, 4096, 512, {**GATED, "out_dtype": "bf16"}),
    ("bf16", "fast", 18944, 3584, 128, GATED),
    ("bf16", "fast", 28672, 8192, 2048, GATED),
    ("bf16", "exact", 14336, 4096, 64, GATED),
    ("bf16", "fast", 4096, 14336, 512, {"out_dtype": "bf16", "programmatic": True}),
    ("bf16", "fast", 6144, 4096, 64, {"programmatic": True}),
    *(("q8_0", "fast", 14336, 4096, rows, GATED) for rows in (64, 512, 2048)),
    ("q4_k", "fast", 14336, 4096, 512, GATED),
    *((name, "fast", 14336, 4096, 128, {**GATED, "packed_out": True, "tokens": 128}) for name in ("bf16", "q4_k")),
    *((name, "fast", 4096, 14336, 128, {"residual": True, "tokens": 128}) for name in ("bf16", "q6_k")),
    ("q6_k", "fast", 2560, 6912, 1024, {"residual": True, "programmatic": True}),
    ("int4_g128", "exact", 13824, 5120, 256, {**GATED, "packed_out": True}),
    *(("bf16", "fast", n, k, 32, {"programmatic": True}) for n, k in ((2048, 8192), (5120, 13824), (28672, 4096))),
    *(("bf16", "exact", n, k, 32, {"programmatic": True}) for n, k in ((2048, 8192), (5120, 13824), (17920, 1536))),
    *(("e4m3_channel", "fast", n, k, 32, {**BYTES, "programmatic": True}) for n, k in ((5120, 13824), (6144, 4096))),
    *(("q4_k", "fast", 6144, 2048, rows, {**GATED, **BY_ROW}) for rows in (16, 32)),
    ("q4_k", "exact", 14336, 4096, 32, {**GATED, **BY_ROW}),
    ("q6_k", "exact", 4096, 14336, 32, BY_ROW),
    *((name, "exact", 14336, 4096, rows, {**GATED, **BY_ROW}) for name in CODES for rows in (16, 32)),
    *(
        (name, "exact", 4096, 14336, rows, {**BY_ROW, "programmatic": True, "residual": True})
        for name in (*CODES, "q5_0")
        for rows in (32, 64)
    ),
    *(("e4m3_channel", "fast", 14336, 4096, rows, {**GATED, **BYTES}) for rows in (128, 512, 2048)),
    ("e4m3", "fast", 8960, 1536, 128, {**GATED, **BYTES, "out_dtype": "bf16"}),
    ("e4m3_channel", "fast", 8960, 1536, 64, {**GATED, **BYTES, "promoted": True}),
    *(("e4m3_block", "fast", 14336, 4096, rows, {**GATED, **BYTES}) for rows in (16, 64)),
    ("e4m3_block", "fast", 8960, 1536, 64, {**GATED, **BYTES}),
]


@needs_assembler
@pytest.mark.parametrize(("weights", "precision", "n", "k", "rows", "more"), CASES)
def test_nothing_is_spilled_and_no_product_waits_for_registers(
    weights: str, precision: str, n: int, k: int, rows: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = PackedGemm.best(rows, n=n, k=k, weights=weights, precision=precision, **more)
    found = next((assembler.path for assembler in available_assemblers() if assembler.path), "")
    if Geometry.of(spec).wide:  # nvJitLink leaves setmaxnreg out
        if not found:
            pytest.skip("needs a ptxas")
        available_assemblers.cache_clear()
        monkeypatch.setenv(VARIABLE, found)
    try:
        made = assemble(generate(spec, "sm_90a").text)
    finally:
        available_assemblers.cache_clear()
    assert "serialized" not in made.log
    assert made.resources["packed_gemm"].clean
