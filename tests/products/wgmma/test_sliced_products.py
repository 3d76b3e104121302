"""PackedGemm with two warpgroups of the same rows, each with its part of k (`slices`)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from tests.support.marks import needs_assembler
from tests.support.packed_products import FAST, WHERE, tried
from tests.tools.mutations import SpecSubject

SLICED: dict[str, Any] = {"precision": "fast", "tile_rows": 64, "split": 1, "slices": 2}


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (113, {"n": 128, "k": 512, "tokens": 112, "out_dtype": "bf16"}),
        (129, {"n": 200, "k": 128, "tokens": 128, "out_dtype": "bf16", "share": 1}),  # a tile is one stage
        (127, {"n": 192, "k": 896, "tokens": 64, "residual": True, "programmatic": True}),
        (33, {"n": 66, "k": 256, "tokens": 16, "bias": True, "indirect": True}),
        (65, {"n": 256, "k": 384, "tokens": 32, "packed_out": True, "activation": "silu"}),
        (97, {"n": 264, "k": 640, "tokens": 96, "out_dtype": "bf16", "share": 2, "bias": True, "activation": "gelu"}),
        (193, {"n": 136, "k": 512, "tokens": 192, "out_dtype": "f16", "weights": "f16", "x_dtype": "f16"}),
        (63, {"n": 200, "k": 256, "tokens": 32, "gated": True, "activation": "silu", "out_dtype": "bf16"}),
        (31, {"n": 256, "k": 512, "tokens": 16, "gated": True, "activation": "silu", "packed_out": True}),
        (33, {"n": 100, "k": 1024, "tokens": 32, "weights": "e4m3_block", "x_dtype": "e4m3", "out_dtype": "bf16"}),
        (65, {"n": 140, "k": 768, "tokens": 64, "weights": "e4m3_block", "x_dtype": "e4m3", "residual": True}),
        (17, {"n": 128, "k": 512, "tokens": 16, "weights": "e4m3_block", "x_dtype": "e4m3", "row_scales": True}),
        (15, {"n": 70, "k": 512, "tokens": 16, "weights": "e4m3_channel", "x_dtype": "e4m3", "programmatic": True}),
        (31, {"n": 72, "k": 1024, "tokens": 32, "weights": "e4m3", "x_dtype": "e4m3", "promoted": True}),
        (33, {"n": 130, "k": 256, "tokens": 32, "weights": "q8_0", "residual": True}),
        (17, {"n": 66, "k": 1024, "tokens": 16, "weights": "q4_k", "residual": True, "programmatic": True}),
        (64, {"n": 128, "k": 1024, "tokens": 64, "weights": "int4_g128", "out_dtype": "bf16"}),
        (33, {"n": 128, "k": 768, "tokens": 32, "weights": "e4m3_block", "bias": True}),
        (65, {"n": 128, "k": 1280, "tokens": 64, "out_dtype": "bf16", "evict_first": True, "programmatic": True}),
    ],
    ids=str,
)
def test_warpgroups_share_k(mode: str, rows: int, fields: dict[str, Any], few_processors: None) -> None:
    spec = PackedGemm(**{**SLICED, "tile_rows": 64 * (1 + ("gated" in fields)), **fields})
    assert Geometry.of(spec).warps == 2 * Geometry.of(spec).row_warps
    tried(spec, mode, rows, FAST)


@pytest.mark.parametrize("weights", ["bf16", "q4_k"])
@pytest.mark.parametrize("gated", [False, True])
def test_exact_sums_are_exact(weights: str, gated: bool, few_processors: None) -> None:
    around: dict[str, Any] = {"gated": True, "activation": "silu", "tile_rows": 128} if gated else {}
    spec = PackedGemm(72, 1024, weights, tokens=16, **{**SLICED, "precision": "exact", **around})
    tried(spec, "check", 17, None)


@pytest.mark.parametrize("fields", [{"residual": True}, {"out_dtype": "bf16"}, {"packed_out": True}], ids=str)
@pytest.mark.parametrize("count", [0, 1, 55, 56, 57, 111, 112, 113])
def test_tokens_past_the_last_are_not_written(count: int, fields: dict[str, Any], few_processors: None) -> None:
    spec = PackedGemm(n=256, k=256, tokens=112, indirect=True, **SLICED, **fields)
    rng = np.random.default_rng(0)
    values = spec.example(rng, rows=130, n_rows=count)
    done = tried(spec, "check", 130, FAST, n_rows=count)
    first = -(-count // spec.tokens) if spec.packed_out else count
    assert done.outputs["out"][first:].tobytes() == values["out"][first:].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (1500, {"tokens": 112, "out_dtype": "bf16", "n": 2040}),  # a CTA has several tiles
        (512, {"tokens": 128, "out_dtype": "bf16", "n": 2048, "share": 2}),
        (100, {"tokens": 64, "residual": True, "n": 1000}),
        (40, {"tokens": 16, "packed_out": True, "n": 512, "activation": "silu"}),
        (700, {"tokens": 192, "bias": True, "n": 1999, "indirect": True}),
    ],
    ids=str,
)
def test_on_a_gpu(gpu: Device, rows: int, fields: dict[str, Any]) -> None:
    spec = PackedGemm(**{"k": 1152, "share": 1, "programmatic": True, **SLICED, **fields})
    first, second = (trial(spec, gpu, target=WHERE, rows=rows, limit=FAST) for _ in range(2))
    first.require()
    assert first.outputs["out"].tobytes() == second.outputs["out"].tobytes()


MOST = 'at most 64 tokens, but for 16-bit weights as they lie with precision "fast"'


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tile_rows": 128}, "the rows of one warpgroup (got tile_rows=128; nearest: tile_rows=64)"),
        (
            {"gated": True, "activation": "silu", "tile_rows": 256},
            "the rows of one warpgroup (got tile_rows=256; neare",
        ),
        ({"split": 2}, "CTAs that have all of k (got split=2; nearest: split=1)"),
        ({"stream": True, "tokens": 64}, "CTAs that have all of k (got stream=True; nearest: stream=False)"),
        (
            {"carried": True},
            "needs results stored by the warps that multiply (got carried=True; nearest: carried=False)",
        ),
        ({"tokens": 104}, "a multiple of 16 tokens (got tokens=104; nearest: tokens=96)"),
        ({"tokens": 8}, "a multiple of 16 tokens (got tokens=8; nearest: tokens=16)"),
        ({"k": 320}, "an even number of tiles of 64 columns (got k=320; nearest: slices=1)"),
        ({"precision": "exact"}, f"{MOST} (got tokens=128; nearest: tokens=64)"),
        ({"weights": "q4_k"}, f"{MOST} (got tokens=128; nearest: tokens=64)"),
        ({"weights": "e4m3", "x_dtype": "e4m3"}, f"{MOST} (got tokens=128; nearest: tokens=64)"),
        (
            {"weights": "q4_k", "tokens": 16, "x_dtype": "f16", "by_row": True},
            "does not go with by_row",
        ),
    ],
    ids=str,
)
def test_where_k_cannot_be_shared_it_is_refused(fields: dict[str, Any], reason: str) -> None:
    """For the reason that it is, with the nearest that would do."""
    with pytest.raises(SpecError, match=re.escape(reason)):
        PackedGemm(**{**SLICED, "n": 256, "k": 512, "tokens": 128, "out_dtype": "bf16", **fields})


@needs_assembler
@pytest.mark.parametrize("count", [16, 32, 64, 112, 128, 192])
@pytest.mark.parametrize("fields", [{"out_dtype": "bf16"}, {"residual": True}, {"packed_out": True}], ids=str)
def test_no_spills(count: int, fields: dict[str, Any]) -> None:
    spec = PackedGemm(1536, 8960, tokens=count, programmatic=True, **SLICED, **fields)
    made = assemble(generate(spec, WHERE).text, WHERE)
    assert "0 bytes spill stores, 0 bytes spill loads" in made.log
    assert "serialized" not in made.log


@pytest.mark.parametrize(
    "fields",
    [{"k": 1280, "out_dtype": "bf16"}, {"k": 256, "out_dtype": "bf16"}, {"k": 256, "residual": True}],
    ids=str,
)
def test_faults_are_noticed(fields: dict[str, Any], few_processors: None) -> None:
    """Every barrier, arrival and wait left out, one at a time, where a CTA has several tiles, long ones and short."""
    spec = PackedGemm(n=200, tokens=96, share=1, **SLICED, **fields)
    subject = SpecSubject(spec, target(WHERE))
    every = [each for each in subject.mutations() if each.kind not in ("stride", "option")]
    missed = [str(each) for each in every if subject.noticed(each.text) is None]
    assert len(every) >= 12
    assert missed == []
