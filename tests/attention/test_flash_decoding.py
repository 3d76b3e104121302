"""FlashDecodingChunk and FlashDecodingReduce: each against float64, both together against whole attention."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from ptxgen import ExecutionError, SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.attention.decode.chunks import LEAST, Cut
from ptxgen.kernels import FlashDecodingChunk, FlashDecodingReduce
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial
from tests.support import sweep
from tests.support.marks import needs_assembler

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
SMALL: dict[str, Any] = {
    "max_len": 400, "head_dim": 16, "n_heads": 4, "n_kv_heads": 2, "max_chunks": 3, "kv_dtype": "f16", "q_dtype": "f16",
}  # fmt: skip


def chunk(**fields: Any) -> FlashDecodingChunk:
    return FlashDecodingChunk(**{**SMALL, **fields})


def reduction(of: FlashDecodingChunk, **fields: Any) -> FlashDecodingReduce:
    shared = {f.name: getattr(of, f.name) for f in dataclasses.fields(FlashDecodingReduce) if hasattr(of, f.name)}
    return FlashDecodingReduce(**{**shared, **fields})


# -- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"max_chunks": 1}, {"max_chunks": 8}, {"head_dim": 40, "n_heads": 6}, {"n_heads": 24}, {"n_heads": 2},
        {"kv_dtype": "bf16", "q_dtype": "f32"}, {"kv_dtype": "s8"}, {"window": 150}, {"window": 1}, {"soft_cap": 2.0},
        {"scale": 0.5}, {"kv_dtype": "f32", "q_dtype": "f32"}, {"kv_dtype": "e4m3", "head_dim": 64},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_chunks(device: Device, fields: dict[str, Any], target: str) -> None:
    trial(chunk(**fields), device, target=target, batch=3).require()


@pytest.mark.parametrize("window", [0, 100])
def test_lengths_around_every_boundary(device: Device, window: int) -> None:
    """Nothing, one position, and one less, equal and one more than tiles, steps and chunks; bad lengths are clamped."""
    for length in (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 383, 385, 399, 400):
        trial(chunk(window=window), device, target="sm_80", batch=1, seq_len=length).require()


@pytest.mark.parametrize(("given", "counts"), [(-5, 0), (10**6, 400)])
def test_lengths_outside_the_cache_are_clamped(device: Device, given: int, counts: int) -> None:
    one = chunk()
    arguments = one.example(np.random.default_rng(0), batch=1, seq_len=counts)
    plain = trial(one, device, target="sm_80", arguments=arguments, batch=1).require()
    arguments["seq_lens"] = np.array([given], np.int32)
    clamped = trial(one, device, target="sm_80", arguments=arguments, batch=1).require()
    assert plain.outputs["stats"].tobytes() == clamped.outputs["stats"].tobytes()


def test_large_batches_launch_fewer_chunks(device: Device) -> None:
    """The slots that no CTA has of its own are marked as empty too."""
    one = chunk(ctas=40, max_chunks=5, max_len=600)
    assert [generate(one, "sm_80").launch.at({"batch": n}).grid[2] for n in (1, 4, 7, 10, 100)] == [5, 5, 2, 2, 1]
    stats = trial(one, device, target="sm_80", batch=7).require().outputs["stats"]
    assert (stats[:, :, 2:, 1] == 0).all()
    assert (stats[0, :, :2, 1] == 1).all()


def test_no_more_chunks_are_launched_than_the_capacity_can_fill() -> None:
    capacities = {(64, 0): 1, (65, 0): 2, (1024, 0): 16, (1025, 0): 9, (4096, 100): 3, (131072, 0): 66}
    for (max_len, window), chunks in capacities.items():
        one = chunk(max_len=max_len, window=window, max_chunks=200, n_kv_heads=2)
        assert generate(one, "sm_80").launch.at({"batch": 1}).grid[2] == chunks == one.chunks(1)


def test_long_sequences_of_a_batch_are_cut_though_others_fill_the_gpu(device: Device) -> None:
    one = chunk(ctas=2, max_len=9000, n_heads=1, n_kv_heads=1, head_dim=8)
    given = one.example(np.random.default_rng(0), batch=4)
    given["seq_lens"][1:] = 100, 4096, 4097
    assert generate(one, "sm_80").launch.at({"batch": 4}).grid[2] == 3
    stats = trial(one, device, target="sm_80", arguments=given, batch=4).require().outputs["stats"]
    assert stats[:, 0, :, 1].tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 1, 0]]


@pytest.mark.parametrize("batch", [1, 2, 3, 50])
def test_chunks_cover_every_position_once(batch: int) -> None:
    for kv_heads in (1, 2, 8, 64):
        for max_chunks in (1, 3, 16, 100):
            for positions in (0, 1, 64, 127, 128, 129, 4095, 4096, 4097, 100_000):
                cut = Cut(max_chunks, max(positions, 1), kv_heads, 132)
                chunks = cut.launched(batch)
                assert 1 <= chunks <= max_chunks
                for span in {0, 1, positions // 3, positions}:
                    size = cut.size(span, batch)
                    assert size % 64 == 0
                    assert size >= (LEAST if positions > 1024 else 64)
                    assert size * chunks >= span


def test_empty_chunks_say_so_and_write_no_partials(device: Device) -> None:
    """A sequence that fills one chunk: the others hold (−inf, 0), and their accumulators are untouched."""
    result = trial(chunk(), device, target="sm_80", batch=1, seq_len=chunk().cut.least).require()
    stats, partials = result.outputs["stats"], result.outputs["partials"]
    assert (stats[0, :, 1:, 0] == -np.inf).all()
    assert (stats[0, :, 1:, 1] == 0).all()
    assert np.isnan(partials[0, :, 1:]).all()
    assert np.isfinite(partials[0, :, 0]).all()


def test_more_than_one_chunk_works() -> None:
    """The lengths above do split: the reference has partials in each slot."""
    one = chunk()
    given = one.example(np.random.default_rng(0), batch=1)
    assert (one.reference(**given)["stats"][0, :, :, 1] == 1).all()


# -- reduction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [8, 24, 40, 64, 80, 128, 192, 256, 264, 512])
@pytest.mark.parametrize("max_chunks", [1, 2, 7, 33])
def test_reductions(device: Device, head_dim: int, max_chunks: int) -> None:
    one = FlashDecodingReduce(head_dim=head_dim, n_heads=3, max_chunks=max_chunks, lse=True)
    trial(one, device, target="sm_80", batch=2).require()


@pytest.mark.parametrize("q_dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_output_types(device: Device, q_dtype: str, target: str) -> None:
    trial(FlashDecodingReduce(head_dim=64, n_heads=2, q_dtype=q_dtype), device, target=target).require()


def test_more_chunks_than_a_cta_merges_at_once(device: Device) -> None:
    one = FlashDecodingReduce(head_dim=32, n_heads=2, max_chunks=300, lse=True)
    assert one.per_turn < one.max_chunks
    trial(one, device, target="sm_80").require()


def test_nothing_at_all_gives_zeros_and_minus_infinity(device: Device) -> None:
    one = FlashDecodingReduce(head_dim=40, n_heads=2, max_chunks=5, lse=True)
    given = one.example(np.random.default_rng(0), batch=1)
    given["stats"][...] = (np.nan, 0.0)
    given["partials"][...] = np.nan
    out = trial(one, device, target="sm_80", arguments=given, batch=1).require().outputs
    assert (out["out"] == 0).all()
    assert (out["lse"] == -np.inf).all()


def test_a_sum_of_nan_is_not_skipped(device: Device) -> None:
    """Only a sum of 0 means an unused slot; NaN that comes in goes out."""
    one = FlashDecodingReduce(head_dim=8, n_heads=1, max_chunks=3)
    given = one.example(np.random.default_rng(0), batch=1)
    given["stats"][...], given["partials"][...] = (0.0, 1.0), 1.0
    given["stats"][0, 0, 1] = (0.0, np.nan)
    out = trial(one, device, target="sm_80", arguments=given, batch=1).outputs["out"]
    assert np.isnan(out).all()


@pytest.mark.parametrize("level", [1e5, -1e5])
def test_extreme_levels(device: Device, level: float) -> None:
    one = FlashDecodingReduce(head_dim=16, n_heads=2, max_chunks=4, lse=True)
    given = one.example(np.random.default_rng(0), batch=2)
    given["stats"][..., 0] += np.float32(level)
    trial(one, device, target="sm_80", arguments=given, batch=2).require()


# -- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"max_chunks": 7, "window": 300}, {"kv_dtype": "s8", "soft_cap": 3.0}], ids=str)
def test_chunks_and_reduction_are_attention(device: Device, fields: dict[str, Any]) -> None:
    one = chunk(max_len=1000, **fields)
    given = one.example(np.random.default_rng(0), batch=4)
    chunks = trial(one, device, target="sm_80", arguments=given, batch=4).require().outputs
    both = reduction(one, lse=True, q_dtype="f32")
    merged = trial(both, device, target="sm_80", arguments=dict(chunks), batch=4).require().outputs
    whole, level = whole_attention(one, given)
    assert np.linalg.norm(merged["out"] - whole) <= 2e-3 * np.linalg.norm(whole)
    assert np.allclose(merged["lse"], level, atol=2e-3)


def whole_attention(one: FlashDecodingChunk, given: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Attention of every sequence over all of its visible positions, and its natural log-sum-exp."""
    out = np.zeros(given["q"].shape)
    level = np.full(out.shape[:2], -np.inf)
    for s, length in enumerate(map(int, given["seq_lens"])):
        if length:
            start = max(0, length - one.window) if one.window else 0
            out[s], base2 = one._attend(given, s, start, length, length - 1)
            level[s] = base2 * math.log(2)
    return out, level


def test_partials_from_elsewhere(device: Device) -> None:
    """Attention over two halves, normalised, with natural log-sum-exps: (log2 e · lse, 1, output)."""
    rng = np.random.default_rng(0)
    one = FlashDecodingReduce(head_dim=32, n_heads=2, max_chunks=2)
    scores, values = rng.standard_normal((2, 60)) * 3, rng.standard_normal((60, 32))
    partials, stats = np.zeros((1, 2, 2, 32), np.float32), np.zeros((1, 2, 2, 2), np.float32)
    for i, part in enumerate((slice(0, 23), slice(23, 60))):
        weights = np.exp(scores[:, part])
        partials[0, :, i] = weights @ values[part] / weights.sum(-1, keepdims=True)
        stats[0, :, i, 0] = np.log(weights.sum(-1)) * math.log2(math.e)
        stats[0, :, i, 1] = 1
    out = trial(one, device, target="sm_80", arguments={"partials": partials, "stats": stats}, batch=1).outputs["out"]
    weights = np.exp(scores)
    assert np.allclose(out[0], weights @ values / weights.sum(-1, keepdims=True), atol=1e-5)


# -- order of memory -------------------------------------------------------------------------------------------------

CHECKED: dict[str, tuple[str, FlashDecodingChunk | FlashDecodingReduce]] = {
    "chunk": ("sm_80", chunk()),
    "chunk, f32": ("sm_75", chunk(kv_dtype="f32", q_dtype="f32")),
    "reduction": ("sm_80", FlashDecodingReduce(head_dim=40, n_heads=2, max_chunks=40, lse=True)),
}


@pytest.mark.parametrize("name", CHECKED)
def test_checking_finds_nothing(name: str) -> None:
    """No race, no byte read before it is written, no access out of bounds."""
    target, one = CHECKED[name]
    trial(one, open_device("cpu", mode="check"), target=target, repeat=False).require()


@pytest.mark.parametrize("name", CHECKED)
def test_a_missing_barrier_is_noticed(name: str) -> None:
    """The last one: before the warps' or the groups' results are merged."""
    target, one = CHECKED[name]
    ptx, given = generate(one, target), one.example(np.random.default_rng(0))
    lines = ptx.text.split("\n")
    where = [i for i, line in enumerate(lines) if "bar.sync" in line][-1]
    checker = open_device("cpu", mode="check")
    entry = checker.module("\n".join(lines[:where] + lines[where + 1 :]))[ptx.entry]
    launch = ptx.launch.at(one.sizes)
    targets = {p.name: [checker.array(x) for x in given[p.name]] for p in ptx.params if p.kind == "pointers"}
    for key, buffers in targets.items():
        given[key] = np.array([x.pointer for x in buffers], np.uint64)
    with pytest.raises(ExecutionError):
        entry.launch(launch.grid, launch.block, [checker.array(given[p.name]) for p in ptx.params], launch.shared)


# -- contract --------------------------------------------------------------------------------------------------------


def test_the_grid_is_fixed_by_max_chunks() -> None:
    launch = generate(chunk(), "sm_90").launch
    assert launch.at({"batch": 5}).grid == (2, 5, 3)
    assert generate(reduction(chunk()), "sm_90").launch.at({"batch": 5}).grid == (4, 5, 1)


def test_every_reason_is_given() -> None:
    wrong: dict[str, Any] = {
        "head_dim": 1024, "n_heads": 5, "max_chunks": 0, "q_dtype": "s8", "kv_dtype": "u8", "scale": -1.0,
        "soft_cap": -1.0, "window": 500,
    }  # fmt: skip
    with pytest.raises(SpecError) as refused:
        chunk(**wrong)
    for field in wrong:
        assert f"FlashDecodingChunk.{field}: must be" in str(refused.value)
    with pytest.raises(SpecError) as refused:
        FlashDecodingReduce(head_dim=12, n_heads=0, max_chunks=5000, q_dtype="e4m3")
    for field in ("head_dim", "n_heads", "max_chunks", "q_dtype"):
        assert f"FlashDecodingReduce.{field}: must be" in str(refused.value)


def test_programmatic_launch_needs_sm_90() -> None:
    for one in (chunk(programmatic=True), reduction(chunk(), programmatic=True)):
        with pytest.raises(SpecError, match="programmatic: needs sm_90"):
            generate(one, "sm_80")
        assert "griddepcontrol.wait" in generate(one, "sm_90").text
        assert generate(one, "sm_90").launch.programmatic


@needs_assembler
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_assembles_without_spills(target: str) -> None:
    every = (
        {"head_dim": 64}, {"head_dim": 128, "n_heads": 16}, {"head_dim": 256, "kv_dtype": "s8"},
        {"head_dim": 512, "kv_dtype": "bf16"}, {"head_dim": 80, "window": 99, "soft_cap": 9.0, "q_dtype": "f32"},
    )  # fmt: skip
    for fields in (each for each, where in sweep.pairs(every, TARGETS, 2) if where == target):
        one = chunk(**fields)
        for spec in (one, reduction(one, lse=True, max_chunks=64)):
            ptx = generate(spec, target)
            resources = assemble(ptx.text, target).resources[ptx.entry]
            assert resources.clean, (spec, resources)
