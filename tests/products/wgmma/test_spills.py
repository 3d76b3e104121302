"""A sample of what `PackedGemm.best` takes spills no registers: choices that spilled 4 to 120 bytes before rules were
made for them, and neighbours without a rule. Tiles that find anew what others keep have the right results."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen import SpecError, assemble, generate
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from tests.support.marks import needs_ptxas
from tests.support.packed_products import WHERE

FAST: dict[str, Any] = {"precision": "fast"}
BY_ROW: dict[str, Any] = {"x_dtype": "f16", "by_row": True}
BYTES: dict[str, Any] = {**FAST, "x_dtype": "e4m3", "gated": True, "activation": "silu", "out_dtype": "bf16"}
HALVES: dict[str, Any] = {**FAST, "out_dtype": "bf16"}
GELU: dict[str, Any] = {**FAST, "activation": "gelu_tanh"}
PACKED: dict[str, Any] = {"bias": True, "packed_out": True}
# rows of x, outputs and inputs, weights, more, whether the rule of registers that was made for it holds
CHOSEN: tuple[tuple[int, int, int, str, dict[str, Any], bool], ...] = (
    (1024, 3072, 8192, "q4_1", {**FAST, "residual": True}, True),
    (4096, 9216, 3072, "q4_k", HALVES, True),
    (1024, 2560, 960, "int4_g64", {**FAST, "activation": "silu", **PACKED}, True),
    (112, 28672, 4096, "q5_0", {**GELU, **PACKED}, True),
    (1024, 4096, 14336, "e4m3_block", {**GELU, "packed_out": True}, True),
    (1024, 3072, 3072, "q8_0", {**FAST, "residual": True}, True),
    (128, 14336, 4096, "e4m3_channel", BYTES, True),
    (128, 8960, 1536, "e4m3_channel", BYTES, True),
    (4096, 10240, 2560, "bf16", {**GELU, "out_dtype": "bf16", "bias": True}, True),
    (4096, 10240, 2560, "bf16", GELU, False),
    (128, 8960, 1536, "e4m3_channel", {**BYTES, "programmatic": True}, True),
    (128, 14336, 4096, "e4m3_channel", {**BYTES, "activation": "gelu_tanh"}, True),
    (512, 9216, 7168, "q8_0", BY_ROW, False),
    (65, 14336, 4096, "q8_0", {**BY_ROW, "gated": True, "activation": "silu"}, False),
    (64, 3072, 8192, "q5_k", {**FAST, **BY_ROW, "gated": True, "activation": "gelu_tanh"}, False),
    (4096, 18432, 2304, "bf16", {**HALVES, "programmatic": True}, False),
    (2048, 24576, 3072, "bf16", {**HALVES, "programmatic": True}, False),
)
# outputs, tokens, CTAs that share tokens of products whose results other warps store
CARRIED = (
    (18432, 256, 1), (24576, 256, 2), (17664, 256, 1), (17920, 256, 2), (16384, 256, 1), (9152, 160, 2), (9152, 256, 1),
    (9216, 192, 1), (38400, 256, 1),
)  # fmt: skip


def assembles_clean(spec: PackedGemm) -> None:
    made = assemble(generate(spec, WHERE).text)
    assert made.resources["packed_gemm"].clean, spec
    assert "serialized" not in made.log


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("tokens", [160, 192])
def test_three_warpgroups_activate_at_most_144_tokens(tokens: int, activation: str) -> None:
    fields: dict[str, Any] = {**HALVES, "tile_rows": 192, "activation": activation, "share": 1}
    said = rf"tokens: an activation has registers for 144 beside 192 rows \(got {tokens}; nearest: 144\)"
    with pytest.raises(SpecError, match=said):
        PackedGemm(9216, 2048, tokens=tokens, **fields)
    assert PackedGemm(9216, 2048, tokens=tokens, **fields | {"out_dtype": "f32"}).tokens == tokens


@needs_ptxas
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_what_three_warpgroups_activate_spills_nothing(activation: str) -> None:
    assembles_clean(PackedGemm(9216, 2048, tokens=144, tile_rows=192, share=2, activation=activation, **HALVES))


@needs_ptxas
@pytest.mark.parametrize(("rows", "n", "k", "weights", "more", "scarce"), CHOSEN)
def test_what_is_chosen_spills_nothing(
    rows: int, n: int, k: int, weights: str, more: dict[str, Any], scarce: bool
) -> None:
    spec = PackedGemm.best(rows, n=n, k=k, weights=weights, **more)
    at = Geometry.of(spec)
    assert (at.tight or at.scarce) == scarce
    assembles_clean(spec)


@needs_ptxas
@pytest.mark.parametrize(("n", "tokens", "share"), CARRIED)
def test_warps_that_store_results_have_registers(n: int, tokens: int, share: int) -> None:
    fields = {"tile_rows": 128, "split": 1, "share": share, "carried": True, "tokens": tokens}
    assembles_clean(PackedGemm(n, 4096, **HALVES, **fields))


@pytest.mark.parametrize(("n", "tokens"), [(9152, 160), (16320, 192)])
def test_lanes_that_copy_beside_warps_that_store_have_no_registers(n: int, tokens: int) -> None:
    fields = {**HALVES, "tile_rows": 128, "split": 1, "carried": True, "tokens": tokens}
    with pytest.raises(SpecError, match=rf"of {tokens} tokens.* whole tiles of rows \(got n={n}; nearest: share=2\)"):
        PackedGemm(n, 4096, **fields, share=1)
    PackedGemm(n, 4096, **fields, share=2)
    PackedGemm(n, 4096, **fields, share=1, last_tiles=1)
    PackedGemm(n + 64, 4096, **fields, share=1)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("n", "k", "weights", "tokens", "rows", "more"),
    [
        (256, 256, "e4m3_channel", 128, 256, BYTES),
        (256, 256, "q4_1", 128, 192, {**FAST, "activation": "silu", "packed_out": True}),
        (256, 256, "int4_g64", 192, 128, {**FAST, "activation": "silu", **PACKED}),
        (256, 256, "bf16", 256, 128, {**GELU, **PACKED}),
        (200, 256, "bf16", 128, 256, {**FAST, "activation": "silu", "out_dtype": "bf16"}),
        (200, 256, "q5_0", 128, 192, {**FAST, "residual": True, "share": 2}),
        (200, 256, "q4_1", 128, 256, {**GELU, "bias": True, "out_dtype": "bf16"}),
    ],
    ids=str,
)
def test_tiles_with_few_registers_are_right(
    mode: str, n: int, k: int, weights: str, tokens: int, rows: int, more: dict[str, Any]
) -> None:
    fields = {"tokens": tokens, "tile_rows": rows, "split": 1, "share": 1, **more}
    spec = PackedGemm(n, k, weights, **fields)
    assert Geometry.of(spec).crowded
    trial(spec, CpuDevice(mode=mode), target=WHERE, rows=2 * tokens + 3).require()
