"""IncrementalAttention: numbers against float64 over shapes, lengths and options; geometry; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, make_spec, supports
from ptxgen.assembler import assemble, available_assemblers
from ptxgen.idioms.decode import mma, simt
from ptxgen.idioms.decode.contract import Partials
from ptxgen.idioms.decode.mma_layout import K_ROWS, V_ROWS, Block, ring_of, tile_layout
from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import Device
from ptxgen.runtime.trial import Trial, trial
from ptxgen.targets import target as parse_target
from ptxgen.tuning import Choice, fixed, using

needs_assembler = pytest.mark.skipif(
    not available_assemblers(), reason="no assembler is installed (pip install 'ptxgen[ptxas]')"
)
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
SMALL: dict[str, Any] = {
    "max_len": 100, "head_dim": 16, "n_heads": 4, "n_kv_heads": 2, "q_dtype": "f16", "kv_dtype": "f16",
}  # fmt: skip
# One spec for each way in which a unit's work is shared out and merged; more than 1024 positions make warps share.
GEOMETRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "one CTA": ("sm_90", {"max_len": 60}),
    "a cluster": ("sm_90", {"max_len": 200}),
    "splits": ("sm_80", {"max_len": 600}),
    "splits of clusters": ("sm_90", {"max_len": 1500, "n_kv_heads": 1}),
    "a batch": ("sm_90", {"max_len": 600, "batched": True}),
}


def spec(**fields: Any) -> IncrementalAttention:
    return IncrementalAttention(**{**SMALL, **fields})


def attend(device: Device, target: str, length: object = None, **fields: Any) -> Trial:
    """A trial whose caches hold NaN (int8: the largest bytes, NaN scales) wherever nothing is visible."""
    one = spec(**fields)
    given = one.example(np.random.default_rng(1))
    if length is not None:
        given["seq_lens" if one.batched else "seq_len"] = _lengths(one, length)
    _poison(one, given)
    return trial(one, device, target=target, arguments=given).require()


def _lengths(one: IncrementalAttention, length: object) -> Any:
    if one.batched or one.indirect:
        return np.array(length, np.int32).reshape(-1)
    return np.int32(length)  # type: ignore[call-overload]


def _poison(one: IncrementalAttention, given: dict[str, Any]) -> None:
    lengths = np.clip(np.ravel(given["seq_lens" if one.batched else "seq_len"]), 0, one.max_len)
    for name in [name for name in given if name.endswith(("_cache", "_scales"))]:
        rows = given[name]
        hidden = np.ones((rows.shape[0], rows.shape[2]) if rows.ndim == 4 else (1, rows.shape[1]), bool)
        for sequence, length in enumerate(map(int, lengths)):
            seen = np.arange(max(0, length - one.window) if one.window else 0, length)
            if one.page_size:
                hidden[given["page_table"][sequence, seen // one.page_size], seen % one.page_size] = False
            else:
                hidden[sequence, seen] = False
        spoiled = np.broadcast_to(hidden[:, None, :, None], rows.shape if rows.ndim == 4 else (1, *rows.shape))
        rows[spoiled.reshape(rows.shape)] = 127 if rows.dtype.kind == "i" else np.nan


# -- shapes and element types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [*range(1, 17), 24, 32, 64])
def test_every_group(device: Device, group: int) -> None:
    attend(device, "sm_80", 37, n_heads=2 * group)
    attend(device, "sm_75", 37, n_heads=2 * group, max_len=40)


@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
@pytest.mark.parametrize("head_dim", [8, 24, 40, 56, 64, 80, 96, 120, 128, 200, 256, 264, 392, 512])
def test_head_dims(device: Device, target: str, head_dim: int) -> None:
    attend(device, target, 19, head_dim=head_dim, max_len=24, n_kv_heads=1, n_heads=2)


@pytest.mark.parametrize("head_dim", [8, 40, 80, 128, 264])
@pytest.mark.parametrize("kv_dtype", ["s8", "e4m3"])
def test_head_dims_of_bytes(device: Device, head_dim: int, kv_dtype: str) -> None:
    attend(device, "sm_90", 19, head_dim=head_dim, kv_dtype=kv_dtype, max_len=24, n_kv_heads=1, n_heads=2)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "e4m3", "s8"])
@pytest.mark.parametrize("q_dtype", ["f32", "f16", "bf16"])
def test_element_types(device: Device, target: str, q_dtype: str, kv_dtype: str) -> None:
    attend(device, target, 45, q_dtype=q_dtype, kv_dtype=kv_dtype, head_dim=32, max_len=48)


# -- lengths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in GEOMETRIES if n != "a batch"])
@pytest.mark.parametrize("indirect", [False, True])
def test_lengths_around_every_boundary(device: Device, name: str, indirect: bool) -> None:
    """Nothing, one position, one less, equal and one more than tiles, warps and splits; bad lengths are clamped."""
    target, fields = GEOMETRIES[name]
    most = fields["max_len"]
    for length in (-3, 0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 128, 129, most - 1, most, most + 7):
        attend(device, target, length, indirect=indirect, lse=True, **fields)


def test_lengths_mixed_in_a_batch(device: Device) -> None:
    target, fields = GEOMETRIES["a batch"]
    one = spec(lse=True, **fields)
    given = one.example(np.random.default_rng(2), batch=9)
    given["seq_lens"] = np.array([0, 600, 1, 17, -5, 599, 64, 900, 321], np.int32)
    _poison(one, given)
    trial(one, device, target=target, arguments=given, batch=9).require()


def test_nothing_gives_zeros_and_minus_infinity(device: Device) -> None:
    for target, fields in GEOMETRIES.values():
        result = attend(device, target, [0, 0] if fields.get("batched") else 0, lse=True, **fields)
        assert not result.outputs["out"].any()
        assert np.isneginf(result.outputs["lse"]).all()


@pytest.mark.parametrize("page_size", [16, 48, 64])
@pytest.mark.parametrize("kv_dtype", ["f16", "s8", "f32"])
def test_pages(device: Device, page_size: int, kv_dtype: str) -> None:
    one = spec(batched=True, page_size=page_size, kv_dtype=kv_dtype, max_len=300)
    given = one.example(np.random.default_rng(3), batch=3, pages=70)
    given["seq_lens"] = np.array([299, 40, 0], np.int32)
    table = np.random.default_rng(4).permutation(70)[: 3 * -(-300 // page_size)].reshape(3, -1)
    used = np.arange(table.shape[1]) * page_size < given["seq_lens"][:, None]
    given["page_table"] = np.where(used, table, -1).astype(np.int32)
    _poison(one, given)
    trial(one, device, target="sm_80", arguments=given, batch=3, pages=70).require()


# -- options -----------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "scale": {"scale": 0.7}, "soft_cap": {"soft_cap": 1.5}, "window": {"window": 20}, "alibi": {"alibi": True},
    "sinks": {"sinks": True},
}  # fmt: skip


@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options(device: Device, option: str, kv_dtype: str) -> None:
    """Each matches the reference and changes the output."""
    plain = attend(device, "sm_80", 77, kv_dtype=kv_dtype)
    with_it = attend(device, "sm_80", 77, kv_dtype=kv_dtype, lse=True, **OPTIONS[option])
    assert not np.allclose(plain.outputs["out"], with_it.outputs["out"], atol=1e-3)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_all_options_together(device: Device, name: str) -> None:
    target, fields = GEOMETRIES[name]
    options = {k: v for o in OPTIONS.values() for k, v in o.items()}
    length = [fields["max_len"] - 5, 13] if fields.get("batched") else fields["max_len"] - 5
    attend(device, target, length, lse=True, **options, **fields)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("length", [0, 1, 16, 33, 100])
def test_windows(device: Device, window: int, length: int) -> None:
    attend(device, "sm_80", length, window=window)


def test_a_window_keeps_to_its_positions(device: Device) -> None:
    """A window over the whole length is no window."""
    assert np.array_equal(
        attend(device, "sm_80", 77, window=77).outputs["out"], attend(device, "sm_80", 77).outputs["out"]
    )


@pytest.mark.parametrize("name", GEOMETRIES)
def test_programmatic_launch_changes_no_number(device: Device, name: str) -> None:
    _, fields = GEOMETRIES[name]
    for length in (1, 16, 47, fields["max_len"]):
        given = [length, 5] if fields.get("batched") else length
        attend(device, "sm_90", given, programmatic=True, indirect=not fields.get("batched"), **fields)


# -- tiles through shared memory ---------------------------------------------------------------------------------------

STAGED: dict[str, Choice] = {
    "one CTA": Choice(4, 1, 1, 1, 4096, stages=2), "a cluster": Choice(2, 4, 8, 1, 4096, stages=3),
    "splits": Choice(2, 1, 12, 1, 256, stages=4), "splits of clusters": Choice(2, 2, 12, 1, 256, stages=2),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize(
    "fields",
    [
        {}, {"indirect": True}, {"batched": True}, {"programmatic": True}, {"window": 100}, {"head_dim": 80},
        {"head_dim": 256, "n_heads": 32}, {"head_dim": 128, "n_heads": 48}, {"kv_dtype": "e4m3"},
        {"kv_dtype": "bf16", "alibi": True, "soft_cap": 3.0},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)  # fmt: skip
def test_staged_tiles(device: Device, name: str, fields: dict[str, Any]) -> None:
    with using(fixed(STAGED[name])):
        assert spec(max_len=512, **fields).plan(parse_target("sm_90")).shape.stages > 0
        for length in (0, 1, 16, 17, 250, 511, 512):
            given = [length, max(length - 60, 0)] if fields.get("batched") else length
            attend(device, "sm_90", given, max_len=512, lse=True, **fields)


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("sm_80", {}), ("sm_90", {"max_len": 500}), ("sm_90", {"batched": True, "page_size": 16}),
        ("sm_90", {"kv_dtype": "s8"}),
    ],
)  # fmt: skip
def test_stages_are_for_whole_contiguous_tiles(target: str, fields: dict[str, Any]) -> None:
    with using(fixed(STAGED["one CTA"])):
        assert spec(**{"max_len": 512, **fields}).plan(parse_target(target)).shape.stages == 0


@needs_assembler
@pytest.mark.parametrize("cluster", [1, 2])
def test_sixteen_warps_merge_many_splits_in_their_registers(cluster: int) -> None:
    with using(fixed(Choice(16, cluster, 128, 1, 4096))):
        ptx = generate(spec(max_len=65536, head_dim=64, n_heads=16, n_kv_heads=2, indirect=True), "sm_90")
    assert assemble(ptx.text, "sm_90").resources[ptx.entry].spill_stores == 0


def test_stages_fit() -> None:
    """However many are asked for: no more than fit beside the merges, no more than a warp has tiles."""
    for head_dim in (8, 80, 128, 512):
        for warps in (1, 4, 8):
            with using(fixed(Choice(warps, 8, 8, 1, 4096, stages=64))):
                ptx = generate(spec(max_len=4096, head_dim=head_dim, n_kv_heads=1, n_heads=16), "sm_90")
                assert ptx.launch.shared > 64 * 1024 or head_dim == 8
                if available_assemblers():
                    assert assemble(ptx.text, "sm_90").resources[ptx.entry].spill_stores == 0


@pytest.mark.parametrize(
    ("head_dim", "group", "warps", "stages", "heads"),
    [
        (128, 24, 6, 0, 12),  # in registers: two head tiles a warp
        (128, 24, 6, 2, 24),  # tiles in shared memory leave registers for three
        (128, 24, 8, 2, 12),  # no room for two stages beside the partials of 24 heads
        (256, 16, 4, 2, 16),
        (64, 32, 8, 2, 32),
    ],
)
def test_stages_let_a_warp_carry_more_heads(head_dim: int, group: int, warps: int, stages: int, heads: int) -> None:
    fields = {"max_len": 4096, "head_dim": head_dim, "n_kv_heads": 1, "n_heads": group}
    with using(fixed(Choice(warps, 1, 128, 1, 4096, stages=stages))):
        plan = spec(**fields).plan(parse_target("sm_90"))
        assert (plan.shape.heads, plan.parts, plan.shape.stages) == (heads, group // heads, stages)
        if available_assemblers():
            ptx = generate(spec(**fields), "sm_90")
            assert assemble(ptx.text, "sm_90").resources[ptx.entry].spill_stores == 0


@pytest.mark.parametrize(("head_dim", "group", "heads"), [(192, 16, 16), (80, 24, 24), (128, 24, 12)])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_heads_of_a_warp_in_registers(target: str, head_dim: int, group: int, heads: int) -> None:
    plan = spec(max_len=4096, head_dim=head_dim, n_kv_heads=1, n_heads=group).plan(parse_target(target))
    assert (plan.shape.heads, plan.parts) == (heads, group // heads)


# -- numerics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_huge_logits(device: Device, name: str, kv_dtype: str) -> None:
    """Logits up to ±1e5: one key takes all the weight, and nothing overflows."""
    target, fields = GEOMETRIES[name]
    one = spec(scale=1.0, kv_dtype=kv_dtype, **fields)
    given = one.example(np.random.default_rng(5))
    keys = given["k_cache"]
    keys[...] = np.random.default_rng(6).choice([-1, 1], keys.shape[:-1])[..., None] * 80
    given["q"][...] = 78.125
    keys[..., one.max_len // 2, 0] += 8
    result = trial(one, device, target=target, arguments=given).require()
    assert np.isfinite(result.outputs["out"]).all()


def test_equal_keys_average_the_values(device: Device) -> None:
    one = spec(n_heads=2, max_len=48)
    given = one.example(np.random.default_rng(7))
    given["k_cache"][...] = 1
    result = trial(one, device, target="sm_80", arguments=given).require()
    assert np.allclose(result.outputs["out"], given["v_cache"].astype(np.float64).mean(1), atol=2e-3)


# -- geometry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries_are_what_they_are_called(name: str) -> None:
    target, fields = GEOMETRIES[name]
    plan = spec(**fields).plan(parse_target(target))
    shared = {"one CTA": (False, False), "a cluster": (True, False), "splits": (False, True), "a batch": (False, True)}
    assert (plan.cluster > 1, plan.most_splits > 1) == shared.get(name, (True, True))


def test_splits_follow_the_batch() -> None:
    launch = spec(max_len=4096, n_kv_heads=2, batched=True).launch(parse_target("sm_90"))
    assert [launch.at({"batch": batch}).grid for batch in (1, 4, 100)] == [(32, 2, 1), (16, 2, 4), (1, 2, 100)]


def test_long_sequences_of_a_batch_are_split_whatever_the_batch() -> None:
    launch = spec(max_len=16384, n_kv_heads=2, batched=True).launch(parse_target("sm_90"))
    assert [launch.at({"batch": batch}).grid[0] for batch in (1, 16, 1000)] == [66, 4, 4]


@pytest.mark.parametrize("batch", [1, 5])
def test_long_and_short_sequences_in_one_batch(device: Device, batch: int) -> None:
    one = spec(max_len=16384, head_dim=8, n_heads=2, n_kv_heads=1, batched=True)
    given = one.example(np.random.default_rng(8), batch=batch)
    given["seq_lens"] = np.array([16000, 4097, 0, 4096, 9], np.int32)[:batch]
    _poison(one, given)
    trial(one, device, target="sm_90", arguments=given, batch=batch).require()


def test_workspaces_are_exact_and_only_where_work_is_split() -> None:
    assert not [p for p in spec(max_len=60).params() if p.access == "workspace"]
    ptx = generate(spec(max_len=600, batched=True), "sm_80")
    units = 2 * 3
    splits = ptx.launch.at({"batch": 3}).grid[0]
    records, tickets = (p for p in ptx.params if p.access == "workspace")
    assert tickets.zeroed
    assert records.nbytes({"batch": 3}) >= units * splits * 2 * 16 // 4 * 24
    assert tickets.nbytes({"batch": 3}) >= 4 * units


@pytest.mark.parametrize("head_dim", range(8, 513, 8))
@pytest.mark.parametrize("element", [1, 2])
def test_blocks_cover_a_row_once(head_dim: int, element: int) -> None:
    """Every byte of a K row is one lane's of four, every byte of a V row one lane's of eight, in both layouts."""
    layout = tile_layout(head_dim, element, element == 1)
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
        ring = ring_of(tile_layout(head_dim, 2, False), budget, 2)
        assert ring.unroll * len(ring.units) % ring.depth == 0
        assert ring.registers <= max(budget, 32)


def test_partials_do_not_overlap() -> None:
    layout = Partials(3, 5, 24, offset=32)
    words = [layout.row(w) + layout.pitch_bytes * h + 4 * d for w in range(3) for h in range(5) for d in range(24)]
    words += [at(w) + 4 * h for at in (layout.maximum, layout.total) for w in range(3) for h in range(5)]
    assert len(set(words)) == len(words)
    assert min(words) == 32
    assert max(words) + 4 <= 32 + layout.bytes


# -- what is chosen, refused, assembled --------------------------------------------------------------------------------


def test_a_warp_has_no_more_tiles_in_flight_than_it_gets() -> None:
    """Short capacities: the loop is not unrolled for tiles that never come."""
    for max_len, unrolled in ((512, 1), (131072, 2)):
        spec = IncrementalAttention(max_len, 64, 32, 4, q_dtype="f16", kv_dtype="f16", indirect=True)
        with using(fixed(Choice(warps=4, cluster=8, grid=32, in_flight=2, split_positions=4096))):
            assert spec.plan(parse_target("sm_90")).shape.in_flight == unrolled


@pytest.mark.parametrize(
    ("max_len", "head_dim", "heads", "straight"),
    [(512, 64, 8, True), (513, 64, 8, False), (512, 128, 4, True), (512, 256, 8, False), (128, 512, 1, False)],
)
def test_a_warp_of_one_tile_has_no_loop(max_len: int, head_dim: int, heads: int, straight: bool) -> None:
    """Where every warp gets one tile at most, and has the registers for all of it at once."""
    spec = IncrementalAttention(max_len, head_dim, heads, 1, q_dtype="f16", kv_dtype="f16", indirect=True)
    with using(fixed(Choice(warps=4, cluster=8, grid=8, in_flight=2, split_positions=4096))):
        plan, text = spec.plan(parse_target("sm_90")), generate(spec, "sm_90").text
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


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n_kv_heads": 3}, "n_heads: must be a multiple of n_kv_heads"),
        ({"head_dim": 100}, "head_dim: must be a multiple of 8 from 8 to 512 (got 100; nearest: 96 or 104)"),
        ({"head_dim": 1024}, "head_dim: must be a multiple of 8 from 8 to 512"),
        ({"max_len": 0}, "max_len: must be from 1"),
        ({"kv_dtype": "u8"}, "kv_dtype: must be one of f32, f16, bf16, e4m3, s8 (got u8)"),
        ({"q_dtype": "e4m3"}, "q_dtype: must be one of"),
        ({"window": 101}, "window: must be from 0 to 100"),
        ({"soft_cap": -1.0}, "soft_cap: must be"),
        ({"scale": float("inf")}, "scale: must be"),
        ({"page_size": 16}, "page_size: needs batched=True"),
        ({"page_size": 24, "batched": True}, "page_size: must be a multiple of 16"),
        ({"indirect": True, "batched": True}, "indirect:"),
    ],
)
def test_illegal_fields(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match="IncrementalAttention") as refused:
        spec(**fields)
    assert reason in str(refused.value)


def test_unknown_fields() -> None:
    with pytest.raises(SpecError, match="sliding_window: no such field"):
        make_spec("incremental-attention", {**SMALL, "sliding_window": 4})


def test_programmatic_launch_needs_sm_90() -> None:
    refused = supports(spec(programmatic=True), "sm_80")
    assert "programmatic: needs sm_90" in str(refused)


@needs_assembler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "max_len": 4096},
        {"head_dim": 64, "n_heads": 32, "n_kv_heads": 4, "max_len": 131072, "indirect": True},
        {"head_dim": 512, "n_heads": 16, "n_kv_heads": 1, "max_len": 8192, "batched": True},
        {"head_dim": 256, "n_heads": 9, "n_kv_heads": 1, "max_len": 8192, "soft_cap": 50.0, "window": 4096},
        {"head_dim": 80, "n_heads": 32, "n_kv_heads": 32, "max_len": 2048, "kv_dtype": "s8", "batched": True},
    ],
    ids=lambda f: f"d{f['head_dim']}",
)
def test_assembles_without_spills(target: str, fields: dict[str, Any]) -> None:
    ptx = generate(spec(**fields), target)
    resources = assemble(ptx.text, target).resources[ptx.entry]
    assert resources.clean, resources
