"""PackedGemm: texts drawn from the legal tiles of weights that are multiplied as they lie, or as integers, spill no
registers; what has none is refused.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.rules import BY_ROW, FORMATS
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tokens import layout
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from tests.support import sweep
from tests.support.marks import needs_assembler
from tests.support.packed_products import WHERE

DRAWS, SWEPT = 8, 1500
MANY = 100  # sums of a row in a warpgroup's registers: of smaller tiles few are drawn
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu2")
SIZES = ((4096, 4096), (1000, 2048), (999, 1024), (1536, 1536))
CHANNEL = {"weights": "e4m3_channel", "x_dtype": "e4m3", "precision": "fast", "split": 1}


def fields_of(rng: random.Random) -> dict[str, Any]:
    """Fields of a spec, legal or not."""
    n, k = rng.choice(SIZES)
    weights = rng.choice(FORMATS)
    fields: dict[str, Any] = {
        "n": n, "k": k, "weights": weights, "tokens": rng.choice(layout.TOKENS),
        "precision": rng.choice(("fast", "fast", "exact")), "tile_rows": rng.choice((0, 64, 128, 192, 256)),
        "split": rng.choice((0, 1, 1, 2, 4)), "share": rng.choice((0, 0, 1, 2, 4)), "stream": rng.random() < 0.3,
        "programmatic": rng.random() < 0.5, "indirect": rng.random() < 0.2,
    }  # fmt: skip
    if weights.startswith("e4m3") and rng.random() < 0.8:
        name = "row_scales" if weights == "e4m3_block" else "promoted"
        fields |= {"x_dtype": "e4m3", "precision": "fast", name: rng.random() < 0.5}
    elif weights in BY_ROW and rng.random() < 0.4:
        fields |= {"x_dtype": "f16", "by_row": True}
    what = rng.choice(("plain", "gated", "gated", "activated", "activated", "added"))
    if what in ("gated", "activated"):
        fields["activation"] = rng.choice(ACTIVATIONS)
    fields |= {"gated": what == "gated", "residual": what == "added", "bias": what != "gated" and rng.random() < 0.5}
    if what != "added":
        fields |= rng.choice(({}, {"out_dtype": "bf16"}, {"out_dtype": "f16"}, {"packed_out": True}))
    return fields


def may_spill(spec: PackedGemm) -> bool:
    """Of some 800 texts of these few still spill 4 to 20 bytes: weights that are converted on their way to products
    and have registers as others do, and short sums of 256 tokens that leave as single numbers."""
    short = spec.promotes and spec.tokens == 256 and spec.n % 8 > 0
    return short or (spec.converts and not Geometry.of(spec).tight)


def drawn(seed: int) -> PackedGemm:
    """A legal spec, but for those that may spill."""
    rng = random.Random(seed)
    while True:
        try:
            spec = PackedGemm(**fields_of(rng))
        except SpecError:
            continue
        if (Geometry.of(spec).sums >= MANY or rng.random() < 0.1) and not may_spill(spec):
            return spec


@needs_assembler
@pytest.mark.parametrize("seed", range(sweep.examples(DRAWS, SWEPT)))
def test_nothing_is_spilled(seed: int) -> None:
    spec = drawn(seed)
    made = assemble(generate(spec, WHERE).text)
    assert made.resources["packed_gemm"].clean, spec
    assert "serialized" not in made.log, spec


@needs_assembler
@pytest.mark.parametrize(
    "fields",
    [
        {"weights": "int4_g128", "tokens": 64, "activation": "relu2", "out_dtype": "bf16", "stream": True},
        {"weights": "q4_k", "tokens": 64, "bias": True, "out_dtype": "bf16", "share": 2},
        {"weights": "q4_k", "tokens": 128, "residual": True, "share": 2},
        {"weights": "q5_k", "tokens": 128},
        {"weights": "q8_0", "tokens": 128, "activation": "silu", "bias": True, "packed_out": True},
        {"weights": "int4_g64", "tokens": 96, "precision": "exact"},
        {"weights": "e4m3_channel", "tokens": 96, "precision": "exact", "activation": "silu", "share": 4},
    ],
    ids=str,
)
def test_weights_that_are_converted_have_registers(fields: dict[str, Any]) -> None:
    """They spilled 4 to 32 bytes."""
    spec = PackedGemm(4096, 4096, **{"precision": "fast", "tile_rows": 192, "split": 1, **fields})
    assert Geometry.of(spec).tight
    made = assemble(generate(spec, WHERE).text)
    assert made.resources["packed_gemm"].clean
    assert "serialized" not in made.log


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    "fields",
    [
        {"weights": "q5_k", "tokens": 128, "k": 256},
        {"weights": "q8_0", "tokens": 64, "split": 2, "programmatic": True},
        {"weights": "q4_k", "tokens": 104, "activation": "silu", "bias": True},
        {"weights": "q4_k", "tokens": 64, "stream": True, "activation": "silu", "bias": True},
        {"weights": "int4_g32", "tokens": 64, "stream": True, "packed_out": True, "n": 256},
        {"weights": "q8_0", "tokens": 96, "precision": "exact", "residual": True},
    ],
    ids=str,
)
def test_what_is_found_anew_is_right(mode: str, fields: dict[str, Any]) -> None:
    spec = PackedGemm(**{"n": 200, "k": 512, "precision": "fast", "tile_rows": 192, "split": 1, **fields})
    assert Geometry.of(spec).tight
    trial(spec, CpuDevice(mode=mode), target=WHERE, rows=2 * spec.tokens + 3).require()


def test_three_warpgroups_have_few_registers_for_weights_that_are_converted() -> None:
    for weights, few in (("q4_k", True), ("q8_0", True), ("int4_g32", True), ("bf16", False)):
        at = Geometry.of(PackedGemm(4096, 4096, weights, 128, precision="fast", tile_rows=192, split=1))
        assert (at.tight, at.wide) == (few, few)


# those that spilled before they had registers of their own, or rounds of results, or were refused
@needs_assembler
@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": 128, "tile_rows": 256, "activation": "gelu_tanh", "bias": True, "out_dtype": "bf16"},
        {"tokens": 104, "tile_rows": 256, "activation": "silu", "out_dtype": "bf16"},
        {"tokens": 128, "tile_rows": 192, "activation": "silu", "out_dtype": "f16"},
        {"tokens": 192, "tile_rows": 192, "activation": "gelu_tanh", "out_dtype": "f16"},
    ],
    ids=str,
)
def test_an_activation_beside_scales_has_registers(fields: dict[str, Any]) -> None:
    spec = PackedGemm(n=1536, k=4096, **CHANNEL, **fields)
    assert Geometry.of(spec).crowded
    made = assemble(generate(spec, WHERE).text)
    assert made.resources["packed_gemm"].clean


def test_what_has_no_registers_is_refused() -> None:
    """Of 112 tokens by 256 rows all with an activation and results of 16 bits, as some of them spill."""
    active = {**CHANNEL, "n": 1536, "k": 4096, "activation": "silu", "out_dtype": "bf16"}
    for more in ({}, {"promoted": True}, {"bias": True}):
        with pytest.raises(SpecError, match=r"tokens: an activation .* for 104 .* \(got 112; nearest: 104\)"):
            PackedGemm(**active, **more, tokens=112, tile_rows=256)
        PackedGemm(**active, **more, tokens=104, tile_rows=256)
    three = {**active, "tokens": 192, "tile_rows": 192}
    with pytest.raises(SpecError, match=r"tokens: an activation .* for 128 beside 192 rows \(got 192; nearest: 128\)"):
        PackedGemm(**three, bias=True)
    PackedGemm(**{**three, "tokens": 128}, bias=True)
    PackedGemm(**three)


@needs_assembler
@pytest.mark.parametrize("more", [{"promoted": True}, {"weights": "e4m3_block"}], ids=str)
def test_short_sums_of_three_warpgroups_leave_a_bias_registers(more: dict[str, Any]) -> None:
    fields = {**CHANNEL, "activation": "gelu_tanh", "out_dtype": "f16", "bias": True, "tokens": 96, "tile_rows": 192}
    made = assemble(generate(PackedGemm(n=1536, k=4096, **{**fields, **more}), WHERE).text)
    assert made.resources["packed_gemm"].clean
