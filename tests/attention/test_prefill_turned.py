"""Prefill wholly in 8 bits: V by element in memory, probabilities in e5m2, their sums by ones behind V."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import ExecutionError, generate
from ptxgen.attention.prefill.wgmma.consumer.softmax_e5m2 import BELOW, ONE, STEPS, TOP
from ptxgen.attention.prefill.wgmma.tile import MOST_WIDE, SWIZZLED_ROW, WIDEST_PROMOTED, turns, wgmma_tile
from ptxgen.attention.prefill.wgmma.workspace.transposed_values import GROUP, KEYS_IN_ORDER, Lanes
from ptxgen.kernels import MultiHeadAttention
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target as parse_target
from tests.attention.test_prefill_wgmma import few_ctas
from tests.support.attention.prefill_8_bits import E4M3, TARGET, attend, batch, spec
from tests.support.sweep import drawn
from tests.tools.mutations import deletions

FP8: dict[str, Any] = {**E4M3, "fp8": True}
UNWRITTEN = 0x55


@pytest.mark.parametrize(
    ("head_dim", "keys"),
    [(32, (63, 64, 65, 128, 129)), (96, (127, 128, 129)), (128, (127, 128, 129, 255, 257)), (160, (96, 97))],
)
@pytest.mark.parametrize("causal", [True, False])
def test_lengths_around_tiles_of_keys(head_dim: int, keys: tuple[int, ...], causal: bool) -> None:
    """And around blocks of 16 and 32; what lies behind is NaN, and zero by the time it is multiplied."""
    for q_len, kv_len in [(0, 9), (1, 0), (1, 1), (3, 15), (2, 17), (17, 16), (40, 33), *((33, n) for n in keys)]:
        sizes = {"n_tokens": 40, "q_len": q_len, "kv_len": kv_len}
        attend("fast", sizes, head_dim=head_dim, causal=causal, max_len=260, **FP8)


@pytest.mark.parametrize("head_dim", [32, 128])
def test_lengths_of_a_batch(head_dim: int) -> None:
    """More sequences than a warp has lanes, some without tokens or keys."""
    lengths = [(1, 1), (0, 90), (3, 0), (2, 63), (2, 64), (5, 65), (1, 127), (3, 128), (2, 129), (0, 0), (4, 191)]
    lengths += [(0, 50)] * 30 + [(2, 192), (7, 193), (1, 200)]
    one = spec(head_dim=head_dim, max_len=200, batched=True, **FP8)
    given = batch(lengths, one)
    sizes = given.pop("sizes")
    trial(one, open_device("cpu", mode="check"), target=TARGET, arguments=given, **sizes).require()


@pytest.mark.parametrize("ctas", [1, 3])
@pytest.mark.parametrize("more", [{}, {"batched": True}, {"window": 40}, {"head_dim": 64}], ids=str)
def test_a_cta_takes_several_blocks_and_items(ctas: int, more: dict[str, Any]) -> None:
    one = spec(max_len=300, **FP8, **more)
    assert few_ctas(one, generate(one, TARGET).text, "check", ctas) < 0.07


@pytest.mark.parametrize("mode", ["check", "random"])
def test_all_that_a_row_can_see(mode: str) -> None:
    fields = {"window": 70, "sinks": True, "n_heads": 6, "n_kv_heads": 2, "indirect": True}
    attend(mode, {"n_tokens": 150, "n_keys": 190}, head_dim=64, sign=-1.0, max_len=200, **FP8, **fields)


def test_the_same_bytes_in_any_order() -> None:
    one = spec(head_dim=64, max_len=200, **FP8)
    given = one.example(np.random.default_rng(1), n_tokens=90, n_keys=190)
    outs = [
        trial(one, open_device("cpu", mode="random", seed=seed), target=TARGET, arguments=given, n_tokens=90).outputs
        for seed in range(3)
    ]
    assert all(np.array_equal(out[x].view(np.uint8), outs[0][x].view(np.uint8)) for out in outs for x in ("out", "lse"))


@pytest.mark.parametrize("loud", [1.0, 5.0, 40.0])
def test_maxima_that_grow(loud: float) -> None:
    """Scores beyond the room above the first maximum, and far beyond it."""
    attend("fast", {"n_tokens": 90, "n_keys": 600}, loud, head_dim=64, max_len=600, **FP8)


def test_a_first_key_that_has_most_of_the_weight() -> None:
    """Its value is zero, so the output is that of the others: they keep their weights, each some 2^-14 of it."""
    one = spec(head_dim=64, n_heads=1, n_kv_heads=1, lse=False, max_len=300, fp8=True, kv_dtype="e4m3")
    given = one.example(np.random.default_rng(1), n_tokens=30)
    given["q"] = (given["q"].astype(np.float32) / 8 + 1).astype(given["q"].dtype)
    given["k"] = (given["k"].astype(np.float32) / 8).astype(given["k"].dtype)
    given["k"][:, 0] = 1.25  # times 64 elements of q, over 8: e^10
    given["v"][:, 0] = 0
    trial(one, open_device("cpu"), target=TARGET, arguments=given, n_tokens=30).require()


def test_waits_and_values_that_matter() -> None:
    """Of the tiles for their slots, of V for its blocks; each left out is noticed."""
    one = spec(lse=False, max_len=300, **FP8)
    text = generate(one, TARGET).text
    assert few_ctas(one, text, "check", 1) < 0.07
    waits = ("box_empty", "q0_empty", "q1_empty", "k_full", "v_full", "blocks_so_far")
    matter = [m for m in deletions(text) if m.kind == "wait" and any(word in m.what for word in waits)]
    assert len(matter) >= 5
    for mutation in drawn(matter):
        with pytest.raises((ExecutionError, AssertionError)):
            assert few_ctas(one, mutation.text, "check", 1) < 0.07


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0x38383838;", "0;"),  # ones
        (", 0x5140;", ", 0x7362;"),  # pairs of keys
        (", 0x6420;", ", 0x2064;"),  # low bytes of halves
        ("mov.b32 %turned_word3, 0;", "mov.b32 %turned_word3, -1;"),  # what lies behind the last key
    ],
)
def test_values_that_are_put_wrong(old: str, new: str) -> None:
    one = spec(lse=False, max_len=300, **FP8)
    text = generate(one, TARGET).text
    assert old in text
    assert not few_ctas(one, text.replace(old, new), "fast", 1) < 0.07


def test_keys_in_the_order_of_accumulators() -> None:
    """Byte k of the 16 that a lane stores is the key whose probability is byte k of the register operand's words."""
    order = np.array(KEYS_IN_ORDER)
    assert sorted(order.flat) == list(range(GROUP))
    for quad in range(4):  # columns of a thread in the accumulators of 8 keys, of two groups of them
        assert list(order[quad]) == [2 * quad, 2 * quad + 1, 8 + 2 * quad, 8 + 2 * quad + 1]


def test_bits_that_are_made_of_scores() -> None:
    """Over all of the range in which e5m2 has its two bits: the mean is right, the error as stated."""
    logs = np.linspace(-14, TOP, 290001)
    bits = np.rint(STEPS * logs + ONE + BELOW).astype(np.uint16) << 8  # e5m2 is the upper byte of f16
    ratio = bits.view(np.float16).astype(np.float64) / 2.0**logs
    assert abs(ratio.mean() - 1) < 2e-3
    assert 0.05 < ratio.std() < 0.056
    assert np.abs(ratio - 1).max() < 0.15


@pytest.mark.parametrize(
    ("fields", "turned"),
    [
        ({"max_len": 1 << 20}, True),
        ({"max_len": MOST_WIDE, "head_dim": 160}, True),
        ({"max_len": MOST_WIDE + 1, "head_dim": 160}, False),
        ({"max_len": 1 << 20, "head_dim": 160, "window": MOST_WIDE}, True),
        ({"max_len": 1 << 20, "head_dim": 160, "window": MOST_WIDE + 1}, False),
        ({"max_len": 1 << 20, "window": 1000}, True),
        ({"max_len": 1 << 20, "window": 1 << 19, "batched": True}, True),
        ({}, False),
        ({"max_len": 200, "batched": True}, True),
        ({"max_len": 200, "batched": True, "page_size": 16}, False),
        ({"max_len": 200, "window": 20, "ring": 128}, False),
        ({"fp8": False}, False),
    ],
    ids=str,
)
def test_where_values_lie_by_element(fields: dict[str, Any], turned: bool) -> None:
    """Not of pages and rings, nor of wide rows that may see many keys."""
    one = spec(**{**FP8, **fields})
    assert turns(one.prefill) is turned
    assert ("turned_v" in [p.name for p in one.params()]) is turned


@pytest.mark.parametrize(
    ("fields", "sizes", "nbytes"),
    [
        ({"head_dim": 128, "n_kv_heads": 2, "max_len": 129}, {}, 2 * 2 * 128 * 128),
        ({"head_dim": 64, "n_kv_heads": 2, "max_len": 256}, {}, 2 * 2 * 64 * 128),
        ({"head_dim": 96, "n_kv_heads": 1, "max_len": 129, "batched": True}, {"batch": 3}, 3 * 2 * 96 * 128),
    ],
)
def test_the_workspace_of_values(fields: dict[str, Any], sizes: dict[str, int], nbytes: int) -> None:
    """As many bytes as V has, in whole tiles."""
    one: MultiHeadAttention = spec(**FP8, **fields)
    [turned] = [p for p in one.params() if p.name == "turned_v"]
    assert turned.nbytes({**one.sizes, **sizes}) == nbytes


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("window", "tiles"), [(0, 8), (128 * 3 - 4, 3), (128 * 3 - 3, 4)])
def test_values_that_no_token_sees_are_not_written(batched: bool, window: int, tiles: int) -> None:
    """Of 8 tiles of 128 keys those from a window's first key on; the workspace has room for max_len keys."""
    one = spec(head_dim=64, max_len=6000, window=window, batched=batched, **FP8)
    given = batch([(5, 1024)], one) if batched else {}
    sizes = {**one.sizes, **given.pop("sizes", {"n_tokens": 5, "kv_len": 1024})}
    given = given or one.example(np.random.default_rng(2), **sizes)
    given |= {p.name: np.zeros(p.nbytes(sizes), np.uint8) for p in one.params() if p.access == "workspace"}
    given["turned_v"][:] = UNWRITTEN
    device = open_device("cpu")
    held: dict[str, Any] = {name: device.array(a) if np.ndim(a) else np.int32(a) for name, a in given.items()}
    launch = one.launch(parse_target(TARGET))
    entry = device.module(generate(one, TARGET).text)[one.kernel_name]
    entry.launch(grid=2, block=launch.block, args=[held[p.name] for p in one.params()], shared=launch.shared)
    written = held["turned_v"].numpy().reshape(one.n_kv_heads, -1, 64 * SWIZZLED_ROW) != UNWRITTEN
    for head in written:
        assert [bool(tile.any()) for tile in head] == [8 - tiles <= n < 8 for n in range(len(head))]


@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": 128, "max_len": 300},
        {"head_dim": 64, "max_len": 300, "batched": True},
        {"head_dim": 128, "max_len": 4104},
        {"head_dim": 96, "max_len": 4104, "batched": True},
    ],
    ids=str,
)
def test_a_device_twice(device: Device, fields: dict[str, Any]) -> None:
    """Right, and the same bytes again."""
    sizes = {"n_tokens": 150, "n_keys": 290, "batch": 5}
    trial(spec(**FP8, **fields), device, target=TARGET, repeat=True, **sizes).require()


@pytest.mark.parametrize(
    ("head_dim", "promoted"),
    [*((n, False) for n in range(32, 193, 32)), *((n, True) for n in range(32, WIDEST_PROMOTED + 1, 32))],
)
def test_shared_memory_and_registers_are_within_the_chip(head_dim: int, promoted: bool) -> None:
    tile = wgmma_tile(head_dim, fp8=True, turned=True, promoted=promoted)
    assert tile.keys % GROUP == 0
    assert tile.keys <= SWIZZLED_ROW
    assert tile.keys % Lanes(head_dim).rows == 0
    assert tile.kv_bytes % 1024 == 0
    assert tile.v_bytes % 1024 == 0
    assert tile.shared_bytes <= 232448
    at_launch = 65536 // tile.threads // 8 * 8
    asked = tile.producer_registers + tile.warpgroups * tile.consumer_registers
    assert asked <= (1 + tile.warpgroups) * at_launch, "setmaxnreg would wait for ever"
