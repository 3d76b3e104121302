"""Prefill on wgmma whose keys and values of 8 bits become 16-bit rows in memory first (`widened`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen import generate
from ptxgen.assembler import assemble
from ptxgen.attention.prefill.wgmma import items
from ptxgen.errors import SpecError
from ptxgen.generator import clear_cache
from ptxgen.kernel import supports
from ptxgen.kernels import MultiHeadAttention
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target as parse_target
from tests.attention.test_prefill_wgmma import few_ctas
from tests.support.attention.prefill_8_bits import E4M3, KINDS, TARGET, attend, batch, spec
from tests.support.marks import needs_ptxas


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize(
    "fields",
    [
        {"layout": "heads"},
        {"q_dtype": "f16", "head_dim": 64},
        {"n_heads": 3, "n_kv_heads": 1, "indirect": True, "max_len": 150, "head_dim": 48},
        {"max_len": 150, "window": 20, "sinks": True},
        {"max_len": 150, "causal": False, "soft_cap": 5.0},
        {"max_len": 150, "batched": True},
        {"max_len": 150, "batched": True, "page_size": 16, "causal": False},
        {"max_len": 150, "batched": True, "page_size": 48, "page_layout": "nhd", "window": 30, "head_dim": 64},
    ],
    ids=str,
)
def test_widened(mode: str, kind: str, fields: dict[str, Any]) -> None:
    sizes = {"n_tokens": 90, "n_keys": 140, "batch": 40 if "batched" in fields else 3, "pages": 400}
    attend(mode, sizes, sign=-1.0, widened=True, **KINDS[kind], **fields)


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("head_dim", [16, 128, 192, 256])
def test_widened_head_dims(kind: str, head_dim: int) -> None:
    attend("random", {"n_tokens": 70, "n_keys": 150}, head_dim=head_dim, widened=True, max_len=150, **KINDS[kind])


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("head_dim", [24, 40, 72, 120, 200, 248])
@pytest.mark.parametrize("more", [{}, {"batched": True, "page_size": 16}], ids=str)
def test_widened_rows_behind_which_zeros_follow(kind: str, head_dim: int, more: dict[str, Any]) -> None:
    """wgmma contracts 16 elements at a time."""
    mode, sizes = "check" if head_dim <= 72 else "random", {"n_tokens": 70, "n_keys": 150, "pages": 40}
    attend(mode, sizes, head_dim=head_dim, widened=True, max_len=150, **KINDS[kind], **more)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("head_dim", "kind", "fields"),
    [
        (40, "e4m3", {"max_len": 700}),
        (72, "s8", {"n_heads": 6, "window": 200}),
        (120, "s8", {"max_len": 700, "batched": True, "page_size": 16}),
        (120, "e4m3", {"max_len": 700, "layout": "heads", "sinks": True}),
        (200, "e4m3", {"max_len": 700, "batched": True, "causal": False}),
        (248, "s8", {"n_heads": 6, "soft_cap": 30.0, "q_dtype": "f16"}),
    ],
    ids=str,
)
def test_widened_on_a_gpu(gpu: Device, head_dim: int, kind: str, fields: dict[str, Any]) -> None:
    """Twice over the same counts, which are left clear, and over rows that are none before."""
    one = spec(head_dim=head_dim, widened=True, **KINDS[kind], **fields)
    outs = widened_twice(one, gpu, n_tokens=300, n_keys=700, batch=5, pages=300)
    assert outs[0] == outs[1]


def widened_twice(one: MultiHeadAttention, device: Any, **sizes: int) -> list[bytes]:
    """Outputs of two launches over the same workspaces, which must match the reference."""
    sizes = {**one.sizes, **sizes}
    given = one.example(np.random.default_rng(4), **sizes)
    held: dict[str, Any] = {name: device.array(a) if np.ndim(a) else np.int32(a) for name, a in given.items()}
    room = {param.name: param.nbytes(sizes) for param in one.params() if param.access == "workspace"}
    held["widening"] = device.array(np.zeros(room.pop("widening"), np.uint8))
    launch = one.launch(parse_target(TARGET)).at(sizes)
    entry = device.module(generate(one, TARGET).text)[one.kernel_name]
    wanted = one.reference(**given)["out"].astype(np.float64)
    outs = []
    for _ in range(2):
        held |= {name: device.array(np.full(nbytes, 0xFF, np.uint8)) for name, nbytes in room.items()}
        held["out"] = device.array(given["out"])
        entry.launch(
            grid=launch.grid, block=launch.block, args=[held[p.name] for p in one.params()], shared=launch.shared
        )
        got = held["out"].numpy()
        assert not held["widening"].numpy().any()
        assert np.linalg.norm(got.astype(np.float64) - wanted) < 0.01 * np.linalg.norm(wanted)
        outs.append(got.tobytes())
    return outs


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
def test_lengths_around_blocks_that_are_widened(kind: str) -> None:
    """Of 16 keys each."""
    for q_len, kv_len in [(0, 9), (1, 0), (1, 1), (63, 15), (64, 16), (65, 17), (31, 191), (70, 192), (70, 193)]:
        sizes = {"n_tokens": 70, "q_len": q_len, "kv_len": kv_len}
        attend("fast", sizes, widened=True, max_len=200, **KINDS[kind])


FORMS: dict[str, dict[str, Any]] = {
    "rows": {},
    "pages": {"page_size": 16},
    "pages, window": {"page_size": 48, "page_layout": "nhd", "window": 20},
}


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("form", FORMS)
def test_widened_lengths_of_a_batch(kind: str, form: str) -> None:
    """Around blocks and boxes of 16 keys; more sequences than a warp has lanes, some without tokens or keys."""
    lengths = [(1, 1), (0, 90), (3, 0), (2, 15), (2, 16), (5, 17), (1, 95), (3, 96), (2, 97), (0, 0), (4, 191)]
    lengths += [(0, 50)] * 30 + [(2, 192), (7, 193), (1, 200)]
    one = spec(max_len=200, batched=True, widened=True, **KINDS[kind], **FORMS[form])
    given = batch(lengths, one)
    sizes = given.pop("sizes")
    trial(one, open_device("cpu", mode="check"), target=TARGET, arguments=given, **sizes).require()


def test_pages_that_sequences_share_are_widened_by_each() -> None:
    """One ends within a page in which another goes on: the keys behind its end stay the other's."""
    one = spec(max_len=200, batched=True, widened=True, page_size=16, **E4M3)
    given = batch([(20, 200), (3, 100)], one)
    sizes = given.pop("sizes")
    given["page_table"][1] = given["page_table"][0]
    whole = given["page_table"][0]
    clean = one.example(np.random.default_rng(2), **sizes)
    for x in "kv":
        given[x][whole[:12]] = clean[x][whole[:12]]
    trial(one, open_device("cpu", threads=1), target=TARGET, arguments=given, **sizes).require()


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("ctas", [1, 3])
@pytest.mark.parametrize("more", [{}, {"batched": True}, {"window": 40}], ids=str)
def test_a_cta_takes_several_blocks_and_items(kind: str, ctas: int, more: dict[str, Any]) -> None:
    one = spec(widened=True, max_len=300, **KINDS[kind], **more)
    assert few_ctas(one, generate(one, TARGET).text, "check", ctas) < 0.02


@pytest.mark.parametrize("ctas", [1, 3, 40])
def test_widened_heads_in_sections(monkeypatch: pytest.MonkeyPatch, ctas: int) -> None:
    """Two heads at a time, as where K and V of all do not stay in the L2 cache: blocks come in the order of items."""
    monkeypatch.setattr(items, "WHOLE", 300 * 64 * 6)
    monkeypatch.setattr(items, "SECTION", 300 * 64 * 4)
    clear_cache()
    one = spec(n_heads=8, n_kv_heads=4, max_len=300, widened=True, **E4M3)
    assert few_ctas(one, generate(one, TARGET).text, "check", ctas) < 0.02
    clear_cache()


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
def test_widened_rows_of_a_window_without_a_bound_of_keys(kind: str) -> None:
    """With tiles of 96 keys, whose first one is no shift of a position."""
    attend("check", {"n_tokens": 150, "n_keys": 250}, head_dim=64, window=50, widened=True, **KINDS[kind])


@pytest.mark.parametrize(
    ("fields", "counts", "widened"),
    [
        ({"kv_dtype": "e4m3"}, (4096, 4096), True),
        ({"kv_dtype": "e4m3"}, (512, 32768), True),
        ({"kv_dtype": "e4m3"}, (512, 512), False),
        ({"kv_dtype": "e4m3", "n_heads": 64}, (256, 32768), True),
        ({"kv_dtype": "e4m3"}, (128, 512), False),
        ({"kv_dtype": "s8", "n_kv_heads": 4, "head_dim": 64}, (512, 8192), True),
        ({"kv_dtype": "e4m3", "batched": True}, (15092, 1509, 10), True),
        ({"kv_dtype": "e4m3", "batched": True}, (1024, 8192, 8), False),
        ({"kv_dtype": "e4m3", "window": 1024}, (512, 32768), False),
        ({"kv_dtype": "e4m3", "window": 1024, "ring": 2048}, (4096, 4096), False),
        ({"kv_dtype": "e4m3", "head_dim": 256}, (512, 512), True),  # else on mma.sync, as are the next
        ({"kv_dtype": "s8", "head_dim": 120}, (64, 512), True),
        ({"kv_dtype": "e4m3", "head_dim": 72}, (4, 64), False),
        ({"kv_dtype": "s8", "head_dim": 120, "batched": True}, (1024, 512, 8), True),
        ({"kv_dtype": "e4m3", "q_dtype": "f32"}, (4096, 4096), False),
        ({"kv_dtype": "bf16"}, (4096, 4096), False),
        ({"kv_dtype": "e4m3", "fp8": True}, (4096, 4096), False),
    ],
    ids=str,
)
def test_the_faster_way(fields: dict[str, Any], counts: tuple[int, ...], widened: bool) -> None:
    """As measured on an H200 (rings, f32, 16 bits and fp8: there is no choice)."""
    shape = {"head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "max_len": 32768}
    one = spec(**{**shape, **fields})
    assert one.fastest(parse_target(TARGET), *counts) == replace(one, widened=widened)
    assert not one.fastest(parse_target("sm_90"), *counts).widened


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kv_dtype": "bf16"}, r"widened: is of 16-bit queries over keys of 8 bits, without fp8 \(got q_dtype=bf16, "),
        ({**E4M3, "fp8": True}, r"widened: is of .* kv_dtype=e4m3, fp8=True; nearest: False\)"),
        (
            {**E4M3, "max_len": 90, "window": 20, "ring": 64},
            r"widened: takes no ring \(got ring=64, widened=True; ",
        ),
    ],
)
def test_what_widened_refuses(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        spec(widened=True, **fields)


@pytest.mark.parametrize(("target", "head_dim"), [("sm_90", 64), ("sm_90a", 264), ("sm_90a", 8)])
def test_where_widened_is_not_to_be_had(target: str, head_dim: int) -> None:
    found = supports(spec(head_dim=head_dim, widened=True, **E4M3), target)
    assert not found
    assert "widened: needs sm_90a and a head_dim of 16, or a multiple of 8 from 24 to 256 " in str(found)


@needs_ptxas
@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("q_dtype", ["bf16", "f16"])
@pytest.mark.parametrize("head_dim", [32, 40, 64, 96, 120, 128, 192, 240, 256])
@pytest.mark.parametrize(
    "more",
    [
        {"layout": "heads"}, {"max_len": 4096, "batched": True, "page_size": 16},
        {"max_len": 4096, "batched": True, "window": 1000},
        {"max_len": 4096, "batched": True, "soft_cap": 30.0, "sinks": True}, {"causal": False, "soft_cap": 30.0},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_of_widened_rows_is_spilled(kind: str, q_dtype: str, head_dim: int, more: dict[str, Any]) -> None:
    one = spec(head_dim=head_dim, q_dtype=q_dtype, widened=True, **more, **KINDS[kind])
    made = assemble(generate(one, TARGET).text)
    assert all(taken.clean for taken in made.resources.values()), made.resources
    assert "serialized" not in made.log


@needs_ptxas
@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": 40, "layout": "heads", "n_heads": 8, "heads_inside": 4},
        {"head_dim": 64, "layout": "heads", "n_heads": 8, "heads_inside": 4},
        {"head_dim": 112, "n_heads": 6, "n_kv_heads": 1, "soft_cap": 30.0, "lse": False},
        {"head_dim": 104, "n_heads": 12, "n_kv_heads": 1, "soft_cap": 30.0, "lse": False},
    ],
    ids=str,
)
def test_nothing_of_widened_rows_with_scales_is_spilled(fields: dict[str, Any]) -> None:
    one = spec(widened=True, kv_dtype="s8", **fields)
    assert all(taken.clean for taken in assemble(generate(one, TARGET).text).resources.values())


@needs_ptxas
@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("heads", [(6, 2), (12, 1), (16, 1)])
@pytest.mark.parametrize("head_dim", [32, 40, 48, 64, 112, 128, 168, 192, 216])
def test_nothing_of_widened_rows_is_spilled_beside_divisions(kind: str, heads: tuple[int, int], head_dim: int) -> None:
    """By query heads of a KV head that are not 1, 2, 4 or 8."""
    of = dict(zip(("n_heads", "n_kv_heads"), heads, strict=True))
    one = spec(head_dim=head_dim, q_dtype="f16", widened=True, max_len=4096, **of, **KINDS[kind])
    assert all(taken.clean for taken in assemble(generate(one, TARGET).text).resources.values())
