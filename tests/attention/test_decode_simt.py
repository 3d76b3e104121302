"""The decode main loop without tensor cores: how lanes share a tile, and attention by it over the range of shapes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from ptxgen import generate
from ptxgen.assembler import assemble
from ptxgen.attention.attention import Attention
from ptxgen.attention.cache import Cache
from ptxgen.attention.decode.loops.simt import loop as simt
from ptxgen.attention.decode.loops.simt.layout import Budget, Lanes, budget_of, lanes_of
from ptxgen.attention.problem import Problem
from ptxgen.attention.variant import Variant
from ptxgen.dtypes import dtype
from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import Trial, trial
from ptxgen.targets import target
from tests.support.marks import needs_assembler

# As many heads as the smallest chip has multiprocessors, so that one CTA takes all of a head: two tiles or more a warp.
SEVERAL_TILES = IncrementalAttention(512, 16, 40, 40)
HEAD_DIMS = tuple(range(8, 513, 8))
GROUPS = (*range(1, 17), 24, 32, 64)
SM_75, SM_90 = target("sm_75"), target("sm_90")
KV_DTYPES = ("f32", "f16", "bf16", "e4m3", "s8")


def attention(head_dim: int, group: int, kv_dtype: str, page_size: int = 0) -> Attention:
    problem = Problem(group, 1, head_dim, head_dim, dtype("f32"), dtype(kv_dtype))
    return Attention(Variant(1.0), Cache(problem, 4096, page_size > 0, page_size))


def sized(one: Attention, max_len: int) -> Attention:
    return dataclasses.replace(one, cache=dataclasses.replace(one.cache, max_len=max_len))


def run(device: Device, where: str, seq_len: int, *, max_len: int = 70, **fields: Any) -> Trial:
    """Attention by this loop against its reference."""
    spec = IncrementalAttention(**{"max_len": max_len, "head_dim": 32, "n_heads": 4, "n_kv_heads": 2, **fields})
    assert spec.plan(target(where)).loop is simt
    return trial(spec, device, target=where, seq_len=seq_len, seed=seq_len).require()


# -- how lanes share a tile ------------------------------------------------------------------------------------------


def all_lanes() -> list[tuple[Attention, Lanes, Budget]]:
    wanted = [
        attention(head_dim, group, kv_dtype, page_size)
        for head_dim in HEAD_DIMS
        for group in (1, 3, 4, 7, 8, 11, 64)
        for kv_dtype in ("f32", "f16", "s8")
        for page_size in (0, 16)
    ]
    return [(a, lanes_of(a, where), budget_of(where)) for a in wanted for where in (SM_75, SM_90)]


def test_every_element_of_a_tile_has_one_lane() -> None:
    for a, lanes, _ in all_lanes():
        pieces = [d + p * lanes.dim_lanes for d in range(lanes.dim_lanes) for p in range(lanes.pieces)]
        held = sorted(piece for piece in pieces if piece < lanes.row_pieces)
        assert held == list(range(lanes.row_pieces)), (a, lanes)
        assert lanes.row_pieces * lanes.elements == a.problem.qk_dim
        tokens = [t * lanes.token_lanes + lane for t in range(lanes.tokens) for lane in range(lanes.token_lanes)]
        assert sorted(tokens) == list(range(lanes.tile))


def test_a_piece_lies_within_one_scale_group_and_its_group_is_the_lanes_plus_a_constant() -> None:
    for a, lanes, _ in all_lanes():
        if a.cache.quantised:
            for d in range(lanes.dim_lanes):
                for p in range(lanes.pieces):
                    first = (d + p * lanes.dim_lanes) * lanes.elements
                    assert first // 32 == (first + lanes.elements - 1) // 32
                    assert first // 32 == d * lanes.elements // 32 + p * lanes.dim_lanes * lanes.elements // 32


def test_tiles_are_powers_of_two_and_fit_a_page() -> None:
    for a, lanes, budget in all_lanes():
        assert lanes.tile & (lanes.tile - 1) == 0
        assert lanes.tile <= (16 if a.cache.page_size else 64)
        assert lanes.registers <= budget.registers


def test_a_group_is_shared_by_few_ctas() -> None:
    for group in GROUPS:
        for head_dim in (64, 128):
            lanes = lanes_of(attention(head_dim, group, "f32"), SM_90)
            assert lanes.heads <= 8
            assert -(-group // lanes.heads) == -(-group // 8)


@pytest.mark.parametrize(("head_dim", "group"), [(64, 8), (128, 4), (128, 6), (128, 7), (128, 1), (80, 1), (256, 4)])
def test_enough_is_in_flight_in_whole_lines(head_dim: int, group: int) -> None:
    """256 bytes a lane are 64 KB on a multiprocessor with 8 warps: what its share of the bandwidth asks for."""
    lanes = lanes_of(attention(head_dim, group, "f32"), SM_90)
    assert 8 * lanes.kv_registers >= 256
    if head_dim != 80:
        assert lanes.dim_lanes * lanes.piece >= 128


# -- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 69, 70])
def test_f32_at_every_boundary(device: Device, where: str, length: int) -> None:
    run(device, where, length, indirect=True, lse=True)


@pytest.mark.parametrize(
    ("kv_dtype", "q_dtype"),
    [("f32", "bf16"), ("f16", "f16"), ("bf16", "bf16"), ("e4m3", "f32"), ("s8", "f16"), ("f16", "f32")],
)
@pytest.mark.parametrize("head_dim", [8, 40, 128])
def test_every_cache_type_on_sm_75(device: Device, kv_dtype: str, q_dtype: str, head_dim: int) -> None:
    run(device, "sm_75", 45, kv_dtype=kv_dtype, q_dtype=q_dtype, head_dim=head_dim)


@pytest.mark.parametrize("head_dim", HEAD_DIMS[::5])
def test_head_dims(device: Device, head_dim: int) -> None:
    run(device, "sm_90", 41, head_dim=head_dim, n_heads=6, max_len=48)


@pytest.mark.parametrize("group", GROUPS)
def test_groups(device: Device, group: int) -> None:
    run(device, "sm_90", 37, n_heads=2 * group, max_len=48)
    if group in (5, 9, 11, 24):  # a last part with fewer heads
        run(device, "sm_75", 37, n_heads=2 * group, max_len=48, kv_dtype="s8", alibi=True)


@pytest.mark.parametrize("kv_dtype", ["f32", "s8"])
@pytest.mark.parametrize(
    "option",
    [
        {"window": 1},
        {"window": 20},
        {"window": 20, "alibi": True, "soft_cap": 5.0},
        {"soft_cap": 30.0},
        {"alibi": True},
        {"sinks": True, "lse": True},
        {"scale": 0.5},
        {"batched": True},
        {"batched": True, "page_size": 16},
        {"batched": True, "page_size": 48, "window": 30},
        {"indirect": True, "window": 33},
    ],
    ids=str,
)
def test_options(device: Device, kv_dtype: str, option: dict[str, Any]) -> None:
    for length in (1, 70):
        run(device, "sm_75", length, kv_dtype=kv_dtype, **option)


@pytest.mark.parametrize("option", [{}, {"batched": True}, {"batched": True, "page_size": 16}], ids=str)
def test_programmatic(device: Device, option: dict[str, Any]) -> None:
    run(device, "sm_90", 50, programmatic=True, **option)


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "e4m3"])
@pytest.mark.parametrize("where", ["sm_75", "sm_90"])
def test_nan_past_the_length_does_not_come_through(device: Device, kv_dtype: str, where: str) -> None:
    if where == "sm_90" and kv_dtype != "f32":
        where = "sm_75"
    fields: dict[str, Any] = {"max_len": 70, "head_dim": 64, "n_heads": 4, "n_kv_heads": 1, "kv_dtype": kv_dtype}
    for length, more in ((0, {}), (1, {}), (20, {"indirect": True}), (50, {"window": 10}), (69, {"batched": True})):
        spec = IncrementalAttention(**fields, **more)
        sizes = {"batch": 1} if spec.batched else {}
        given = spec.example(np.random.default_rng(length), seq_len=length, **sizes)
        if spec.batched:
            given["seq_lens"] = np.array([length], np.int32)
        for name in ("k_cache", "v_cache"):
            given[name][..., length:, :] = np.nan
            given[name][..., : max(0, length - (spec.window or length)), :] = np.nan
        trial(spec, device, target=where, arguments=given, **sizes).require()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(("where", "kv_dtype"), [*(("sm_75", d) for d in KV_DTYPES), ("sm_90", "f32")])
def test_one_position_gives_its_row_exactly(device: Device, where: str, kv_dtype: str) -> None:
    """Every 8-bit pattern of a cache, or 256 of the others, NaN and infinities included: how they are widened."""
    kind = dtype(kv_dtype)
    spec = IncrementalAttention(1, 256, 1, 1, kv_dtype=kv_dtype)
    given = spec.example(np.random.default_rng(0), seq_len=1)
    bits = np.arange(256) * {8: 1, 16: 257, 32: 16843009}[kind.bits]
    given["v_cache"] = bits.astype(f"uint{kind.bits}").view(kind.numpy).reshape(1, 1, 256)
    out = trial(spec, device, target=where, arguments=given).outputs["out"][0]
    want = given["v_cache"][0, 0].astype(np.float32)
    if kv_dtype == "s8":
        want = want * np.repeat(given["v_scales"][0, 0].astype(np.float32), 32)
    normal = ~(np.abs(want) < 2.0**-126)
    assert np.array_equal(out[normal], want[normal], equal_nan=True)


@pytest.mark.parametrize("size", [1e4, 1e5])
def test_scores_far_apart(device: Device, size: float) -> None:
    """The maximum rises by more than the slack, and back: one key takes all."""
    given = SEVERAL_TILES.example(np.random.default_rng(0))
    given["q"][:] = 0
    given["q"][:, 0] = math.sqrt(SEVERAL_TILES.head_dim)
    apart = np.tile(np.linspace(-size, size, 512), (40, 1))
    given["k_cache"][:, :, 0] = np.random.default_rng(1).permuted(apart, axis=1)
    out = trial(SEVERAL_TILES, device, target="sm_75", arguments=given).require().outputs["out"]
    winners = given["k_cache"][:, :, 0].argmax(1)
    assert np.allclose(out, given["v_cache"][np.arange(40), winners], rtol=1e-6)


@pytest.mark.parametrize("spread", [5.0, 20.0])
def test_a_maximum_that_rises_from_tile_to_tile(device: Device, spread: float) -> None:
    """By more than the slack, so that what came before is scaled down, but not to nothing."""
    given = SEVERAL_TILES.example(np.random.default_rng(0))
    given["k_cache"] *= np.linspace(0, spread, 512, dtype=np.float32)[:, None]
    trial(SEVERAL_TILES, device, target="sm_75", arguments=given).require()


def test_long_sequences_split_over_ctas(device: Device) -> None:
    spec = IncrementalAttention(3000, 64, 2, 1, indirect=True)
    assert generate(spec, "sm_75").launch.grid[0] != 1
    for length in (1, 100, 2999):
        trial(spec, device, target="sm_75", seq_len=length).require()


# -- text ------------------------------------------------------------------------------------------------------------


def test_loads_are_16_bytes_and_no_shared_memory_is_in_the_loop_where_registers_suffice() -> None:
    spec = IncrementalAttention(4096, 128, 8, 8, indirect=True)
    assert not lanes_of(spec.attention, SM_90).staged
    text = generate(spec, "sm_90").text
    loop = text[text.index("$tiles:") : text.index("bra $tiles;")]
    loads = [line.split()[1] for line in loop.splitlines() if " ld." in line]
    assert set(loads) == {"ld.global.nc.L1::no_allocate.v4.f32"}
    assert len(loads) == 2 * lanes_of(spec.attention, SM_90).kv_registers // 4
    assert ".shared" not in loop
    assert loop.count("shfl") - loop[loop.index("$hidden_scores_end") :].count("shfl") == 3 * 4  # 3 a position


def test_a_hint_does_not_raise_the_version() -> None:
    for where, version in (("sm_75", "6.3"), ("sm_86", "7.1"), ("sm_90", "7.8")):
        text = generate(IncrementalAttention(64, 32, 2, 2), where).text
        assert f".version {version}\n" in text
        assert ("no_allocate" in text) == (where == "sm_90")


def test_programmatic_reads_nothing_of_the_cache_before_the_wait_nor_from_a_stale_cache() -> None:
    text = generate(IncrementalAttention(64, 32, 2, 2, programmatic=True), "sm_90").text
    before, after = text.split("griddepcontrol.wait")
    assert "v4.f32" not in before
    assert ".nc" not in text
    assert "ld.relaxed.gpu.global.v4.f32" in after


@needs_assembler
@pytest.mark.parametrize(
    ("where", "kv_dtype", "head_dim", "group"),
    [
        ("sm_90", "f32", 64, 8),
        ("sm_90", "f32", 128, 4),
        ("sm_90", "f32", 512, 8),
        ("sm_120", "f32", 512, 64),
        ("sm_75", "e4m3", 328, 1),
        ("sm_75", "f16", 128, 8),
        ("sm_75", "s8", 320, 7),
        ("sm_75", "bf16", 376, 2),
    ],
)
def test_the_tightest_shapes_do_not_spill(where: str, kv_dtype: str, head_dim: int, group: int) -> None:
    spec = IncrementalAttention(100, head_dim, group, 1, kv_dtype=kv_dtype, alibi=True, soft_cap=30.0, indirect=True)
    assert assemble(generate(spec, where).text, where).resources[spec.kernel_name].clean


def test_lanes_depend_on_the_rows_and_the_group_and_fit_a_small_cache() -> None:
    a = attention(128, 4, "f32")
    grouped = dataclasses.replace(a.problem, n_heads=8, n_kv_heads=2)
    other = dataclasses.replace(a, cache=dataclasses.replace(a.cache, problem=grouped, max_len=77))
    assert lanes_of(a, SM_90) == lanes_of(other, target("sm_100"))
    small = [lanes_of(sized(a, n), SM_75).tile for n in (1, 16, 17, 32, 33, 4096)]
    assert small == sorted(small)
    assert all(tile < 2 * max(n, 16) for tile, n in zip(small, (1, 16, 17, 32, 33, 4096), strict=True))


def test_what_lanes_share_is_summed_in_a_loop_over_their_distances() -> None:
    """A shuffle a register, not one a distance too: before sm_90 each has a second path with registers of its own."""
    text = generate(IncrementalAttention(4096, 64, 4, 1), "sm_75").text
    lanes = lanes_of(attention(64, 4, "f32"), SM_75)
    end = text[text.index("$lanes:") : text.index("bra $lanes;")]
    assert end.count("shfl") == lanes.heads * (lanes.dims + 1)
