"""Prefill on wgmma: numbers against float64 on the executor, which attention it takes, and waits that matter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ptxgen import ExecutionError, generate
from ptxgen.assembler import assemble
from ptxgen.attention.prefill.wgmma import items
from ptxgen.attention.prefill.wgmma.tile import ROWS, WgmmaTile, wgmma_tile
from ptxgen.generator import clear_cache
from ptxgen.kernels import MultiHeadAttention
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.trial import Trial, trial
from ptxgen.targets import target as parse_target
from tests.support.marks import needs_ptxas
from tests.tools.mutations import SpecSubject, Work, deletions

TARGET = "sm_90a"
SIZES = {"n_tokens": 70, "n_keys": 300}
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"layout": "heads"},
    {"layout": "heads", "heads_inside": 2},
    {"n_heads": 9, "n_kv_heads": 3, "head_dim": 48, "layout": "heads", "heads_inside": 3},
)
SMALL: dict[str, Any] = {"head_dim": 16, "n_heads": 4, "n_kv_heads": 2, "q_dtype": "bf16", "kv_dtype": "bf16"}


def spec(**fields: Any) -> MultiHeadAttention:
    return MultiHeadAttention(**{"lse": True, **SMALL, **fields})


def attend(mode: str, sizes: dict[str, int], loud: float = 1.0, **fields: Any) -> Trial:
    """A trial, NaN beyond the lengths, queries `loud` times as large; every buffer must match."""
    one = spec(**fields)
    assert one.template(parse_target(TARGET)).endswith("_wgmma")
    given = one.example(np.random.default_rng(1), **sizes)
    given["q"] = (given["q"].astype(np.float32) * loud).astype(given["q"].dtype)
    for array, index in one.past(given):
        array[index] = np.nan
    return trial(one, open_device("cpu", mode=mode), target=TARGET, arguments=given, **sizes).require()


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [16, 24, 32, 40, 48, 64, 72, 80, 88, 96, 112, 120, 128, 192, 200, 208, 256])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_head_dims(head_dim: int, kind: str) -> None:
    attend("check", {"n_tokens": 70, "n_keys": 150}, head_dim=head_dim, q_dtype=kind, kv_dtype=kind)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_lengths_around_every_boundary(causal: bool, kind: str) -> None:
    """One less, equal and one more than tiles of rows (128, of which a token has 2) and of keys (16)."""
    for q_len, kv_len in [
        (0, 0), (0, 9), (1, 0), (1, 1), (2, 15), (63, 16), (64, 17), (65, 64), (31, 33), (70, 1), (1, 70), (70, 70),
    ]:  # fmt: skip
        sizes = {"n_tokens": 70, "q_len": q_len, "kv_len": kv_len}
        attend("fast", sizes, causal=causal, max_len=70, q_dtype=kind, kv_dtype=kind)


@pytest.mark.parametrize(("head_dim", "n_heads"), [(64, 4), (96, 2), (128, 8)])
def test_late_and_early_rows_share_a_cta(head_dim: int, n_heads: int) -> None:
    """Lengths around tiles of rows (64, of which a token has 1, 2 or 4) and of keys (64, 96, 128); with an offset of
    tokens that fills them and with others, and with rows before the first key."""
    more = {"head_dim": head_dim, "n_heads": n_heads, "layout": "heads"}
    for q_len, kv_len in [
        (1, 1), (31, 31), (33, 33), (64, 64), (65, 65), (96, 96), (97, 97), (129, 129), (64, 96), (64, 160), (64, 97),
        (33, 290), (100, 68), (100, 67), (5, 0),
    ]:  # fmt: skip
        attend("fast", {"n_tokens": q_len, "n_keys": max(kv_len, 1), "kv_len": kv_len}, **more)
    attend("check", {"n_tokens": 200, "n_keys": 200}, **more)
    attend("random", {"n_tokens": 160, "n_keys": 160}, 100.0, **more)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    "fields",
    [
        *LAYOUTS,
        {"n_heads": 3, "n_kv_heads": 1, "indirect": True, "max_len": 150},
        {"max_len": 150, "window": 20, "sinks": True},
        {"max_len": 150, "window": 20, "ring": 128},
        {"max_len": 150, "window": 65},
        {"max_len": 150, "window": 65, "batched": True, "page_size": 16},
        {"max_len": 150, "window": 90, "n_heads": 6},
        {"soft_cap": 5.0, "scale": 1.0},
        {"max_len": 150, "batched": True},
        {"max_len": 150, "batched": True, "page_size": 16, "sinks": True, "causal": False},
        {"max_len": 150, "batched": True, "page_size": 48, "page_layout": "nhd", "window": 30},
        {"n_heads": 5, "n_kv_heads": 5},
        {"head_dim": 64, "layout": "heads"},
        {"head_dim": 64, "max_len": 150, "batched": True, "page_size": 16, "causal": False},
        {"head_dim": 208, "max_len": 150, "batched": True, "page_size": 16},
        {"head_dim": 40, "layout": "heads", "heads_inside": 4},
        {"head_dim": 72, "max_len": 150, "batched": True, "page_size": 16, "causal": False},
        {"head_dim": 24, "max_len": 150, "window": 20, "sinks": True},
    ],
    ids=str,
)
def test_options(mode: str, fields: dict[str, Any]) -> None:
    attend(mode, {"n_tokens": 90, "n_keys": 140, "batch": 40 if "batched" in fields else 3, "pages": 30}, **fields)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_logits_beyond_the_first_tiles_maximum(head_dim: int, kind: str) -> None:
    """Probabilities would pass 2^63 of the first maximum: the items are computed again, with a running one."""
    loud = attend("check", {"n_tokens": 90, "n_keys": 250}, 100.0, head_dim=head_dim, q_dtype=kind, kv_dtype=kind)
    assert np.isfinite(loud.outputs["lse"]).all()


@pytest.mark.parametrize("louder", [4.0, 12.0, 20.0, 60.0, 126.0, 140.0])
@pytest.mark.parametrize("head_dim", [16, 64])
def test_probabilities_beyond_f16(head_dim: int, louder: float) -> None:
    """Keys that count 2^louder times as much as those of the first tile, some of them 2^-louder times. Up to 2^16 f16
    holds them; beyond, all that was added up takes a multiple of two less, and beyond float32 all is done again."""
    one, given = with_louder_keys(head_dim, louder)
    trial(one, open_device("cpu", mode="check"), target=TARGET, arguments=given, **SIZES).require()


@pytest.mark.parametrize(("louder", "once"), [(12.0, True), (20.0, True), (60.0, True), (140.0, False)])
def test_probabilities_beyond_f16_are_computed_once(louder: float, once: bool) -> None:
    """Without what computes an item again the results are right as far as scaling down goes, and no further."""
    one, given = with_louder_keys(16, louder)
    subject = SpecSubject(one, parse_target(TARGET))
    vars(subject)["works"] = (Work(SIZES, given, one.reference(**given)),)
    text, count = re.subn(r"@%runs_again bra [^;]+;", "", subject.ptx.text)
    assert count == 2
    assert (subject.run(text, "fast", 0) is None) == once


def with_louder_keys(head_dim: int, louder: float) -> tuple[MultiHeadAttention, dict[str, Any]]:
    """A kernel on f16, and arguments of `SIZES` whose keys count as said above."""
    one = spec(head_dim=head_dim, n_heads=2, n_kv_heads=1, scale=1.0, q_dtype="f16", kv_dtype="f16")
    given = one.example(np.random.default_rng(1), **SIZES)
    given["q"][...] = 0.0
    given["q"][..., 0] = 1.0
    step = louder * np.log(2.0)
    given["k"][..., 0] = np.linspace(-1, 0, 300)[:, None]
    given["k"][100:140, ..., 0] += step
    given["k"][7:9, ..., 0] += step + 2.0
    given["k"][20:40, ..., 0] -= step
    return one, given


@pytest.mark.parametrize(
    ("window", "n_heads", "serves"), [(64, 4, False), (65, 4, True), (43, 6, False), (44, 6, True)]
)
def test_the_first_maximum_serves_windows_that_reach_over_an_item(window: int, n_heads: int, serves: bool) -> None:
    """128 rows of 2 or 3 query heads: the last row is up to 64 or 43 tokens behind the first."""
    more = {"max_len": 250, "window": window, "n_heads": n_heads}
    assert ("is_careful" in generate(spec(**more), TARGET).text) == serves
    attend("check", {"n_tokens": 90}, 100.0, **more)


def test_values_that_a_first_maximum_would_make_infinite() -> None:
    """Sums stay within their range, but products with large values do not."""
    one = spec(n_heads=1, n_kv_heads=1, scale=1.0)
    given = one.example(np.random.default_rng(1), n_tokens=40, n_keys=40)
    for name, value in (("q", 1.0), ("k", 0.0), ("v", 1e37)):
        given[name][...] = value
    given["k"][:16] = 1.8  # of the 16 elements: keys of the first tile of late rows have a lower maximum
    trial(one, open_device("cpu"), target=TARGET, arguments=given, n_tokens=40, n_keys=40).require()


def test_the_same_bits_whatever_the_order() -> None:
    runs = []
    for seed in (1, 2):
        one, device = spec(), open_device("cpu", mode="random", seed=seed)
        given = one.example(np.random.default_rng(3), n_tokens=90, n_keys=200)
        runs.append(trial(one, device, target=TARGET, arguments=given, n_tokens=90, n_keys=200).outputs["out"])
    assert runs[0].tobytes() == runs[1].tobytes()


# -- several items of a CTA --------------------------------------------------------------------------------------------


def few_ctas(one: MultiHeadAttention, text: str, mode: str, ctas: int) -> float:
    """The error of a launch of fewer CTAs than there are items, each of which then takes several."""
    device = open_device("cpu", mode=mode)
    sizes = {**one.sizes, "n_tokens": 300, "n_keys": 300}
    given = one.example(np.random.default_rng(5), **sizes)
    held = {name: device.array(a) if np.ndim(a) else np.int32(a) for name, a in given.items()}
    scratch = [p for p in one.params() if p.access == "workspace"]
    held |= {p.name: device.array(np.zeros(p.nbytes(sizes), np.uint8)) for p in scratch}
    launch = one.launch(parse_target(TARGET))
    entry = device.module(text)[one.kernel_name]
    entry.launch(grid=ctas, block=launch.block, args=[held[p.name] for p in one.params()], shared=launch.shared)
    assert not any(held[p.name].numpy().any() for p in scratch if p.zeroed), "left as it was for the next launch"
    wanted = one.reference(**given)["out"].astype(np.float64)
    got = held["out"].numpy().astype(np.float64)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("ctas", [1, 3])
@pytest.mark.parametrize("head_dim", [16, 64, 96, 192])
@pytest.mark.parametrize("more", [{}, {"max_len": 300, "batched": True}])
def test_a_cta_takes_several_items(mode: str, ctas: int, head_dim: int, more: dict[str, Any]) -> None:
    one = spec(head_dim=head_dim, **more)
    assert few_ctas(one, generate(one, TARGET).text, mode, ctas) < 0.01


def test_rows_without_keys_leave_the_next_item_its_queries() -> None:
    """Rows of out lie over those of q, which the producer fills for the next item, as one without keys has none."""
    one = spec(head_dim=192, max_len=300, batched=True)
    assert few_ctas(one, generate(one, TARGET).text, "check", 1) < 0.01


@pytest.mark.parametrize("ctas", [1, 3, 7, 40])
@pytest.mark.parametrize("heads", [4, 6])
def test_heads_in_sections(monkeypatch: pytest.MonkeyPatch, ctas: int, heads: int) -> None:
    """As where K and V of all heads do not stay in the L2 cache: two heads at a time; all at once on 40 CTAs, which are
    more than there are items."""
    monkeypatch.setattr(items, "WHOLE", 300 * 64 * 3)
    monkeypatch.setattr(items, "SECTION", 300 * 64 * 2)
    clear_cache()
    one = spec(n_heads=2 * heads, n_kv_heads=heads)
    assert few_ctas(one, generate(one, TARGET).text, "check", ctas) < 0.01
    clear_cache()


@pytest.mark.parametrize(
    "fields",
    [{}, {"kv_dtype": "f16", "q_dtype": "f16", "max_len": 300, "batched": True}],
    ids=str,
)
def test_waits_between_items_that_are_left_out(fields: dict[str, Any]) -> None:
    """Those that a single item does not need: for q to be read, and for rows of out to have left."""
    one = spec(lse=False, **fields)
    between = [m for m in deletions(generate(one, TARGET).text) if "q0_empty" in m.what or "q1_empty" in m.what]
    assert len(between) == 2
    for mutation in between:
        with pytest.raises(ExecutionError):
            few_ctas(one, mutation.text, "check", 1)


# -- what it takes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("sm_90", {}),
        ("sm_100a", {}),
        (TARGET, {"q_dtype": "f32"}),
        (TARGET, {"q_dtype": "f16"}),
        (TARGET, {"q_dtype": "f32", "kv_dtype": "e4m3"}),
        (TARGET, {"head_dim": 8}),
        (TARGET, {"head_dim": 40, "max_len": 150, "window": 20, "ring": 128}),
        (TARGET, {"head_dim": 40, "kv_dtype": "e4m3"}),
        (TARGET, {"head_dim": 272}),
        (TARGET, {"head_dim": 208, "max_len": 150, "window": 20, "ring": 128}),
    ],
    ids=str,
)
def test_everything_else_takes_another_way(target: str, fields: dict[str, Any]) -> None:
    assert not isinstance(spec(**fields).tile(parse_target(target)), WgmmaTile)


@pytest.mark.parametrize(
    ("head_dim", "maps"), [(dim, maps) for maps in (True, False) for dim in range(16, 257 if maps else 193, 16)]
)
def test_shared_memory_and_registers_are_within_the_chip(head_dim: int, maps: bool) -> None:
    tile = wgmma_tile(head_dim, maps)
    assert tile.keys % 16 == 0
    assert tile.kv_bytes % 1024 == 0
    assert 232448 // 2 < tile.shared_bytes <= 232448  # one CTA on a multiprocessor
    at_launch = 65536 // tile.threads // 8 * 8
    asked = tile.producer_registers + tile.warpgroups * tile.consumer_registers
    assert asked <= (1 + tile.warpgroups) * at_launch, "setmaxnreg would wait for ever"
    assert tile.rows == ROWS * tile.warpgroups


@pytest.mark.parametrize("tokens", [1, 264, 265, 400])
def test_short_prompts_have_tiles_of_fewer_rows(tokens: int) -> None:
    """Of 32 KV heads and 3 warpgroups two take part in up to 4 tiles of 128 rows a head, of more all three."""
    more: dict[str, Any] = {"head_dim": 64, "n_heads": 64, "n_kv_heads": 32}
    taken = attend("fast", {"n_tokens": tokens, "n_keys": tokens}, **more)
    assert taken.outputs["out"].shape[0] == tokens


@pytest.mark.parametrize("tokens", [1000, 1024, 1100])
def test_without_a_mask_tiles_have_fewer_rows_where_the_last_round_is_thin(tokens: int) -> None:
    """Of 4 KV heads with groups of eight 1024 tokens are 172 items of 192 rows, or 256 of 128: two rounds of either."""
    more: dict[str, Any] = {"head_dim": 64, "n_heads": 32, "n_kv_heads": 4, "causal": False}
    assert "%rounds_of_fewer, %rounds_of_all" in generate(spec(**more), TARGET).text
    attend("fast", {"n_tokens": tokens, "n_keys": 70}, **more)


@needs_ptxas
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192])
@pytest.mark.parametrize(
    "fields",
    [
        {"layout": "heads"},
        {"n_heads": 8, "n_kv_heads": 4, "layout": "heads", "heads_inside": 4},
        {"q_dtype": "f16", "kv_dtype": "f16", "soft_cap": 30.0},
        {"n_heads": 24, "n_kv_heads": 8, "max_len": 4096, "batched": True, "page_size": 48, "page_layout": "nhd"},
        {"max_len": 4096, "window": 100, "ring": 256, "sinks": True},
        {
            "n_heads": 6,
            "n_kv_heads": 1,
            "max_len": 4096,
            "window": 1000,
            "soft_cap": 30.0,
            "sinks": True,
            "indirect": True,
        },
        {"max_len": 4096, "batched": True, "page_size": 16},
    ],
    ids=str,
)
def test_nothing_is_spilled_and_no_product_waits_for_another(head_dim: int, fields: dict[str, Any]) -> None:
    made = assemble(generate(spec(head_dim=head_dim, **fields), TARGET).text)
    assert all(taken.clean for taken in made.resources.values()), made.resources
    assert "serialized" not in made.log
