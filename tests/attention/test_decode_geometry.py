"""The geometry of decode attention: how a unit is shared out, what a warp carries, how tiles and partials lie."""

from __future__ import annotations

import re
from contextlib import nullcontext

import numpy as np
import pytest

from ptxgen import ExecutionError, generate
from ptxgen.assembler import assemble
from ptxgen.attention.decode.contract import Partials
from ptxgen.attention.decode.loops.mma import loop as mma
from ptxgen.attention.decode.loops.mma.layout import K_ROWS, V_ROWS, Block, ring_of, tile_layout
from ptxgen.attention.decode.loops.mma.registers import left_for_loads
from ptxgen.attention.decode.loops.simt import loop as simt
from ptxgen.dtypes import f16
from ptxgen.kernels import IncrementalAttention, KvCacheScatter
from ptxgen.runtime import Device
from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target as parse_target
from ptxgen.tuning import Choice, fixed, using
from tests.support.attention.decode_trials import GEOMETRIES, poison, spec
from tests.support.marks import needs_assembler

# -- who shares a unit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries_are_what_they_are_called(name: str) -> None:
    target, fields = GEOMETRIES[name]
    plan = spec(**fields).plan(parse_target(target))
    shared = {"one CTA": (False, False), "a cluster": (True, False), "splits": (False, True), "a batch": (False, True)}
    assert (plan.cluster > 1, plan.most_splits > 1) == shared.get(name, (True, True))


@pytest.mark.parametrize(
    ("head_dim", "grids"), [(128, [(32, 2, 1), (16, 2, 4), (1, 2, 100)]), (64, [(32, 2, 1), (32, 2, 4), (2, 2, 100)])]
)
def test_splits_follow_the_batch(head_dim: int, grids: list[tuple[int, int, int]]) -> None:
    """Short rows in CTAs of four warps, of which twice as many fit."""
    launch = spec(max_len=4096, head_dim=head_dim, n_kv_heads=2, batched=True).launch(parse_target("sm_90"))
    assert [launch.at({"batch": batch}).grid for batch in (1, 4, 100)] == grids


@pytest.mark.parametrize(("head_dim", "splits"), [(128, [66, 4, 4]), (64, [128, 8, 4])])
def test_long_sequences_of_a_batch_are_split_whatever_the_batch(head_dim: int, splits: list[int]) -> None:
    launch = spec(max_len=16384, head_dim=head_dim, n_kv_heads=2, batched=True).launch(parse_target("sm_90"))
    assert [launch.at({"batch": batch}).grid[0] for batch in (1, 16, 1000)] == splits


@pytest.mark.parametrize("n_heads", [24, 40])
def test_the_units_of_a_batch_fill_the_chip(n_heads: int) -> None:
    """Two splits while there is room for them; beyond it, at least three quarters of the rounds that CTAs take."""
    one = spec(max_len=4096, head_dim=64, n_heads=n_heads, n_kv_heads=n_heads, batched=True)
    plan, launch, room = one.plan(parse_target("sm_90")), one.launch(parse_target("sm_90")), 4 * 132
    assert (plan.shape.warps, plan.shape.stages) == (4, 2)
    for batch in range(1, 60):
        units = n_heads * batch
        ctas = launch.at({"batch": batch}).grid[0] * units
        if 2 * room < units < 2.25 * room:  # a third round of so few would take as long as a full one
            assert ctas == 2 * units
        else:
            assert ctas <= 4 * room or ctas == units
        if units <= room // 2:
            assert ctas >= 2 * units
        if room < units <= 2 * room:
            assert ctas / room / -(-ctas // room) > 0.7


def test_long_and_short_sequences_among_many_units(device: Device) -> None:
    one = spec(max_len=8192, head_dim=8, n_heads=16, n_kv_heads=16, batched=True)
    assert one.plan(parse_target("sm_90")).room
    given = one.example(np.random.default_rng(8), batch=3)
    given["seq_lens"] = np.array([8000, 0, 900], np.int32)
    poison(one, given)
    trial(one, device, target="sm_90", arguments=given, batch=3).require()


@pytest.mark.parametrize(
    "fields", [{}, {"page_size": 16}, {"kv_dtype": "s8"}, {"n_heads": 8, "n_kv_heads": 8}, {"head_dim": 128}], ids=str
)
def test_units_of_batches_whose_launches_overlap(fields: dict[str, object]) -> None:
    """Loads to registers, where CTAs of the next launch would hold rings; and that begins late."""
    shape = {"max_len": 640, "head_dim": 64, "n_heads": 16, "n_kv_heads": 16, "batched": True, **fields}
    apart, over = (spec(**shape, programmatic=flag).plan(parse_target("sm_90")) for flag in (False, True))
    assert (apart.late, over.late) == (False, not fields.get("kv_dtype"))  # a row of the table is for bytes
    assert over.shape.stages == 0
    one = spec(**shape | {"n_heads": 2, "n_kv_heads": 2}, programmatic=True)
    given = one.example(np.random.default_rng(8), batch=4)
    if not one.page_size:  # pages are for the lengths of the example
        given["seq_lens"] = np.array([640, 0, 77, 129], np.int32)
    poison(one, given)
    for mode in ("check", "random"):
        trial(one, CpuDevice(mode), target="sm_90", arguments=given, batch=4).require()


def test_a_launch_that_fills_the_chip_about_once_lets_the_next_one_begin_late() -> None:
    """At once where two fit side by side, or where it takes several rounds, and where warps have few tiles."""
    shape = {"max_len": 4096, "head_dim": 64, "n_heads": 24, "n_kv_heads": 24, "batched": True, "programmatic": True}
    text = generate(spec(**shape), "sm_90").text
    assert "unless 199 to 396 CTAs work for long" in text
    first, last = (found.start() for found in re.finditer("griddepcontrol.launch_dependents", text))
    assert text.index("%active") < first < text.index("griddepcontrol.wait") < text.index("$tiles_end:") < last
    assert generate(spec(**shape | {"batch_invariant": True}), "sm_90").text.count("launch_dependents") == 1


@pytest.mark.parametrize("fields", [{}, {"max_len": 250}, {"kv_dtype": "s8"}, {"window": 70}], ids=str)
def test_tiles_in_flight_are_asked_for_before_the_kernel_ahead_has_ended(fields: dict[str, object]) -> None:
    """All but the newest position's, wherever that lies among a warp's first tiles: rows that it may still write."""
    one = spec(**{"max_len": 256, "n_heads": 1, "n_kv_heads": 1, "batched": True, "programmatic": True, **fields})
    tiles = one.plan(parse_target("sm_90")).shape.in_flight
    text = generate(one, "sm_90").text
    before, _, after = text.partition("griddepcontrol.wait")
    assert tiles > 1
    assert before.count("load a tile ahead of its turn") == after.count("load the tile of the newest position") > 0
    for mode in ("check", "random"):
        given = one.example(np.random.default_rng(3), batch=12)
        given["seq_lens"] = np.array([0, 1, 16, 17, 64, 65, 80, 129, 144, 145, 240, one.max_len], np.int32)
        poison(one, given)
        trial(one, CpuDevice(mode), target="sm_90", arguments=given, batch=12).require()


@pytest.mark.parametrize("length", [1, 16, 17, 128, 129, 161, 192])
def test_the_newest_position_is_read_behind_the_wait(length: int) -> None:
    """Behind a launch that writes it, in check mode: this text, and one that takes its tile for an older one; that is
    wrong where it is not the first of its warp."""
    one = spec(max_len=192, n_heads=1, n_kv_heads=1, batched=True, programmatic=True)
    text = generate(one, "sm_90").text
    _run_behind_an_append(one, text, length)
    hasty = text.replace("%tile_is_older, %tile_next, %newest_tile;", "%tile_is_older, %tile_next, %tile_end;")
    hasty = hasty.replace("%tile_is_held, %tile_next, %newest_tile;", "%tile_is_held, %tile_next, -1;")
    assert "%newest_tile;" not in hasty
    with pytest.raises(ExecutionError, match=r"griddepcontrol\.wait") if length > 128 else nullcontext():
        _run_behind_an_append(one, hasty, length)


def _run_behind_an_append(one: IncrementalAttention, text: str, length: int) -> None:
    append = KvCacheScatter(
        max_len=one.max_len, head_dim=one.head_dim, n_kv_heads=1, kv_dtype=f16, src_dtype=f16, batched=True,
        programmatic=True,
    )  # fmt: skip
    device, rng = CpuDevice("check", threads=1), np.random.default_rng(8)
    given = one.example(rng, batch=1) | append.example(rng, rows=1)
    given |= {"seq_lens": np.array([length], np.int32), "positions": np.array([length - 1], np.int32)}
    buffers, graph = {name: device.array(value) for name, value in given.items()}, device.graph()
    for each, its in ((append, generate(append, "sm_90").text), (one, text)):
        ptx = generate(each, "sm_90")
        kernel = Kernel(device, ptx, device._load(its, ptx.entry).function(ptx.entry))
        bound = kernel.bind(**{p.name: buffers[p.name] for p in ptx.params if p.name in buffers})
        graph.add(bound, programmatic=bool(graph.nodes))
    graph.launch()


ROUNDS = Choice(warps=4, cluster=1, grid=20, in_flight=2, split_positions=128, mergers=1, room=20, rounds=1)


def test_splits_of_long_sequences_fill_whole_rounds() -> None:
    with using(fixed(ROUNDS)):
        launch = spec(max_len=640, head_dim=64, n_kv_heads=2, batched=True).launch(parse_target("sm_90"))
    # of 5 splits at least: 10, 20, 30, 40 and 60 CTAs, of which those of 30 are in two rounds of 20
    assert [launch.at({"batch": batch}).grid[0] for batch in (1, 2, 3, 4, 6)] == [10, 5, 6, 5, 5]


@pytest.mark.parametrize("batch", [3, 5])
def test_lengths_among_whole_rounds(batch: int) -> None:
    with using(fixed(ROUNDS)):
        one = spec(max_len=640, head_dim=64, n_kv_heads=2, batched=True)
        for mode in ("check", "random"):
            given = one.example(np.random.default_rng(8), batch=batch)
            given["seq_lens"] = np.array([640, 0, 17, 300, 640][:batch], np.int32)
            poison(one, given)
            trial(one, CpuDevice(mode), target="sm_90", arguments=given, batch=batch).require()


LAST_FIRST = Choice(warps=4, cluster=1, grid=20, in_flight=2, split_positions=128, mergers=1, last_first=1, aside=1)


@pytest.mark.parametrize(
    "more",
    [
        {"strided": True}, {}, {"page_size": 16}, {"window": 100}, {"kv_dtype": "s8"}, {"batch_invariant": True},
        {"programmatic": True}, {"kv_dtype": "f32"},
    ],
    ids=str,
)  # fmt: skip
def test_the_last_sequence_first_and_loads_that_leave_the_l2_as_it_is(more: dict[str, object]) -> None:
    """Loads that may not come before the wait for a kernel ahead, and those of the other loop, are as ever."""
    with using(fixed(LAST_FIRST)):
        one = spec(**{"max_len": 320, "head_dim": 64, "n_kv_heads": 2, "batched": True, "kv_dtype": "f16"} | more)
        text = generate(one, "sm_90").text
        for mode in ("check", "random"):
            trial(one, CpuDevice(mode), target="sm_90", batch=3).require()
    assert "sub.u32 %sequence, %last_sequence, %sequence;" in text
    aside = not ("programmatic" in more or more.get("kv_dtype") == "f32")
    assert ("createpolicy.fractional.L2::evict_unchanged.b64 %kv_policy" in text) == aside
    loads = [line for line in text.splitlines() if "L1::no_allocate" in line and "%kv" in line.partition("[")[0]]
    assert loads or not aside
    assert all(line.endswith("%kv_policy;") == aside for line in loads)


@pytest.mark.parametrize("batch", [1, 5])
def test_long_and_short_sequences_in_one_batch(device: Device, batch: int) -> None:
    one = spec(max_len=16384, head_dim=8, n_heads=2, n_kv_heads=1, batched=True)
    given = one.example(np.random.default_rng(8), batch=batch)
    given["seq_lens"] = np.array([16000, 4097, 0, 4096, 9], np.int32)[:batch]
    poison(one, given)
    trial(one, device, target="sm_90", arguments=given, batch=batch).require()


def test_workspaces_are_exact_and_only_where_work_is_split() -> None:
    assert not [p for p in spec(max_len=60).params() if p.access == "workspace"]
    ptx = generate(spec(max_len=600, batched=True), "sm_80")
    units = 2 * 3
    splits = int(ptx.launch.at({"batch": 3}).grid[0])
    records, tickets = (p for p in ptx.params if p.access == "workspace")
    assert tickets.zeroed
    assert records.nbytes({"batch": 3}) >= units * splits * 2 * 16 // 4 * 24
    assert tickets.nbytes({"batch": 3}) >= 4 * units


# -- what a warp carries -----------------------------------------------------------------------------------------------


def test_a_warp_has_no_more_tiles_in_flight_than_it_gets() -> None:
    """Short capacities: the loop is not unrolled for tiles that never come."""
    for max_len, unrolled in ((512, 1), (131072, 2)):
        one = IncrementalAttention(max_len, 64, 32, 4, q_dtype="f16", kv_dtype="f16", indirect=True)
        with using(fixed(Choice(warps=4, cluster=8, grid=32, in_flight=2, split_positions=4096))):
            assert one.plan(parse_target("sm_90")).shape.in_flight == unrolled


def test_registers_go_by_the_partition_with_most_warps() -> None:
    """Nine warps are three in one of four partitions, as twelve are."""
    attention = spec(head_dim=128, n_heads=16, n_kv_heads=1).attention
    left = {warps: left_for_loads(attention, 16, warps) for warps in (5, 8, 9, 10, 12, 13, 16)}
    assert left[5] == left[8] > left[9] == left[10] == left[12] > left[13] == left[16]


@pytest.mark.parametrize(
    ("n_heads", "kv_dtype", "loop"), [(1, "f16", simt), (2, "f16", mma), (16, "f16", mma), (1, "e4m3", mma)]
)
def test_more_warps_than_there_are_registers_for(n_heads: int, kv_dtype: str, loop: object) -> None:
    """Fewer take their place; where a KV head has one query head, the loop without tensor cores does."""
    with using(fixed(Choice(warps=16, cluster=1, grid=128, in_flight=1, split_positions=4096))):
        one = spec(max_len=4096, head_dim=128, n_heads=n_heads, n_kv_heads=1, kv_dtype=kv_dtype)
        plan = one.plan(parse_target("sm_90"))
    assert (plan.loop, plan.shape.warps) == (loop, 8)


@pytest.mark.parametrize(
    ("max_len", "head_dim", "heads", "straight"),
    [(512, 64, 8, True), (513, 64, 8, False), (512, 128, 4, True), (512, 256, 8, False), (128, 512, 1, False)],
)
def test_a_warp_of_one_tile_has_no_loop(max_len: int, head_dim: int, heads: int, straight: bool) -> None:
    """Where every warp gets one tile at most, and has the registers for all of it at once."""
    one = IncrementalAttention(max_len, head_dim, heads, 1, q_dtype="f16", kv_dtype="f16", indirect=True)
    with using(fixed(Choice(warps=4, cluster=8, grid=8, in_flight=2, split_positions=4096))):
        plan, text = one.plan(parse_target("sm_90")), generate(one, "sm_90").text
    assert plan.shape.once == (max_len <= 512)
    assert ("$tiles:" not in text) == straight
    assert ("%run_raises" not in text) == straight


@pytest.mark.parametrize(
    ("target", "kv_dtype", "loop"),
    [
        ("sm_75", "f16", simt), ("sm_80", "f16", mma), ("sm_75", "e4m3", simt), ("sm_80", "e4m3", mma),
        ("sm_90", "f32", simt), ("sm_80", "s8", mma),
    ],
)  # fmt: skip
def test_main_loops(target: str, kv_dtype: str, loop: object) -> None:
    assert spec(kv_dtype=kv_dtype).plan(parse_target(target)).loop is loop


@pytest.mark.parametrize(("head_dim", "group", "heads"), [(192, 16, 16), (80, 24, 24), (128, 24, 12)])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_heads_of_a_warp_in_registers(target: str, head_dim: int, group: int, heads: int) -> None:
    plan = spec(max_len=4096, head_dim=head_dim, n_kv_heads=1, n_heads=group).plan(parse_target(target))
    assert (plan.shape.heads, plan.parts) == (heads, group // heads)


@needs_assembler
@pytest.mark.parametrize("cluster", [1, 2])
def test_sixteen_warps_merge_many_splits_in_their_registers(cluster: int) -> None:
    with using(fixed(Choice(16, cluster, 128, 1, 4096))):
        ptx = generate(spec(max_len=65536, head_dim=64, n_heads=16, n_kv_heads=2, indirect=True), "sm_90")
    assert assemble(ptx.text, "sm_90").resources[ptx.entry].spill_stores == 0


# -- how tiles and partials lie ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", range(8, 513, 8))
@pytest.mark.parametrize("element", [1, 2])
def test_blocks_cover_a_row_once(head_dim: int, element: int) -> None:
    """Every byte of a K row is one lane's of four, every byte of a V row one lane's of eight, in both layouts."""
    layout = tile_layout(head_dim, head_dim, element, element == 1)
    for blocks, lanes in ((layout.k_blocks, 4), (layout.v_blocks, 8)):
        covered = [byte for block in blocks for byte in _bytes_of(block, lanes)]
        assert sorted(covered) == list(range(head_dim * element))
        assert all(block.base % block.width == 0 for block in blocks)
        assert all(head_dim * element % min(block.width, 16) == 0 for block in blocks)


def _bytes_of(block: Block, lanes: int) -> list[int]:
    lanes //= 2 if block.repeats else 1
    return list(range(block.base, block.base + lanes * block.width))


def test_lanes_cover_a_tile_once() -> None:
    assert sorted(g + row for g in range(8) for row in K_ROWS) == list(range(16))
    assert sorted(2 * q + row for q in range(4) for row in V_ROWS) == list(range(16))


@pytest.mark.parametrize("budget", [32, 48, 64, 128])
def test_rings_come_round(budget: int) -> None:
    """A unit of the stream always finds the slot of the unit `depth` before it."""
    for head_dim in range(8, 513, 8):
        ring = ring_of(tile_layout(head_dim, head_dim, 2, False), budget, 2)
        assert ring.unroll * len(ring.units) % ring.depth == 0
        assert ring.registers <= max(budget, 32)


def test_partials_do_not_overlap() -> None:
    layout = Partials(3, 5, 24, offset=32)
    words = [layout.row(w) + layout.pitch_bytes * h + 4 * d for w in range(3) for h in range(5) for d in range(24)]
    words += [at(w) + 4 * h for at in (layout.maximum, layout.total) for w in range(3) for h in range(5)]
    assert len(set(words)) == len(words)
    assert min(words) == 32
    assert max(words) + 4 <= 32 + layout.bytes
