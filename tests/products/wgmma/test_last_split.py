"""PackedGemm whose CTAs share k of the last turn's tiles, where these are few, and give each other sums in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen import ExecutionError, SpecError, assemble, generate
from ptxgen.generator import clear_cache
from ptxgen.kernels import PackedGemm
from ptxgen.launch import evaluate
from ptxgen.products.wgmma.cost_model.waves import shares_last
from ptxgen.products.wgmma.tiling import shape
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.runtime import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from tests.support.marks import needs_assembler
from tests.support.packed_products import FAST, WHERE, counters_are_left_clear, launches_share_a_workspace, tried
from tests.tools.mutations import deletions

FIELDS: dict[str, Any] = {"precision": "fast", "share": 1, "out_dtype": "bf16", "tokens": 96, "tile_rows": 64}


@pytest.fixture
def few_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Six, so that a launch has several turns."""
    monkeypatch.setattr(shape, "PROCESSORS", 6)
    clear_cache()
    yield
    clear_cache()


@pytest.mark.parametrize("mode", ["fast", "check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields", "shared"),
    [
        (97, {"last_split": 3}, 2),  # of 8 tiles: behind a turn of whole ones
        (97, {"last_split": 3, "programmatic": True, "residual": True, "out_dtype": "f32"}, 2),
        (96, {"last_split": 2, "n": 190}, 3),  # of three: there are no whole ones
        (300, {"last_split": 2, "indirect": True, "programmatic": True}, 0),  # of 16 four are left, too many
        (200, {"last_split": 2, "n": 448, "out_dtype": "f16", "weights": "f16", "x_dtype": "f16"}, 3),
        (130, {"last_split": 6, "n": 448, "tokens": 192, "bias": True}, 1),
        (150, {"last_split": 2, "n": 448, "tokens": 104, "tile_rows": 128, "programmatic": True}, 2),  # 13 octets
        (100, {"last_split": 5, "n": 448, "tokens": 128}, 1),  # one CTA takes no tokens
        (100, {"last_split": 5, "n": 448, "tokens": 128, "residual": True, "out_dtype": "f32"}, 1),
        (100, {"last_split": 2, "n": 199, "tokens": 128, "tile_rows": 256, "out_dtype": "f32", "bias": True}, 1),
        (150, {"last_split": 2, "n": 1600, "tokens": 160, "tile_rows": 192, "evict_first": True}, 3),
    ],
    ids=str,
)
def test_it_adds_up_what_ctas_share(
    mode: str, rows: int, fields: dict[str, Any], shared: int, few_processors: None
) -> None:
    spec = PackedGemm(**{"n": 256, "k": 512, **FIELDS, **fields})
    at = Geometry.of(spec)
    assert shares_last(at, rows) == (shared > 0)
    assert shared in (0, at.row_groups * -(-rows // spec.tokens) % 6)
    tried(spec, mode, rows, None)


def test_how_many_ctas_take_tokens() -> None:
    """16 octets of five CTAs, and 13 of two, are not shared out evenly."""
    for tokens, split, takers in ((128, 5, 4), (104, 2, 1), (96, 3, 3)):
        at = Geometry.of(PackedGemm(448, 512, **FIELDS | {"tokens": tokens}, last_split=split))
        assert at.takers == takers


def test_whole_turns_and_one_that_is_shared() -> None:
    """As many multiprocessors as an H200 has: 134 tiles, of which two are left."""
    spec = PackedGemm(134 * 64, 256, last_split=4, **FIELDS)
    assert [evaluate(e, {"rows": 90}) for e in generate(spec, WHERE).launch.grid] == [132, 1, 1]
    tried(spec, "fast", 90, None)


def test_tiles_that_are_not_shared_have_the_bits_of_others(few_processors: None) -> None:
    spec = PackedGemm(7 * 64, 512, last_split=6, **FIELDS)
    shared, whole = (
        tried(each, "random", 90, FAST).outputs["out"] for each in (spec, replace(spec, last_split=0))
    )  # fmt: skip
    assert shared[:, : 6 * 64].tobytes() == whole[:, : 6 * 64].tobytes()
    assert shared.tobytes() != whole.tobytes()  # the seventh's sums are added up in six parts


@pytest.mark.parametrize("count", [0, 1, 95, 96, 97, 192, 193, 400])
def test_tokens_past_the_last_are_not_written(count: int, few_processors: None) -> None:
    """Also where fewer, or more, tiles are left in the last turn than of all rows."""
    spec = PackedGemm(200, 256, last_split=2, indirect=True, **FIELDS)
    values = spec.example(np.random.default_rng(0), rows=400, n_rows=count)
    done = tried(spec, "check", 400, FAST, n_rows=count)
    assert done.outputs["out"][count:].tobytes() == values["out"][count:].tobytes()


@pytest.mark.parametrize(("rows", "shared"), [(97, True), (190, True), (290, False), (480, True)])
def test_a_launch_finds_the_counters_as_the_one_before(rows: int, shared: bool, few_processors: None) -> None:
    spec = PackedGemm(256, 256, last_split=3, **FIELDS)
    assert shares_last(Geometry.of(spec), rows) == shared
    counters_are_left_clear(spec, rows)


def test_orders_that_matter(few_processors: None) -> None:
    """A barrier or an order of sums and counters that is left out is found."""
    spec = PackedGemm(256, 256, last_split=3, **FIELDS)
    values = spec.example(np.random.default_rng(0), rows=97)
    wanted = spec.reference(**values)["out"].astype(np.float32)
    ptx = generate(spec, WHERE)

    def run(text: str, mode: str) -> None:
        device = CpuDevice(mode=mode)
        held: dict[str, Any] = {name: device.array(a) if np.ndim(a) else np.int32(a) for name, a in values.items()}
        for param in (p for p in ptx.params if p.access == "workspace"):
            held[param.name] = device.array(np.zeros(param.nbytes({"rows": 97}), np.uint8))
        at = ptx.launch.at({"rows": 97})
        entry = device.module(text)[spec.kernel_name]
        entry.launch(grid=at.grid, block=at.block, args=[held[p.name] for p in ptx.params], shared=at.shared)
        np.testing.assert_allclose(held["out"].numpy().astype(np.float32), wanted, rtol=0.02, atol=0.1)

    for mode in ("check", "random"):
        run(ptx.text, mode)
    matter = [m for m in deletions(ptx.text) if any(place in m.what for place in ("red.release", "ld.acquire"))]
    assert [m.kind for m in matter if m.kind == "fence"] == ["fence", "fence"]
    for mutation in (m for m in matter if m.kind == "fence"):
        with pytest.raises((ExecutionError, AssertionError)):
            run(mutation.text, "check")


@pytest.mark.parametrize(
    ("fields", "rule", "got", "nearest"),
    [
        ({"last_split": 1}, "must be one of 0, 2, 3, 4, 5, 6, 7, 8", "1", ""),
        ({"last_split": 9}, "must be one of 0, 2, 3, 4, 5, 6, 7, 8", "9", ""),
        ({"k": 64}, "must be at most 1, the tiles of k", "2", "0"),
        ({"weights": "q4_k"}, "is for 16-bit weights", "weights='q4_k'", "last_split=0"),
        ({"x_dtype": "f16"}, "is for weights as they lie", "x_dtype=f16", "x_dtype=bf16"),
        ({"precision": "exact"}, 'is for precision "fast"', "precision='exact'", "precision='fast'"),
        ({"tokens": 64}, "is for more than 64 tokens", "tokens=64", "tokens=96"),
        ({"tokens": 176, "tile_rows": 256}, "has registers for 128 tokens in tiles of 256 rows", "tokens=176",
         "tokens=128"),
        ({"tokens": 128, "tile_rows": 256, "residual": True, "bias": True, "out_dtype": "f32"},
         "has registers for 112 tokens in tiles of 256 rows", "tokens=128", "tokens=112"),
        ({"activation": "silu"}, "is for results without an activation", "activation='silu'", "last_split=0"),
        ({"packed_out": True, "out_dtype": "f32", "n": 512}, "is for results that are rows", "packed_out=True",
         "last_split=0"),
        ({"split": 2}, "is for CTAs that have all of k before the last turn", "split=2", "split=1"),
        ({"share": 2}, "is for CTAs that share no tokens", "share=2", "share=1"),
        ({"slices": 2}, "is for warpgroups that have rows of their own", "slices=2", "slices=1"),
        ({"carried": True}, "needs results stored by the warps that multiply", "carried=True", "carried=False"),
        ({"last_tiles": 1, "tile_rows": 128}, "is for tiles of one size", "last_tiles=1", "last_tiles=0"),
    ],
    ids=str,
)  # fmt: skip
def test_what_it_does_not_go_with_is_refused(fields: dict[str, Any], rule: str, got: str, nearest: str) -> None:
    said = f"last_split: {rule} (got {got}{'; nearest: ' * bool(nearest)}{nearest})"
    with pytest.raises(SpecError, match=re.escape(said)):
        PackedGemm(**{"n": 320, "k": 512, **FIELDS, "last_split": 2, **fields})


def test_a_cta_has_tokens_of_its_own() -> None:
    """Whole tiles have all tokens; of shared ones a CTA finishes whole octets."""
    at = Geometry.of(PackedGemm(8576, 512, **FIELDS | {"tokens": 256, "tile_rows": 128}, last_split=5))
    assert (at.out_tokens, at.shared_tokens, at.takers, at.most_shared) == (256, 64, 4, 26)


@needs_assembler
@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": 256}, {"tokens": 192}, {"tokens": 208}, {"tokens": 128, "tile_rows": 192},
        {"tokens": 104, "tile_rows": 64}, {"tokens": 256, "out_dtype": "f32", "residual": True},
        {"tokens": 240, "last_split": 7}, {"tokens": 256, "bias": True},
        {"tokens": 128, "tile_rows": 256, "bias": True},
        {"tokens": 128, "tile_rows": 256, "bias": True, "last_split": 2},
        {"tokens": 112, "tile_rows": 256, "bias": True, "residual": True, "out_dtype": "f32"},
        {"tokens": 256, "bias": True, "residual": True, "out_dtype": "f32"},
    ],
    ids=str,
)  # fmt: skip
def test_no_spills(fields: dict[str, Any]) -> None:
    spec = PackedGemm(**{"n": 9472, "k": 5120, "programmatic": True, **FIELDS, "tile_rows": 128, "last_split": 4}
                      | fields)  # fmt: skip
    made = assemble(generate(spec, WHERE).text, WHERE)
    assert made.resources["packed_gemm"].clean
    assert "serialized" not in made.log


@pytest.mark.gpu
def test_launches_share_a_workspace_on_a_gpu(gpu: Device) -> None:
    """Programmatic launches back to back, of which the next begins while CTAs of the last still run."""
    spec = PackedGemm(134 * 64, 1024, last_split=8, programmatic=True, **FIELDS)
    launches_share_a_workspace(gpu, spec, 90)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (256, {"n": 134 * 128, "tokens": 256, "tile_rows": 128, "last_split": 8}),
        (500, {"n": 9472, "tokens": 256, "tile_rows": 128, "last_split": 7, "residual": True, "out_dtype": "f32"}),
        (1000, {"n": 1600, "tokens": 176, "tile_rows": 64, "last_split": 4, "indirect": True}),
        (100, {"n": 1000, "tokens": 104, "tile_rows": 128, "last_split": 6}),  # a last turn alone
        (3000, {"n": 2048, "tokens": 192, "tile_rows": 192, "last_split": 2, "bias": True}),
    ],
    ids=str,
)
def test_on_a_gpu(gpu: Device, rows: int, fields: dict[str, Any]) -> None:
    spec = PackedGemm(**{"k": 1152, "programmatic": True, **FIELDS, **fields})
    first, second = (trial(spec, gpu, target=WHERE, rows=rows, limit=FAST) for _ in range(2))
    first.require()
    assert first.outputs["out"].tobytes() == second.outputs["out"].tobytes()


# As was measured to be faster (docs/experiments.md): rows, n, k; tokens and rows of a tile, CTAs that share k of all
# tiles and of the last turn's, last tiles of rows that are small.
CHOSEN = (
    ((256, 18944, 3584), (256, 64, 1, 4, 0)),
    ((900, 7296, 6272), (192, 128, 1, 6, 0)),
    ((300, 9216, 3968), (160, 128, 1, 8, 0)),
    ((512, 1536, 8960), (128, 192, 4, 0, 0)),
    ((512, 2304, 9216), (176, 128, 2, 0, 0)),  # not tiles of 64 rows whose last turn is shared
    ((512, 28672, 4096), (256, 128, 1, 0, 52)),  # small last tiles take fewer cycles
)


@pytest.mark.parametrize(("product", "tile"), CHOSEN, ids=str)
def test_best_takes_it_where_a_last_turn_is_thin(product: tuple[int, int, int], tile: tuple[int, ...]) -> None:
    rows, n, k = product
    fields: dict[str, Any] = {"n": n, "k": k, "weights": "bf16", "precision": "fast", "out_dtype": "bf16"}
    best = PackedGemm.best(rows, programmatic=True, **fields)
    assert (best.tokens, best.tile_rows, best.split, best.last_split, best.last_tiles) == tile


def test_best_keeps_what_is_given() -> None:
    fields: dict[str, Any] = {"n": 17152, "k": 4352, "weights": "bf16", "precision": "fast", "out_dtype": "bf16"}
    assert PackedGemm.best(256, **fields, split=1, share=1).last_split == 8
    assert PackedGemm.best(256, **fields, last_split=2).last_split == 2
    for alone in ({"last_split": 0}, {"split": 2}, {"share": 2}, {"by_memory": False, "split": 3}):
        assert PackedGemm.best(256, **fields, **alone).last_split == 0
    measured = fields | {"n": 2048, "k": 2048, "programmatic": True}  # of which a table has the tile
    assert PackedGemm.best(100, **measured, last_split=2).last_split == 2
    assert PackedGemm.best(100, **measured, by_memory=True).by_memory


@pytest.mark.parametrize("weights", ["bf16", "q4_k"])
def test_best_of_a_stream_has_at_most_64_tokens(weights: str) -> None:
    spec = PackedGemm.best(512, n=28672, k=4096, weights=weights, precision="fast", stream=True)
    assert (spec.stream, spec.tokens) == (True, 64)
