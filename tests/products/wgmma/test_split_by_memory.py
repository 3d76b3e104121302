"""PackedGemm whose CTAs share k without being a cluster, and give each other sums in global memory."""

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
from ptxgen.products.wgmma.tiling import shape
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.runtime import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from tests.support.marks import needs_assembler
from tests.support.packed_products import FAST, WHERE, counters_are_left_clear, launches_share_a_workspace, tried
from tests.tools.mutations import deletions

BY_MEMORY: dict[str, Any] = {"precision": "fast", "by_memory": True, "share": 1}


@pytest.fixture
def few_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Six, so that CTAs go on to further tiles."""
    monkeypatch.setattr(shape, "PROCESSORS", 6)
    yield
    clear_cache()


@pytest.mark.parametrize("mode", ["fast", "check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (97, {"split": 3, "tokens": 96, "out_dtype": "bf16", "programmatic": True}),
        (300, {"split": 2, "tokens": 96, "tile_rows": 64, "residual": True, "indirect": True}),
        (40, {"split": 5, "tokens": 8, "tile_rows": 64, "out_dtype": "f16"}),  # one CTA takes all tokens
        (100, {"split": 4, "tokens": 104, "bias": True, "activation": "silu", "n": 199}),  # 13 octets among four
        (200, {"split": 7, "tokens": 192, "n": 256, "packed_out": True, "activation": "gelu"}),
        (
            33,
            {
                "split": 2,
                "tokens": 16,
                "n": 256,
                "tile_rows": 128,
                "gated": True,
                "activation": "silu",
                "packed_out": True,
            },
        ),
        (33, {"split": 8, "tokens": 32, "k": 1024, "weights": "q8_0"}),
        (130, {"split": 3, "tokens": 64, "tile_rows": 192, "weights": "q4_k", "k": 1024, "out_dtype": "bf16"}),
        (20, {"split": 2, "tokens": 16, "precision": "exact"}),
        (9, {"split": 5, "tokens": 8, "weights": "q8_0", "k": 640, "x_dtype": "f16", "by_row": True}),
        (130, {"split": 2, "tokens": 64, "norm": "rms", "out_dtype": "bf16", "programmatic": True}),
        (9, {"split": 2, "tokens": 8, "weights": "q6_k", "k": 1024, "x_dtype": "f16", "by_row": True}),
        (40, {"split": 3, "tokens": 32, "weights": "e4m3_channel", "x_dtype": "e4m3", "k": 768}),
        (20, {"split": 2, "tokens": 16, "n": 256, "residual": True, "norm_out": True, "programmatic": True}),
    ],
    ids=str,
)
def test_it_adds_up_what_ctas_share(mode: str, rows: int, fields: dict[str, Any], few_processors: None) -> None:
    spec = PackedGemm(**{"n": 200, "k": 512, **BY_MEMORY, **fields})
    assert not Geometry.of(spec).shape.in_cluster
    tried(spec, mode, rows, None)


def test_sums_have_the_bits_of_a_cluster() -> None:
    """They are added up in the same order."""
    spec = PackedGemm(200, 512, tokens=96, split=4, **BY_MEMORY)
    outputs = [tried(each, "random", 200, FAST).outputs["out"] for each in (spec, replace(spec, by_memory=False))]
    assert outputs[0].tobytes() == outputs[1].tobytes()


@pytest.mark.parametrize(
    "rows", [7, 24, 33, 56]
)  # three groups of two CTAs: one round, two, three or four, four or five
def test_a_launch_finds_the_counters_as_the_one_before(rows: int, few_processors: None) -> None:
    spec = PackedGemm(100, 256, tokens=8, tile_rows=64, split=2, **BY_MEMORY)
    counters_are_left_clear(spec, rows)


@pytest.mark.parametrize("count", [0, 1, 95, 96, 97])
def test_tokens_past_the_last_are_not_written(count: int) -> None:
    spec = PackedGemm(n=200, k=256, tokens=96, split=3, indirect=True, **BY_MEMORY)
    values = spec.example(np.random.default_rng(0), rows=130, n_rows=count)
    done = tried(spec, "check", 130, FAST, n_rows=count)
    assert done.outputs["out"][count:].tobytes() == values["out"][count:].tobytes()


def test_orders_that_matter(few_processors: None) -> None:
    """What orders sums and counters, of CTAs with several tiles: a barrier or an order that is left out is found."""
    spec = PackedGemm(100, 256, tokens=8, tile_rows=64, split=3, **BY_MEMORY)
    values = spec.example(np.random.default_rng(0), rows=40)
    wanted = spec.reference(**values)["out"]
    ptx = generate(spec, WHERE)

    def run(text: str, mode: str) -> None:
        device = CpuDevice(mode=mode)
        held: dict[str, Any] = {name: device.array(a) if np.ndim(a) else np.int32(a) for name, a in values.items()}
        for param in (p for p in ptx.params if p.access == "workspace"):
            held[param.name] = device.array(np.zeros(param.nbytes({"rows": 40}), np.uint8))
        at = ptx.launch.at({"rows": 40})
        entry = device.module(text)[spec.kernel_name]
        entry.launch(grid=at.grid, block=at.block, args=[held[p.name] for p in ptx.params], shared=at.shared)
        np.testing.assert_allclose(held["out"].numpy(), wanted, rtol=0, atol=0.1)

    places = ("red.release", "ld.acquire", "st.relaxed")
    matter = [m for m in deletions(ptx.text) if any(place in m.what for place in places)]
    # of a release check mode takes all lanes of its warp, so that the barrier before it cannot be missed
    found = {"barrier of lanes": "", "release": "check", "acquire": "check", "barrier before reset": "random"}
    assert [m.kind for m in matter] == ["barrier", "fence", "fence", "barrier"]
    for mode in ("check", "random"):
        run(ptx.text, mode)
    for mutation, mode in zip(matter, found.values(), strict=True):
        if mode:
            with pytest.raises((ExecutionError, AssertionError)):
                run(mutation.text, mode)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"split": 1}, "split: with by_memory 2 to 8 CTAs share k (got split=1; nearest: 2)"),
        ({"split": 0}, "split: with by_memory 2 to 8 CTAs share k (got split=0; nearest: 2)"),
        ({"split": 9}, "split: with by_memory 2 to 8 CTAs share k (got split=9; nearest: 8)"),
        ({"share": 2}, "by_memory: is for CTAs that share no tokens (got by_memory=True, share=2; nearest: share=1)"),
        ({"tokens": 176, "tile_rows": 256}, "tokens: must be at most 160 beside these weights, precision, tile_rows"),
        ({"stream": True}, "stream: shares k out anyway (got stream=True, split=2; nearest: split=1)"),
        ({"k": 64}, "split: must be at most 1, the tiles of k (got 2; nearest: 1)"),
        ({"carried": True, "tokens": 96}, "carried: is for CTAs that have all of k (got split=2; nearest: split=1)"),
        ({"by_memory": False, "split": 5}, "split: must be one of 0, 1, 2, 3, 4, 8 (got 5)"),
    ],
    ids=str,
)
def test_what_it_does_not_go_with_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=re.escape(reason)):
        PackedGemm(**{"n": 256, "k": 512, "tokens": 32, "split": 2, "out_dtype": "bf16", **BY_MEMORY, **fields})


@pytest.mark.parametrize(
    ("rows", "n", "k", "split"),
    [(192, 5120, 5120, 3), (192, 2560, 9728, 3), (128, 2048, 8192, 4), (256, 5120, 13824, 3), (160, 1024, 4096, 8)],
)
def test_best_takes_it_where_clusters_leave_multiprocessors_idle(rows: int, n: int, k: int, split: int) -> None:
    """As was measured to be faster (docs/experiments.md)."""
    fields: dict[str, Any] = {"n": n, "k": k, "weights": "bf16", "precision": "fast", "out_dtype": "bf16"}
    spec = PackedGemm.best(rows, programmatic=True, **fields)
    assert (spec.by_memory, spec.split) == (True, split)
    assert not PackedGemm.best(rows, programmatic=True, by_memory=False, **fields).by_memory
    assert PackedGemm.best(rows, split=2, **fields).split == 2
    for more in ({}, {"split": 5}, {"share": 1}):
        assert PackedGemm.best(rows, by_memory=True, **more, **fields).split == more.get("split", split)


def test_best_takes_clusters_where_they_are_level() -> None:
    fields: dict[str, Any] = {"weights": "bf16", "precision": "fast", "out_dtype": "bf16", "programmatic": True}
    spec = PackedGemm.best(192, n=2304, k=9216, **fields)
    assert (spec.split, spec.by_memory) == (3, False)


@pytest.mark.parametrize("weights", ["bf16", "q4_k"])
def test_best_takes_a_split_that_is_given(weights: str) -> None:
    fields: dict[str, Any] = {"n": 2560, "k": 9728, "weights": weights, "precision": "fast"}
    assert PackedGemm.best(600, split=0, **fields).split == 0
    assert PackedGemm.best(600, split=5, by_memory=True, **fields).split == 5
    assert PackedGemm.best(16, split=5, by_memory=True, programmatic=True, **fields).split == 5


@needs_assembler
@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": 256, "split": 3}, {"tokens": 192, "split": 3, "tile_rows": 128}, {"tokens": 160, "split": 8},
        {"tokens": 128, "split": 7, "tile_rows": 192}, {"tokens": 176, "split": 5, "tile_rows": 64, "out_dtype": "f32"},
        {"tokens": 192, "split": 6, "tile_rows": 64}, {"tokens": 208, "split": 4}, {"tokens": 112, "split": 3},
        {"tokens": 160, "split": 2, "tile_rows": 256}, {"tokens": 128, "split": 2, "tile_rows": 192},
        {"tokens": 128, "split": 4, "tile_rows": 192},
    ],
    ids=str,
)  # fmt: skip
def test_no_spills(fields: dict[str, Any]) -> None:
    spec = PackedGemm(**{"n": 5120, "k": 5120, "tile_rows": 128, "out_dtype": "bf16", "programmatic": True}
                      | BY_MEMORY | fields)  # fmt: skip
    made = assemble(generate(spec, WHERE).text, WHERE)
    assert made.resources["packed_gemm"].clean
    assert "serialized" not in made.log


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [90, 192, 1500])
def test_launches_share_a_workspace_on_a_gpu(gpu: Device, rows: int) -> None:
    """Programmatic launches back to back, of which the next begins while CTAs of the last still run."""
    spec = PackedGemm(2048, 1024, tokens=96, split=3, programmatic=True, **BY_MEMORY)
    launches_share_a_workspace(gpu, spec, rows)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (192, {"n": 5120, "k": 5120, "tokens": 192, "split": 3, "out_dtype": "bf16"}),
        (3000, {"n": 2048, "k": 1024, "tokens": 96, "split": 5}),  # a CTA has several tiles
        (100, {"n": 1000, "k": 1152, "tokens": 104, "split": 4, "residual": True}),
        (40, {"n": 512, "k": 2048, "tokens": 8, "split": 8, "tile_rows": 64, "indirect": True}),
        (130, {"n": 2560, "k": 2048, "tokens": 64, "split": 6, "weights": "q4_k"}),
    ],
    ids=str,
)
def test_on_a_gpu(gpu: Device, rows: int, fields: dict[str, Any]) -> None:
    spec = PackedGemm(**{"programmatic": True, **BY_MEMORY, **fields})
    first, second = (trial(spec, gpu, target=WHERE, rows=rows, limit=FAST) for _ in range(2))
    first.require()
    assert first.outputs["out"].tobytes() == second.outputs["out"].tobytes()


# Tiles of several warpgroups that spilled 4 to 132 bytes before they had registers of their own: tokens, rows, CTAs.
SPILLED = ((104, 256, 8), (160, 256, 3), (176, 192, 7), (192, 192, 8), (208, 128, 5), (224, 128, 3), (256, 128, 3))


@needs_assembler
@pytest.mark.parametrize("tile", SPILLED, ids=str)
def test_registers_are_enough(tile: tuple[int, int, int]) -> None:
    fields = dict(zip(("tokens", "tile_rows", "split"), tile, strict=True))
    for more in ({"out_dtype": "bf16", "evict_first": True}, {"residual": True, "bias": True, "evict_first": True}):
        ptx = generate(PackedGemm(4288, 14336, **BY_MEMORY, **fields, **more), WHERE)
        assert assemble(ptx.text, WHERE).resources[ptx.entry].clean, more


@pytest.mark.parametrize(("rows", "first"), [(512, True), (2048, False)])
def test_weights_leave_the_l2_first_where_all_that_read_them_run_at_once(rows: int, first: bool) -> None:
    fields: dict[str, Any] = {"n": 1536, "k": 8960, "weights": "bf16", "tokens": 128, "tile_rows": 192, "split": 4}
    spec = PackedGemm.best(rows, **BY_MEMORY, **fields)
    assert (spec.by_memory, spec.evict_first) == (True, first)
