"""Prefill on wgmma over caches of 8 bits: numbers, scales, rounded queries, waits that matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen import ExecutionError, generate
from ptxgen.assembler import assemble, available_assemblers
from ptxgen.attention.prefill.wgmma import items
from ptxgen.attention.prefill.wgmma.tile import WgmmaTile
from ptxgen.attention.reference import as_e4m3
from ptxgen.errors import SpecError
from ptxgen.generator import clear_cache
from ptxgen.kernel import supports
from ptxgen.kernels import MultiHeadAttention
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import Trial, trial
from ptxgen.targets import target as parse_target
from tests.attention.test_prefill_wgmma import few_ctas
from tests.support.marks import needs_assembler
from tests.tools.mutations import deletions

TARGET = "sm_90a"
E4M3: dict[str, Any] = {"kv_dtype": "e4m3", "head_scales": True}
KINDS: dict[str, dict[str, Any]] = {"e4m3": E4M3, "s8": {"kv_dtype": "s8"}, "fp8": {**E4M3, "fp8": True}}


def spec(**fields: Any) -> MultiHeadAttention:
    return MultiHeadAttention(
        **{"head_dim": 32, "n_heads": 4, "n_kv_heads": 2, "q_dtype": "bf16", "lse": True, **fields}
    )


def attend(mode: str, sizes: dict[str, int], loud: float = 1.0, sign: float = 1.0, **fields: Any) -> Trial:
    """A trial, NaN beyond the lengths, queries `loud` times as large, scales of keys with a sign; all must match."""
    one = spec(**fields)
    assert isinstance(one.tile(parse_target(TARGET)), WgmmaTile)
    given = one.example(np.random.default_rng(1), **sizes)
    given["q"] = (given["q"].astype(np.float32) * loud).astype(given["q"].dtype)
    if "k_scale" in given:
        given["k_scale"] *= np.float32(sign)
    for array, index in one.past(given):
        array[index] = 127 if array.dtype == np.int8 else np.nan
    return trial(one, open_device("cpu", mode=mode), target=TARGET, arguments=given, **sizes).require()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q_dtype", ["bf16", "f16"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192])
def test_head_dims(kind: str, q_dtype: str, head_dim: int) -> None:
    mode = "check" if head_dim <= 64 else "random"
    sizes = {"n_tokens": 70, "n_keys": 150}
    attend(mode, sizes, head_dim=head_dim, q_dtype=q_dtype, max_len=150, **KINDS[kind])


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("fields", [{}, {"widened": True}, {"head_dim": 64, "widened": True, "window": 9}], ids=str)
def test_more_tokens_than_keys(kind: str, fields: dict[str, Any]) -> None:
    """The first tokens stand before position 0."""
    for q_len, kv_len in ((64, 1), (64, 33), (129, 128)):
        sizes = {"n_tokens": q_len, "q_len": q_len, "kv_len": kv_len}
        attend("check", sizes, max_len=130, indirect=True, **KINDS[kind], **fields)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields",
    [
        {"layout": "heads"},
        {"n_heads": 3, "n_kv_heads": 1, "indirect": True, "max_len": 150},
        {"max_len": 150, "window": 20, "ring": 128, "sinks": True},
        {"max_len": 150, "batched": True},
        {"max_len": 150, "batched": True, "page_size": 16, "causal": False},
        {"max_len": 150, "batched": True, "page_size": 48, "page_layout": "nhd", "window": 30},
    ],
    ids=str,
)
def test_options(mode: str, kind: str, fields: dict[str, Any]) -> None:
    sizes = {"n_tokens": 90, "n_keys": 140, "batch": 40 if "batched" in fields else 3, "pages": 30}
    attend(mode, sizes, **KINDS[kind], **fields)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_lengths_around_every_boundary(kind: str, causal: bool) -> None:
    """Of tiles of rows (128, of which a token has 2) and of keys (16)."""
    for q_len, kv_len in [(0, 9), (1, 0), (1, 1), (2, 15), (63, 16), (64, 17), (65, 64), (31, 33), (70, 1), (70, 70)]:
        attend("fast", {"n_tokens": 70, "q_len": q_len, "kv_len": kv_len}, causal=causal, max_len=70, **KINDS[kind])


@pytest.mark.parametrize("kind", ["e4m3", "fp8"])
def test_logits_beyond_the_first_tiles_maximum(kind: str) -> None:
    loud = attend("fast", {"n_tokens": 90, "n_keys": 250}, 100.0, head_dim=64, max_len=250, **KINDS[kind])
    assert np.isfinite(loud.outputs["lse"]).all()


@pytest.mark.parametrize("fields", [{}, {"q_dtype": "f16"}, {"fp8": True}, {"soft_cap": 5.0}], ids=str)
def test_scales_of_keys_below_zero(fields: dict[str, Any]) -> None:
    """The exponent has a scale's size; its sign goes to the keys."""
    attend("fast", {"n_tokens": 40, "n_keys": 90}, sign=-1.0, max_len=90, **E4M3, **fields)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ctas", [1, 3])
@pytest.mark.parametrize("head_dim", [32, 64])
def test_a_cta_takes_several_items(kind: str, ctas: int, head_dim: int) -> None:
    one = spec(head_dim=head_dim, max_len=300, **KINDS[kind])
    assert few_ctas(one, generate(one, TARGET).text, "check", ctas) < (one.error_limit or 0.02)


@pytest.mark.parametrize("kind", ["e4m3", "fp8"])
def test_waits_and_fences_that_are_left_out(kind: str) -> None:
    """Those of the tiles that are converted: for their slots, and before wgmma reads them."""
    pages = {"batched": True, "page_size": 16} if kind == "fp8" else {}  # else nothing is converted
    one = spec(lse=False, max_len=300, **pages, **KINDS[kind])
    mutations = deletions(generate(one, TARGET).text)
    matter = [m for m in mutations if any(word in m.what for word in ("k_empty", "v_empty", "q0_empty", "q1_empty"))]
    assert len(matter) == 4
    for mutation in matter:
        with pytest.raises(ExecutionError):
            few_ctas(one, mutation.text, "check", 1)


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


def batch(lengths: list[tuple[int, int]], one: MultiHeadAttention) -> dict[str, Any]:
    """Arguments of a batch of sequences of so many tokens and keys, NaN behind each, and its `sizes`."""
    tokens = sum(max(0, q_len) for q_len, _ in lengths)
    sizes = {"n_tokens": tokens + 3, "batch": len(lengths), "pages": 14 * len(lengths)}
    given = one.example(np.random.default_rng(2), **sizes)
    given["q_starts"] = np.cumsum([0, *(q_len for q_len, _ in lengths)]).astype(np.int32)
    given["kv_lens"] = np.array([kv_len for _, kv_len in lengths], np.int32)
    if one.page_size:
        pages = np.random.default_rng(3).permutation(given["k"].shape[0])
        given["page_table"] = np.resize(pages, given["page_table"].shape).astype(np.int32)
    for array, index in one.past(given):
        array[index] = 127 if array.dtype == np.int8 else np.nan
    return given | {"sizes": sizes}


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


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("q_dtype", ["bf16", "f16"])
@pytest.mark.parametrize("more", [{}, {"widened": True}, {"head_dim": 64, "n_heads": 4, "n_kv_heads": 4}], ids=str)
def test_every_byte_becomes_what_it_stands_for(kind: str, q_dtype: str, more: dict[str, Any]) -> None:
    """Of one key, the output is the value: all bytes, times scales from the smallest to large ones."""
    one = spec(
        **{"head_dim": 128, "n_heads": 2, "q_dtype": q_dtype, "max_len": 16, "lse": False, **more}, **KINDS[kind]
    )
    given = one.example(np.random.default_rng(1), n_tokens=1, q_len=1, kv_len=1)
    bytes_of = np.arange(256, dtype=np.uint8).reshape(one.n_kv_heads, one.head_dim)
    given["v"][:, 0] = bytes_of.view(given["v"].dtype)
    wanted = bytes_of.view(given["v"].dtype).astype(np.float32)
    if kind == "s8":
        scales = np.float16([2.0**-24, 1.25 * 2.0**-14, 0.00731, 1.0, 0.3333, 2.0**-7, 17.3, 500.0])
        given["v_scales"][:, 0] = scales.reshape(one.n_kv_heads, -1)
        wanted = wanted * scales.astype(np.float32).reshape(one.n_kv_heads, -1).repeat(32, axis=1)
    else:
        given["v_scale"][:] = 1
    made = trial(one, open_device("cpu"), target=TARGET, arguments=given, n_tokens=1, q_len=1, kv_len=1)
    out = made.outputs["out"].reshape(wanted.shape)
    with np.errstate(over="ignore"):
        assert np.array_equal(out.astype(np.float32), wanted.astype(out.dtype).astype(np.float32), equal_nan=True)


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


@needs_assembler
@pytest.mark.skipif(not any(a.path for a in available_assemblers()), reason="nvJitLink leaves setmaxnreg out")
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


@needs_assembler
@pytest.mark.skipif(not any(a.path for a in available_assemblers()), reason="nvJitLink leaves setmaxnreg out")
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


@needs_assembler
@pytest.mark.skipif(not any(a.path for a in available_assemblers()), reason="nvJitLink leaves setmaxnreg out")
@pytest.mark.parametrize("kind", ["e4m3", "s8"])
@pytest.mark.parametrize("heads", [(6, 2), (12, 1), (16, 1)])
@pytest.mark.parametrize("head_dim", [32, 40, 48, 64, 112, 128, 168, 192, 216])
def test_nothing_of_widened_rows_is_spilled_beside_divisions(kind: str, heads: tuple[int, int], head_dim: int) -> None:
    """By query heads of a KV head that are not 1, 2, 4 or 8."""
    of = dict(zip(("n_heads", "n_kv_heads"), heads, strict=True))
    one = spec(head_dim=head_dim, q_dtype="f16", widened=True, max_len=4096, **of, **KINDS[kind])
    assert all(taken.clean for taken in assemble(generate(one, TARGET).text).resources.values())


def test_rounded_queries() -> None:
    """A relative error of at most 2^-4 an element, exact where it has three bits; a row of zeros stays one."""
    rows = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    got = as_e4m3(rows)
    large = np.abs(rows) > np.abs(rows).max(-1, keepdims=True) / 2**12
    assert np.all(np.abs(got - rows)[large] <= np.abs(rows)[large] / 16)
    exact = np.array([[1.0, -1.75, 0.5, 0.0]], np.float32)
    assert np.array_equal(as_e4m3(exact), exact)
    assert not as_e4m3(np.zeros((2, 4), np.float32)).any()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"kv_dtype": "s8"},
            r"fp8: is of 16-bit queries over e4m3 keys \(got q_dtype=bf16, kv_dtype=s8; nearest: False\)",
        ),
        ({"kv_dtype": "e4m3", "head_dim": 48}, r"fp8: needs a head_dim that is a multiple of 32 \(got head_dim=48; "),
        ({"kv_dtype": "e4m3", "soft_cap": 5.0}, r"fp8: scores have no cap \(got soft_cap=5; nearest: False\)"),
    ],
)
def test_what_fp8_refuses(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        spec(fp8=True, **fields)


@pytest.mark.parametrize(("target", "head_dim"), [("sm_90", 64), ("sm_90a", 256)])
def test_where_fp8_is_not_to_be_had(target: str, head_dim: int) -> None:
    found = supports(spec(head_dim=head_dim, kv_dtype="e4m3", fp8=True), target)
    assert not found
    assert "fp8: needs sm_90a and a head_dim of at most 192" in str(found)


@needs_assembler
@pytest.mark.skipif(not any(a.path for a in available_assemblers()), reason="nvJitLink leaves setmaxnreg out")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q_dtype", ["bf16", "f16"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192])
@pytest.mark.parametrize("more", [{"layout": "heads"}, {"max_len": 4096, "batched": True, "page_size": 16}], ids=str)
def test_nothing_is_spilled_and_no_product_waits_for_another(
    kind: str, q_dtype: str, head_dim: int, more: dict[str, Any]
) -> None:
    assembles_clean(kind, q_dtype, head_dim, more)


@needs_assembler
@pytest.mark.skipif(not any(a.path for a in available_assemblers()), reason="nvJitLink leaves setmaxnreg out")
@pytest.mark.parametrize(
    ("kind", "q_dtype", "head_dim", "more"),
    [
        ("s8", "bf16", 128, {"n_heads": 32, "n_kv_heads": 8}),
        ("s8", "f16", 128, {"n_heads": 28, "n_kv_heads": 4, "max_len": 4096, "indirect": True}),
        ("s8", "bf16", 128, {"n_heads": 32, "n_kv_heads": 32}),
        ("s8", "bf16", 128, {"n_heads": 32, "n_kv_heads": 32, "layout": "heads"}),
        ("s8", "bf16", 128, {"n_heads": 28, "n_kv_heads": 4, "lse": False, "causal": False}),
        ("s8", "bf16", 128, {"n_heads": 32, "n_kv_heads": 8, "layout": "heads", "soft_cap": 50.0}),
        ("s8", "f16", 128, {"soft_cap": 5.0}),
        ("s8", "bf16", 112, {"n_kv_heads": 4}),
        ("s8", "f16", 112, {"layout": "heads", "soft_cap": 5.0}),
        (
            "s8",
            "bf16",
            112,
            {"n_heads": 28, "n_kv_heads": 4, "max_len": 8192, "batched": True, "page_size": 16, "window": 1024},
        ),
        ("s8", "bf16", 144, {"n_heads": 8, "n_kv_heads": 4, "max_len": 8192}),
        ("s8", "bf16", 160, {"n_heads": 32, "n_kv_heads": 4, "max_len": 8192, "layout": "heads", "soft_cap": 30.0}),
        ("s8", "bf16", 176, {"n_heads": 8, "n_kv_heads": 1, "max_len": 8192, "layout": "heads", "causal": False}),
        ("e4m3", "bf16", 128, {"n_heads": 32, "n_kv_heads": 32, "soft_cap": 50.0}),
        ("e4m3", "f16", 128, {"n_heads": 28, "n_kv_heads": 4}),
        ("e4m3", "bf16", 112, {"n_kv_heads": 4}),
    ],
    ids=str,
)
def test_nothing_is_spilled_where_registers_are_scarce(
    kind: str, q_dtype: str, head_dim: int, more: dict[str, Any]
) -> None:
    assembles_clean(kind, q_dtype, head_dim, more)


def assembles_clean(kind: str, q_dtype: str, head_dim: int, more: dict[str, Any]) -> None:
    """Nothing is spilled, and no product waits for another."""
    made = assemble(generate(spec(head_dim=head_dim, q_dtype=q_dtype, **{**KINDS[kind], **more}), TARGET).text)
    assert all(taken.clean for taken in made.resources.values()), made.resources
    assert "serialized" not in made.log


@pytest.mark.parametrize(
    ("producers", "fields"),
    [
        (2, {}),
        (1, {"n_kv_heads": 4}),
        (1, {"soft_cap": 5.0}),
        (1, {"causal": False}),
        (1, {"head_dim": 112}),
        (1, {"max_len": 64, "batched": True}),
        (1, E4M3),
    ],
)
def test_two_warpgroups_of_producers(producers: int, fields: dict[str, Any]) -> None:
    tile = spec(**{"head_dim": 128, "kv_dtype": "s8", **fields}).tile(parse_target(TARGET))
    assert isinstance(tile, WgmmaTile)
    assert tile.producers == producers
