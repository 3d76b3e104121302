"""Prefill on wgmma over caches of 8 bits: numbers, scales, rounded queries, waits that matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import ExecutionError, generate
from ptxgen.assembler import assemble
from ptxgen.attention.prefill.wgmma.tile import WgmmaTile
from ptxgen.attention.reference import as_e4m3
from ptxgen.errors import SpecError
from ptxgen.kernel import supports
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target as parse_target
from tests.attention.test_prefill_wgmma import few_ctas
from tests.support.attention.prefill_8_bits import E4M3, KINDS, TARGET, attend, spec
from tests.support.marks import needs_ptxas
from tests.tools.mutations import deletions


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


@needs_ptxas
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q_dtype", ["bf16", "f16"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192])
@pytest.mark.parametrize("more", [{"layout": "heads"}, {"max_len": 4096, "batched": True, "page_size": 16}], ids=str)
def test_nothing_is_spilled_and_no_product_waits_for_another(
    kind: str, q_dtype: str, head_dim: int, more: dict[str, Any]
) -> None:
    assembles_clean(kind, q_dtype, head_dim, more)


@needs_ptxas
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
