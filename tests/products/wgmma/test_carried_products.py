"""PackedGemm whose results other warps store while the next tile is multiplied; weights that leave the L2 first."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.tiling import shape
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.registers import CARRIED_REGISTERS
from ptxgen.products.wgmma.tokens import layout
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from tests.support.marks import needs_assembler
from tests.support.packed_products import FAST, WHERE, tried
from tests.tools.mutations import SpecSubject

PLAIN: dict[str, Any] = {"precision": "fast", "out_dtype": "bf16", "carried": True}
TILES = ((128, 256), (128, 192), (128, 128), (64, 256), (192, 128))  # rows and tokens


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (700, {"n": 256, "k": 512, "tokens": 256}),  # several tiles of a CTA, and the last has few tokens
        (513, {"n": 248, "k": 64, "tokens": 256}),  # a tile of one stage; the last CTA's rows are not all there
        (511, {"n": 264, "k": 384, "tokens": 256, "bias": True}),
        (257, {"n": 384, "k": 256, "tokens": 256, "share": 2}),
        (256, {"n": 384, "k": 256, "tokens": 128, "share": 2, "tile_rows": 192, "evict_first": True}),
        (500, {"n": 264, "k": 320, "tokens": 192, "indirect": True, "programmatic": True}),
        (500, {"n": 256, "k": 256, "tokens": 128, "weights": "f16", "x_dtype": "f16", "out_dtype": "f16"}),
        (1030, {"n": 256, "k": 704, "tokens": 256, "tile_rows": 64, "programmatic": True}),
        (1, {"n": 128, "k": 192, "tokens": 256}),
    ],
    ids=str,
)
def test_results_are_carried(mode: str, rows: int, fields: dict[str, Any], few_processors: None) -> None:
    spec = PackedGemm(**{**PLAIN, "tile_rows": 128, **fields})
    assert Geometry.of(spec).carried
    tried(spec, mode, rows, FAST)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (2500, {"tokens": 256}),
        (2500, {"tokens": 256, "share": 2, "evict_first": True, "bias": True}),
        (3200, {"tokens": 192, "indirect": True}),
        (2100, {"tokens": 128, "tile_rows": 192}),
        (3100, {"tokens": 256, "tile_rows": 64, "n": 1000}),
    ],
    ids=str,
)
def test_a_cta_has_several_tiles_on_a_gpu(gpu: Device, rows: int, fields: dict[str, Any]) -> None:
    spec = PackedGemm(**{"n": 2040, "k": 320, "tile_rows": 128, "share": 1, "programmatic": True, **PLAIN, **fields})
    assert Geometry.of(spec).row_groups * -(-rows // spec.tokens) > shape.PROCESSORS
    trial(spec, gpu, target=WHERE, rows=rows, limit=FAST).require()


@pytest.mark.parametrize("count", [0, 255, 256, 257, 600])
def test_tokens_past_the_last_are_not_written(count: int, few_processors: None) -> None:
    spec = PackedGemm(n=136, k=128, tokens=256, tile_rows=128, indirect=True, **PLAIN)
    rng = np.random.default_rng(0)
    values = spec.example(rng, rows=700, n_rows=count)
    done = tried(spec, "check", 700, FAST, n_rows=count)
    assert done.outputs["out"][count:].tobytes() == values["out"][count:].tobytes()


def test_carried_or_not_the_results_are_the_same_bytes(few_processors: None) -> None:
    fields = {**PLAIN, "n": 264, "k": 384, "tokens": 256, "tile_rows": 128}
    one, other = (tried(PackedGemm(**{**fields, "carried": each}), "fast", 600, FAST) for each in (True, False))
    assert one.outputs["out"].tobytes() == other.outputs["out"].tobytes()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"weights": "q4_k"}, "16-bit weights (got weights='q4_k'; nearest: carried=False)"),
        ({"weights": "e4m3", "x_dtype": "e4m3"}, "16-bit weights (got weights='e4m3'; nearest: carried=False)"),
        ({"x_dtype": "f16"}, "weights as they lie (got x_dtype=f16; nearest: x_dtype=bf16)"),
        ({"precision": "exact"}, "precision \"fast\" (got precision='exact'; nearest: precision='fast')"),
        ({"activation": "silu"}, "results without an activation (got activation='silu'; nearest: carried=False)"),
        ({"packed_out": True, "out_dtype": "f32"}, "results that are rows (got packed_out=True; nearest: carried=F"),
        (
            {"residual": True, "out_dtype": "f32"},
            "results that are added to nothing (got residual=True; nearest: carried=F",
        ),
        ({"out_dtype": "f32"}, "rows of 16 bits (got out_dtype=f32; nearest: out_dtype=bf16)"),
        ({"n": 132}, "rows of a multiple of 8 outputs (got n=132; nearest: carried=False)"),
        ({"stream": True, "tokens": 64}, "whole tiles (got stream=True; nearest: stream=False)"),
        ({"split": 2}, "CTAs that have all of k (got split=2; nearest: split=1)"),
        ({"tile_rows": 256}, "one block of 64 rows a warpgroup (got tile_rows=256; nearest: tile_rows=128)"),
        ({"tokens": 104}, "a multiple of 32 tokens (got tokens=104; nearest: tokens=96)"),
        ({"tokens": 8}, "a multiple of 32 tokens (got tokens=8; nearest: tokens=32)"),
    ],
    ids=str,
)
def test_what_cannot_be_carried_is_refused(fields: dict[str, Any], reason: str) -> None:
    """For the reason that it is, with the nearest that would do."""
    with pytest.raises(SpecError, match=re.escape(f"carried: is for {reason}")):
        PackedGemm(**{**PLAIN, "n": 256, "k": 512, "tokens": 128, "tile_rows": 128, **fields})


def test_three_warpgroups_carry_at_most_128_tokens() -> None:
    with pytest.raises(SpecError, match=r"of tiles of 192 rows .* \(got tokens=192; nearest: tokens=128\)"):
        PackedGemm(n=256, k=512, tokens=192, tile_rows=192, **PLAIN)


@pytest.mark.parametrize(("rows", "count"), [(1, 32), (8, 32), (33, 64), (64, 64)])
def test_few_rows_are_carried_in_tiles_of_32_tokens_and_more(rows: int, count: int, few_processors: None) -> None:
    """Which have all of k, whatever the table has: that of the tile alone, and what `best` says."""
    spec = PackedGemm.best(rows, n=264, k=384, **PLAIN)
    assert (spec.tokens, Geometry.of(spec).carried) == (count, True)
    plain = PackedGemm(n=264, k=1024, tokens=count, **PLAIN)
    assert (Geometry.of(plain).shape.split, Geometry.of(plain).shape.resident) == (1, 1)
    for each in (spec, plain):
        tried(each, "check", 3 * count + 1, FAST)


@pytest.mark.parametrize(
    ("rows", "fields", "carried", "evict_first"),
    [
        (2048, {"n": 4096, "k": 4096}, True, False),
        (2048, {"n": 2048, "k": 2048}, False, False),  # one tile a CTA
        (2048, {"n": 4096, "k": 4096, "out_dtype": "f32"}, False, False),
        (2048, {"n": 4096, "k": 4096, "activation": "silu"}, False, False),
        (512, {"n": 28672, "k": 4096}, False, False),  # tiles of 64 rows
        (128, {"n": 28672, "k": 4096}, False, True),
        (2048, {"n": 28672, "k": 4096}, True, False),
        (128, {"n": 4096, "k": 4096}, False, True),
        (192, {"n": 28672, "k": 4096}, True, True),  # one tile has all tokens
        (300, {"n": 28672, "k": 4096}, True, False),  # two tiles read the weights
        (32, {"n": 4096, "k": 4096, "residual": True, "out_dtype": "f32"}, False, True),
        (32, {"n": 4096, "k": 4096, "weights": "q4_k"}, False, False),
    ],
    ids=str,
)
def test_what_is_chosen(rows: int, fields: dict[str, Any], carried: bool, evict_first: bool) -> None:
    """What was measured to gain; unless it is given."""
    usual = {"weights": "bf16", "precision": "fast", "out_dtype": "bf16"}
    spec = PackedGemm.best(rows, **{**usual, **fields})
    assert (spec.carried, spec.evict_first) == (carried, evict_first)
    other = PackedGemm.best(rows, **{**usual, **fields, "carried": False, "evict_first": not evict_first})
    assert (other.carried, other.evict_first) == (False, not evict_first)


@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("tile_rows", [0, 64, 128, 192, 256])
def test_warpgroups_ask_for_no_more_registers_than_there_are(tile_rows: int, precision: str) -> None:
    """setmaxnreg would wait for ever; of every tile that is legal, read off its text."""
    legal = 0
    for count in layout.TOKENS:
        fields = {**PLAIN, "n": 384, "k": 256, "tokens": count, "tile_rows": tile_rows, "precision": precision}
        try:
            ptx = generate(PackedGemm(**fields, split=1, share=1), WHERE)
        except SpecError:
            continue
        legal += 1
        asked = dict(re.findall(r"setmaxnreg\.(inc|dec)\S* (\d+)", ptx.text))
        warpgroups = int(ptx.launch.block[0]) // 128
        first = 65536 // (128 * warpgroups) // 8 * 8  # of a thread, at the launch
        if asked:
            assert int(asked["dec"]) + (warpgroups - 1) * int(asked["inc"]) <= warpgroups * first
    assert bool(legal) == (precision == "fast" and tile_rows != 256)


def test_more_registers_than_there_are_is_a_deadlock() -> None:
    """Of three warpgroups that multiply 192 tokens, with what two have of which the results are carried."""
    spec = PackedGemm(384, 256, tokens=192, tile_rows=192, split=1, share=1, precision="fast", out_dtype="bf16")
    subject, asked = SpecSubject(spec, target(WHERE)), dict(zip(("dec", "inc"), CARRIED_REGISTERS, strict=True))
    text = re.sub(r"(setmaxnreg\.(inc|dec)\S*) \d+", lambda m: f"{m[1]} {asked[m[2]]}", subject.ptx.text)
    found = subject.outcome(text, "fast")
    assert found is not None
    assert "deadlock in kernel packed_gemm" in found.said
    assert "the CTA's pool of registers (216 a thread, 2816 more than it has; 1536 are free)" in found.said


@needs_assembler
@pytest.mark.parametrize(("rows", "count"), TILES)
@pytest.mark.parametrize("bias", [False, True])
def test_no_spills(rows: int, count: int, bias: bool) -> None:
    spec = PackedGemm(6144, 4096, tokens=count, tile_rows=rows, split=1, bias=bias, programmatic=True, **PLAIN)
    made = assemble(generate(spec, WHERE).text, WHERE)
    assert "0 bytes spill stores, 0 bytes spill loads" in made.log
    assert "serialized" not in made.log


@pytest.mark.parametrize("n", [256, 200])
def test_weights_alone_leave_the_l2_first(n: int) -> None:
    """Of a lane that copies something else the policy is the usual one."""
    text = generate(PackedGemm(n, 256, tokens=128, precision="fast", evict_first=True), WHERE).text
    copies = re.findall(r"cp\.async\.bulk\S* \[(%\w+)[^;]*;", text)
    hinted = [line for line in text.splitlines() if "cp.async.bulk" in line and "L2::cache_hint" in line]
    assert len(hinted) == (len(copies) if n == 200 else len(copies) - 1)
    assert ("evict_normal" in text) == (n == 200)
    assert "tokens_from" not in " ".join(hinted)


def test_faults_are_noticed(few_processors: None) -> None:
    """Every barrier, arrival and wait left out, one at a time, where a CTA has several tiles."""
    subject = SpecSubject(PackedGemm(n=520, k=640, tokens=96, tile_rows=128, split=1, share=1, **PLAIN), target(WHERE))
    every = [each for each in subject.mutations() if each.kind not in ("stride", "option")]
    missed = [str(each) for each in every if subject.noticed(each.text) is None]
    assert len(every) >= 12
    assert missed == []
