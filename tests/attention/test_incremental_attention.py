"""IncrementalAttention: numbers against float64 over shapes, lengths and options; what is refused and assembled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, make_spec, supports
from ptxgen.assembler import assemble
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from tests.support import sweep
from tests.support.attention.decode_trials import GEOMETRIES, SMALL, attend, poison, spec
from tests.support.marks import needs_assembler

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")


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
    """Nothing, one position, one less, equal and one more than tiles, warps and splits; bad lengths are clamped in
    device memory and refused from the host."""
    target, fields = GEOMETRIES[name]
    most = fields["max_len"]
    for length in (-3, 0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 128, 129, most - 1, most, most + 7):
        if indirect or 0 <= length <= most:
            attend(device, target, length, indirect=indirect, lse=True, **fields)


def test_lengths_mixed_in_a_batch(device: Device) -> None:
    target, fields = GEOMETRIES["a batch"]
    one = spec(lse=True, **fields)
    given = one.example(np.random.default_rng(2), batch=9)
    given["seq_lens"] = np.array([0, 600, 1, 17, -5, 599, 64, 900, 321], np.int32)
    poison(one, given)
    trial(one, device, target=target, arguments=given, batch=9).require()


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "e4m3", "s8"])
@pytest.mark.parametrize("more", [{}, {"window": 20, "ring": 128, "lse": True}], ids=str)
def test_queries_of_one_cache(device: Device, target: str, kv_dtype: str, more: dict[str, Any]) -> None:
    """The last positions of a sequence, some of them before its first; NaN past the last."""
    one = spec(max_len=300, head_dim=64, n_heads=6, batched=True, one_cache=True, kv_dtype=kv_dtype, **more)
    for first, count in ((-3, 8), (0, 1), (100, 5), (290, 10)):
        given = one.example(np.random.default_rng(count), batch=count)
        given["seq_lens"] = np.arange(first + 1, first + count + 1, dtype=np.int32)
        poison(one, given)
        trial(one, device, target=target, arguments=given, batch=count).require()


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
    poison(one, given)
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


# -- what is refused, what is assembled --------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "one_cache: needs batched=True"),
        (
            {"batched": True, "page_size": 16},
            r"one_cache: has no pages and no strides \(got page_size=16, strided=False",
        ),
        ({"batched": True, "programmatic": True}, "one_cache: needs programmatic=False"),
    ],
)
def test_what_one_cache_refuses(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        spec(one_cache=True, **fields)


def test_unknown_fields() -> None:
    with pytest.raises(SpecError, match="sliding_window: no such field"):
        make_spec("incremental-attention", {**SMALL, "sliding_window": 4})


def test_programmatic_launch_needs_sm_90() -> None:
    refused = supports(spec(programmatic=True), "sm_80")
    assert "programmatic: needs sm_90" in str(refused)


@needs_assembler
@pytest.mark.parametrize("target", TARGETS)
def test_assembles_without_spills(target: str) -> None:
    every = (
        {"head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "max_len": 4096},
        {"head_dim": 64, "n_heads": 32, "n_kv_heads": 4, "max_len": 131072, "indirect": True},
        {"head_dim": 512, "n_heads": 16, "n_kv_heads": 1, "max_len": 8192, "batched": True},
        {"head_dim": 256, "n_heads": 9, "n_kv_heads": 1, "max_len": 8192, "soft_cap": 50.0, "window": 4096},
        {"head_dim": 80, "n_heads": 32, "n_kv_heads": 32, "max_len": 2048, "kv_dtype": "s8", "batched": True},
    )
    for fields in (each for each, where in sweep.pairs(every, TARGETS, 2) if where == target):
        ptx = generate(spec(**fields), target)
        resources = assemble(ptx.text, target).resources[ptx.entry]
        assert resources.clean, (fields, resources)
