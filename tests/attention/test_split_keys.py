"""Prefill whose CTAs share the keys of a tile of rows: numbers against float64, how many parts there are, the merge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.attention.prefill.wgmma.tile import shares_of, tile_of
from ptxgen.kernels import MultiHeadAttention
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target as parse_target
from tests.attention.test_prefill_wgmma import LAYOUTS, TARGET, attend, few_ctas, spec
from tests.support.marks import needs_ptxas


def split(**fields: Any) -> MultiHeadAttention:
    return spec(split_keys=True, **fields)


def keys_of(dim: int, count: int) -> int:
    """Keys that `count` parts take at least, of rows of `dim` elements."""
    shares = shares_of(split(head_dim=dim).prefill)
    return count * shares.least * shares.keys


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("head_dim", [16, 24, 40, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_head_dims(mode: str, head_dim: int, kind: str) -> None:
    sizes = {"n_tokens": 11, "n_keys": keys_of(head_dim, 3) + 5}
    attend(mode, sizes, head_dim=head_dim, n_kv_heads=1, q_dtype=kind, kv_dtype=kind, split_keys=True)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_lengths_around_every_boundary(causal: bool, kind: str) -> None:
    """One less, equal and one more than tiles of rows (128, of which a token has 2), of keys (16), and than keys for
    two and three parts (64, 96); rows before the first key, and parts behind the first row's tile of keys."""
    for q_len, kv_len in [
        (0, 0), (0, 70), (1, 0), (1, 1), (1, 63), (1, 64), (3, 65), (63, 95), (64, 96), (65, 97), (70, 170), (5, 170),
        (70, 64), (70, 70), (70, 66), (40, 161),
    ]:  # fmt: skip
        sizes = {"n_tokens": 70, "q_len": q_len, "kv_len": kv_len}
        attend("fast", sizes, causal=causal, max_len=170, q_dtype=kind, kv_dtype=kind, split_keys=True)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    "fields",
    [
        *LAYOUTS,
        {"n_heads": 3, "n_kv_heads": 1, "indirect": True, "max_len": 300},
        {"max_len": 300, "sinks": True},
        {"soft_cap": 5.0, "scale": 1.0},
        {"n_heads": 5, "n_kv_heads": 5, "causal": False, "sinks": True},
        {"kv_dtype": "e4m3", "head_scales": True, "max_len": 300},
        {"programmatic": True},
    ],
    ids=str,
)
def test_options(mode: str, fields: dict[str, Any]) -> None:
    attend(mode, {"n_tokens": 90, "n_keys": 300}, split_keys=True, **fields)


def test_int8_keys() -> None:
    one = split(kv_dtype="s8", max_len=300)
    trial(one, open_device("cpu", mode="check"), target=TARGET, n_tokens=30, n_keys=300).require()


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_logits_of_very_different_parts(head_dim: int) -> None:
    """Maxima of parts that differ by more than the exponents of float32."""
    attend("check", {"n_tokens": 20, "n_keys": keys_of(head_dim, 4)}, 200.0, head_dim=head_dim, split_keys=True)


def test_the_same_bits_whatever_the_order() -> None:
    outs = []
    for seed in (1, 2, 3):
        one, device = split(), open_device("cpu", mode="random", seed=seed)
        outs.append(launched(one, device, n_tokens=40, n_keys=300)[2])
    assert outs[0].tobytes() == outs[1].tobytes() == outs[2].tobytes()


# -- on mma.sync -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("target", ["sm_80", "sm_86"])
@pytest.mark.parametrize(
    "fields",
    [
        {"q_dtype": "f32"},
        {"layout": "heads", "causal": False},
        {"q_dtype": "f32", "head_dim": 64, "sinks": True},
        {"kv_dtype": "e4m3", "head_dim": 32, "head_scales": True, "max_len": 900},
        {"q_dtype": "f32", "kv_dtype": "s8", "head_dim": 32, "max_len": 900, "indirect": True},
        {"head_dim": 128, "soft_cap": 5.0},
        {"q_dtype": "f32", "head_dim": 256, "n_kv_heads": 1},
        {"head_dim": 24},
        {"head_dim": 16, "lse": False},
    ],
    ids=str,
)
def test_on_mma_sync(mode: str, target: str, fields: dict[str, Any]) -> None:
    """Lengths of one part and of several; rows and whole launches without a key."""
    one, device = split(**fields), open_device("cpu", mode=mode)
    for q_len, kv_len in [(20, 900), (5, 700), (19, 257), (20, 10), (0, 300), (3, 0)]:
        trial(one, device, target=target, n_tokens=20, n_keys=900, q_len=q_len, kv_len=kv_len).require()


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_same_bits_whatever_the_order_on_mma_sync(target: str) -> None:
    outs = []
    for seed in (1, 2, 3):
        one, device = split(q_dtype="f32", head_dim=64), open_device("cpu", mode="random", seed=seed)
        records, error, out = launched(one, device, target, n_tokens=40, n_keys=700)
        assert records == one.shares(parse_target(target)).parts(2, 700) * 2
        assert error < 0.01
        outs.append(out.tobytes())
    assert len(set(outs)) == 1


# -- parts -------------------------------------------------------------------------------------------------------------


def launched(one: MultiHeadAttention, device: Any, target: str = TARGET, **sizes: int) -> tuple[int, float, np.ndarray]:
    """Records that two launches leave, the last one's error, and its output; counters are as before."""
    sizes = {**one.sizes, **sizes}
    given = one.example(np.random.default_rng(4), **sizes)
    held = {name: device.array(a) if np.ndim(a) else np.int32(a) for name, a in given.items()}
    where = parse_target(target)
    shares = one.shares(where)
    memory, counters = (p for p in one.params() if p.access == "workspace")
    held["part_records"] = device.array(np.full(memory.nbytes(sizes) // 4, np.nan, np.float32))
    held["parts_left"] = device.array(np.zeros(counters.nbytes(sizes), np.uint8))
    launch = one.launch(where).at(sizes)
    entry = device.module(generate(one, target).text)[one.kernel_name]
    for _ in range(2):
        held["out"] = device.array(np.zeros_like(given["out"]))
        entry.launch(
            grid=launch.grid, block=launch.block, args=[held[p.name] for p in one.params()], shared=launch.shared
        )
        assert not held["parts_left"].numpy().any()
    wanted, got = one.reference(**given)["out"].astype(np.float64), held["out"].numpy()
    error = float(np.linalg.norm(got.astype(np.float64) - wanted) / np.linalg.norm(wanted))
    left = held["part_records"].numpy()[: shares.records * shares.warps * shares.record_floats]
    return int((~np.isnan(left).reshape(shares.records, -1)).any(axis=1).sum()), error, got


@pytest.mark.parametrize(
    ("heads", "tokens", "keys", "wanted"),
    [
        ((4, 2), 40, 300, 9),  # 2 tiles of rows: 300 / 32 parts
        ((4, 2), 40, 63, 1),
        ((4, 2), 40, 64, 2),
        ((2, 2), 300, 1000, 22),  # 6: 22 in a round, or 44, for 31 of which there are keys
        ((88, 88), 4, 97, 3),  # 3 in two rounds, in place of 1
        ((66, 66), 4, 130, 2),  # 4 in two rounds are no less work for each
        ((132, 132), 4, 130, 1),
        ((133, 133), 4, 130, 1),
    ],
)
def test_how_many_parts_there_are(heads: tuple[int, int], tokens: int, keys: int, wanted: int) -> None:
    """As many records are left, of two launches."""
    one = split(n_heads=heads[0], n_kv_heads=heads[1], lse=False)
    tiles = heads[1] * -(-tokens * heads[0] // heads[1] // tile_of(one.prefill).rows)
    found = one.shares(parse_target(TARGET)).parts(tiles, keys)
    records, error, _ = launched(one, open_device("cpu"), n_tokens=tokens, n_keys=keys)
    assert (found, records, error < 0.01) == (wanted, tiles * wanted if wanted > 1 else 0, True)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"head_dim": 256, "n_heads": 2, "n_kv_heads": 2}, 1536),
        ({"head_dim": 192, "n_heads": 1, "n_kv_heads": 1, "kv_dtype": "e4m3", "max_len": 2048}, 2048),
        ({"head_dim": 160, "n_heads": 1, "n_kv_heads": 1, "kv_dtype": "s8", "max_len": 1300}, 1300),
        ({"head_dim": 16, "n_heads": 1, "n_kv_heads": 1}, 300),
    ],
    ids=str,
)
def test_early_rows_see_fewer_tiles_than_there_are_parts(fields: dict[str, Any], keys: int, seed: int) -> None:
    """Parts without keys leave nothing, whoever comes last: of a prompt alone, whose first rows see few keys."""
    one = split(**fields)
    device = open_device("cpu", mode="random", seed=seed) if seed else open_device("cpu")
    tile = tile_of(one.prefill)
    tiles = one.n_kv_heads * -(-keys // tile.rows)
    count = one.shares(parse_target(TARGET)).parts(tiles, keys)
    assert count > tile.rows // tile.keys, "more parts than tiles of keys that the first rows see"
    records, error, _ = launched(one, device, n_tokens=keys, n_keys=keys)
    assert 0 < records < count * tiles
    assert error < 0.01


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("ctas", [1, 3, 50])
@pytest.mark.parametrize("head_dim", [16, 64, 192])
def test_a_cta_takes_several_parts(mode: str, ctas: int, head_dim: int) -> None:
    """Of one tile of rows, too; rows of out lie over those of q where they are long."""
    one = split(head_dim=head_dim, n_kv_heads=1)
    assert few_ctas(one, generate(one, TARGET).text, mode, ctas) < 0.01


@pytest.mark.parametrize(
    ("fields", "counts", "wanted"),
    [
        ({}, (64, 16384), {"split_keys": True}),
        ({}, (512, 32768), {}),  # 128 tiles of rows
        ({}, (64, 512), {}),
        ({}, (256, 1024), {}),  # two parts spare 512 keys
        ({}, (64, 1024), {"split_keys": True}),
        ({"n_heads": 12, "n_kv_heads": 2}, (512, 4096), {"split_keys": True}),
        ({"window": 512}, (64, 16384), {}),
        ({"batched": True}, (64, 16384), {}),
        ({"q_dtype": "f32"}, (64, 16384), {"split_keys": True}),  # on mma.sync
        ({"q_dtype": "f32", "kv_dtype": "f32"}, (64, 16384), {}),
        ({"kv_dtype": "e4m3"}, (64, 16384), {"split_keys": True}),
        ({"kv_dtype": "e4m3"}, (128, 32768), {"split_keys": True}),
        ({"kv_dtype": "e4m3"}, (512, 32768), {"widened": True}),
        ({"kv_dtype": "e4m3", "head_dim": 256}, (8, 16384), {"split_keys": True}),  # on mma.sync, as are the next
        ({"kv_dtype": "s8", "head_dim": 120}, (64, 32768), {"split_keys": True}),
        ({"kv_dtype": "s8", "head_dim": 120}, (512, 16384), {"widened": True}),
        ({"kv_dtype": "e4m3", "head_dim": 120, "n_heads": 8}, (512, 16384), {"split_keys": True}),
        ({"kv_dtype": "e4m3", "fp8": True}, (64, 16384), {}),
    ],
    ids=str,
)
def test_the_faster_way(fields: dict[str, Any], counts: tuple[int, ...], wanted: dict[str, Any]) -> None:
    shape = {"head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "max_len": 32768}
    one = spec(**{**shape, **fields})
    assert one.fastest(parse_target(TARGET), *counts) == replace(one, **wanted)
    assert one.fastest(parse_target("sm_75"), *counts) == one
    chosen = one.fastest(parse_target(TARGET), *counts)
    assert chosen.fastest(parse_target(TARGET), *counts) == chosen


@pytest.mark.parametrize(
    "fields",
    [
        {"max_len": 300, "window": 20},
        {"max_len": 300, "batched": True},
        {"max_len": 300, "window": 20, "ring": 64},
        {"head_dim": 32, "kv_dtype": "e4m3", "fp8": True},
        {"kv_dtype": "e4m3", "widened": True},
    ],
    ids=str,
)
def test_what_it_does_not_take(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="split_keys: takes no"):
        split(**fields)
    with pytest.raises(SpecError, match="split_keys: needs sm_80"):
        generate(split(), "sm_75")
    with pytest.raises(SpecError, match="split_keys: needs sm_80"):
        generate(split(q_dtype="f32", kv_dtype="f32"), TARGET)


SIXTEEN_BITS: tuple[dict[str, Any], ...] = (
    {"layout": "heads"},
    {"n_heads": 24, "n_kv_heads": 8, "causal": False},
    {"n_heads": 6, "n_kv_heads": 1, "max_len": 4096, "sinks": True, "indirect": True},
)
EIGHT_BITS: tuple[dict[str, Any], ...] = (
    {"kv_dtype": "e4m3", "head_scales": True, "max_len": 4096},
    {"kv_dtype": "s8", "max_len": 4096},
)


@needs_ptxas
@pytest.mark.parametrize(
    ("head_dim", "fields"),
    [
        (dim, fields)
        for dim in (64, 96, 128, 192, 256)
        for fields in (*SIXTEEN_BITS, *(EIGHT_BITS if dim < 256 else ()))
    ],
    ids=str,
)
def test_nothing_is_spilled_and_no_product_waits_for_another(head_dim: int, fields: dict[str, Any]) -> None:
    made = assemble(generate(split(head_dim=head_dim, **fields), TARGET).text)
    assert all(taken.clean for taken in made.resources.values()), made.resources
    assert "serialized" not in made.log


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("head_dim", "heads", "fields"),
    [
        (128, (32, 8), {}),
        (128, (12, 2), {"layout": "heads", "causal": False}),
        (64, (14, 2), {"kv_dtype": "f16", "q_dtype": "f16", "sinks": True}),
        (96, (88, 88), {}),
        (192, (16, 8), {"max_len": 3000, "indirect": True}),
        (256, (8, 1), {}),
        (128, (8, 8), {"kv_dtype": "e4m3", "head_scales": True, "max_len": 3000}),
        (64, (8, 2), {"kv_dtype": "s8", "max_len": 3000}),
    ],
    ids=str,
)
def test_parts_on_a_gpu(gpu: Device, head_dim: int, heads: tuple[int, int], fields: dict[str, Any]) -> None:
    """The same bits every time, and parts that were merged, twice over the same workspaces."""
    one = split(head_dim=head_dim, n_heads=heads[0], n_kv_heads=heads[1], **fields)
    sizes = {"n_tokens": 70, "n_keys": 3000}
    outs = [trial(one, gpu, target=TARGET, **sizes).require().outputs["out"].tobytes() for _ in range(2)]
    records, error, _ = launched(one, gpu, **sizes)
    assert records > 0
    assert error < 0.01
    assert outs[0] == outs[1]
