"""MultiHeadAttention: numbers against float64 over shapes, lengths and options; what is refused; what assembles."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ptxgen import ExecutionError, SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.attention.prefill import copies
from ptxgen.attention.prefill.loops import tiles
from ptxgen.attention.reference import in_pages
from ptxgen.kernels import MultiHeadAttention
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import Trial, trial
from ptxgen.targets import target as parse_target
from tests.support import sweep
from tests.support.marks import needs_assembler

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
SMALL: dict[str, Any] = {"head_dim": 16, "n_heads": 2, "n_kv_heads": 1}


def spec(**fields: Any) -> MultiHeadAttention:
    return MultiHeadAttention(**{**SMALL, **fields})


def attend(device: Device, target: str, sizes: dict[str, int], **fields: Any) -> Trial:
    """A trial with log-sum-exp, poisoned beyond the lengths; every buffer must match."""
    one = spec(lse=True, **fields)
    given = one.example(np.random.default_rng(1), **sizes)
    poisoned(one, given)
    result = trial(one, device, target=target, arguments=given, **sizes)
    return result.require()


def poisoned(one: MultiHeadAttention, given: dict[str, Any]) -> None:
    """NaN (or the largest bytes) in rows that do not count, in place."""
    q_len, kv_len = (max(0, int(np.ravel(given[x])[0])) for x in ("q_len", "kv_len"))
    for name in ("q", "k", "v", "k_scales", "v_scales"):
        if name not in given:
            continue
        tokens_first = one.layout == "tokens" and (name == "q" or not one.max_len)
        rows = given[name] if tokens_first else given[name].swapaxes(0, 1)  # or [tokens, sequences, …]
        past = rows[q_len if name == "q" else kv_len :]
        past[...] = 127 if past.dtype.kind == "i" else np.nan


# -- every path, every element type ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("q_dtype", "kv_dtype"),
    [("f16", "f16"), ("bf16", "bf16"), ("f32", "f16"), ("f16", "bf16"), ("f32", "f32"), ("f16", "f32"), ("bf16", "s8"),
     ("f32", "s8"), ("f16", "e4m3"), ("bf16", "e4m3")],
)  # fmt: skip
def test_element_types(device: Device, target: str, q_dtype: str, kv_dtype: str) -> None:
    sizes = {"n_tokens": 21, "q_len": 19, "kv_len": 45}
    attend(device, target, sizes, head_dim=40, q_dtype=q_dtype, kv_dtype=kv_dtype, max_len=64)


@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
@pytest.mark.parametrize("head_dim", [8, 24, 32, 64, 72, 96, 128, 136, 256, 264, 392, 512])
def test_head_dims(device: Device, target: str, head_dim: int) -> None:
    attend(device, target, {"n_tokens": 18, "n_keys": 20}, head_dim=head_dim)


@pytest.mark.parametrize("kv_dtype", ["s8", "e4m3"])
def test_wide_heads_of_a_quantised_cache(device: Device, kv_dtype: str) -> None:
    """Beyond head_dim 384 such tiles have one stage."""
    attend(device, "sm_80", {"n_tokens": 18, "kv_len": 40}, head_dim=392, kv_dtype=kv_dtype, max_len=40)


@pytest.mark.parametrize("group", [1, 2, 3, 5, 7, 8, 16, 24, 64])
@pytest.mark.parametrize("layout", ["tokens", "heads"])
def test_groups(device: Device, group: int, layout: str) -> None:
    sizes = {"n_tokens": 12, "n_keys": 15}
    attend(device, "sm_80", sizes, n_heads=2 * group, n_kv_heads=2, layout=layout)
    attend(device, "sm_80", sizes, n_heads=2 * group, n_kv_heads=2, layout=layout, q_dtype="f32", kv_dtype="f32")


# -- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "s8"])
@pytest.mark.parametrize("causal", [True, False])
def test_lengths_around_every_boundary(device: Device, kv_dtype: str, causal: bool) -> None:
    """No rows, no keys, and one less, equal and one more than tiles of rows (64 on tensor cores) and of keys (16)."""
    for q_len, kv_len in [
        (0, 0), (0, 9), (1, 0), (1, 1), (2, 3), (3, 2), (15, 16), (16, 16), (17, 17), (31, 33), (32, 32), (33, 31),
        (40, 1), (1, 40), (40, 40), (7, 39),
    ]:  # fmt: skip
        sizes = {"n_tokens": 40, "q_len": q_len, "kv_len": kv_len}
        attend(device, "sm_80", sizes, n_heads=4, n_kv_heads=2, kv_dtype=kv_dtype, causal=causal, max_len=40)


def test_rows_without_keys_are_zero_and_minus_infinity(device: Device) -> None:
    """More tokens than keys: the first tokens stand before position 0 and see nothing."""
    out = attend(device, "sm_80", {"n_tokens": 40, "q_len": 40, "kv_len": 9}, max_len=40).outputs
    assert (out["out"][:31] == 0).all()
    assert (out["lse"][:31] == -np.inf).all()
    assert np.isfinite(out["lse"][31:]).all()


def test_rows_past_the_length_are_left_alone(device: Device) -> None:
    for kind in ("f16", "f32"):
        sizes = {"n_tokens": 40, "q_len": 13, "kv_len": 20}
        out = attend(device, "sm_80", sizes, q_dtype=kind, kv_dtype=kind, max_len=20).outputs
        assert np.isnan(out["out"][13:].astype(np.float32)).all()
        assert np.isnan(out["lse"][13:]).all()


def test_a_length_beyond_the_cache_is_the_cache(device: Device) -> None:
    one = spec(max_len=24, causal=False, indirect=True)  # from the host it is refused
    rng = np.random.default_rng(0)
    whole, beyond = (one.example(rng, n_tokens=8, kv_len=24) for _ in range(2))
    beyond |= {x: whole[x] for x in "qkv"} | {"kv_len": np.array([1000], np.int32)}
    first, second = (trial(one, device, target="sm_80", arguments=a, n_tokens=8) for a in (whole, beyond))
    assert first.require().outputs["out"].tobytes() == second.require().outputs["out"].tobytes()


def test_negative_lengths_count_as_none(device: Device) -> None:
    sizes = {"n_tokens": 8, "n_keys": 8}
    one = spec(indirect=True)
    given = one.example(np.random.default_rng(0), **sizes) | {"kv_len": np.array([-3], np.int32)}
    assert (trial(one, device, target="sm_80", arguments=given, **sizes).require().outputs["out"] == 0).all()


# -- ragged batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 33, 70])
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_ragged_batches(device: Device, batch: int, kind: str) -> None:
    """More sequences than lanes, some of them empty, some longer than their keys."""
    one = spec(n_heads=6, n_kv_heads=2, q_dtype=kind, kv_dtype=kind, max_len=48, batched=True, lse=True)
    trial(one, device, target="sm_80", n_tokens=120, batch=batch).require()


@pytest.mark.parametrize("page_size", [16, 48])
@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "s8"])
@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
def test_paged_caches(device: Device, page_size: int, kv_dtype: str, target: str) -> None:
    """Pages in any order; entries past a length are −1 and never followed."""
    one = spec(n_heads=6, n_kv_heads=2, kv_dtype=kv_dtype, head_dim=24, max_len=100, batched=True, page_size=page_size)
    trial(one, device, target=target, n_tokens=120, batch=5, pages=5 * -(-100 // page_size)).require()


def test_pages_give_the_bits_of_rows(device: Device) -> None:
    paged, plain = (spec(head_dim=72, max_len=64, batched=True, page_size=p) for p in (16, 0))
    sizes = {"n_tokens": 80, "batch": 3}
    given = paged.example(np.random.default_rng(0), **sizes, pages=12)
    first = trial(paged, device, target="sm_90", arguments=given, **sizes, pages=12).require().outputs["out"]
    for x in "kv":
        given[x] = np.stack([in_pages(given[x], table) for table in given["page_table"]])
    del given["page_table"]
    second = trial(plain, device, target="sm_90", arguments=given, **sizes).require().outputs["out"]
    assert first.tobytes() == second.tobytes()


def test_sequences_that_do_not_count_are_left_alone(device: Device) -> None:
    one = spec(max_len=48, batched=True)
    given = one.example(np.random.default_rng(0), n_tokens=60, batch=5) | {"n_sequences": np.int32(3)}
    result = trial(one, device, target="sm_80", arguments=given, n_tokens=60, batch=5).require()
    assert np.isnan(result.outputs["out"][given["q_starts"][3] :].astype(np.float32)).all()
    none = given | {"n_sequences": np.int32(0)}
    result = trial(one, device, target="sm_80", arguments=none, n_tokens=60, batch=5).require()
    assert np.isnan(result.outputs["out"].astype(np.float32)).all()


def test_a_batch_gives_the_bits_of_each_sequence_alone(device: Device) -> None:
    one, alone = spec(max_len=48, batched=True, n_heads=4), spec(max_len=48, n_heads=4)
    given = one.example(np.random.default_rng(0), n_tokens=90, batch=4)
    together = trial(one, device, target="sm_80", arguments=given, n_tokens=90, batch=4).require().outputs["out"]
    for s in range(4):
        first, end = map(int, given["q_starts"][s : s + 2])
        if first == end:
            continue
        single = {
            "q": given["q"][first:end], "k": given["k"][s], "v": given["v"][s], "q_len": np.int32(end - first),
            "kv_len": given["kv_lens"][s], "out": np.full_like(given["out"][first:end], np.nan),
        }  # fmt: skip
        result = trial(alone, device, target="sm_80", arguments=single, n_tokens=end - first).require()
        assert result.outputs["out"].tobytes() == together[first:end].tobytes()


# -- options ---------------------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {"causal": False}, {"scale": 0.7}, {"soft_cap": 2.5}, {"window": 1}, {"window": 7}, {"window": 30},
    {"layout": "heads"}, {"indirect": True}, {"max_len": 64}, {"max_len": 64, "layout": "heads"},
    {"layout": "heads", "heads_inside": 3}, {"n_heads": 6, "n_kv_heads": 2, "layout": "heads", "heads_inside": 3},
    {"soft_cap": 1.5, "window": 20, "scale": 2.0, "indirect": True, "max_len": 64},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_options(device: Device, options: dict[str, Any], kind: str) -> None:
    sizes = {"n_tokens": 37, "n_keys": 60, "q_len": 35, "kv_len": 58}
    shape = {"n_heads": 3, "n_kv_heads": 1, "head_dim": 24, **options}
    attend(device, "sm_80", sizes, q_dtype=kind, kv_dtype=kind, **shape)


NUMERIC = {"causal", "scale", "soft_cap", "window"}


@pytest.mark.parametrize("options", [o for o in OPTIONS if o.keys() & NUMERIC], ids=str)
def test_every_option_matters(options: dict[str, Any]) -> None:
    """The reference gives another result with the option than without: the tests above would notice its loss."""
    one, plain = spec(**options), spec(**{k: v for k, v in options.items() if k not in NUMERIC})
    given = one.example(np.random.default_rng(0), n_tokens=40, n_keys=64)
    assert not np.allclose(one.reference(**given)["out"], plain.reference(**given)["out"], atol=1e-2)


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_large_logits(device: Device, kind: str) -> None:
    """Scores at ±1e5: the softmax is one key, exactly; no sentinel stands in for −inf."""
    one = spec(q_dtype=kind, kv_dtype=kind, scale=1.0, head_dim=8)
    given = one.example(np.random.default_rng(0), n_tokens=24, n_keys=24)
    given["q"][...], given["k"][...] = 0, 0
    given["q"][..., 0] = 250
    given["k"][..., 0] = np.random.default_rng(1).permutation(24)[:, None] * 30 - 400
    trial(one, device, target="sm_80", arguments=given, n_tokens=24, n_keys=24).require()


@pytest.mark.parametrize("target", ["sm_75", "sm_80"])
def test_a_slowly_rising_maximum(device: Device, target: str) -> None:
    """Scores that rise by less than the slack of 2^8 from tile to tile, and at last by more."""
    one = spec(lse=True, scale=1.0, head_dim=8, causal=False)
    given = one.example(np.random.default_rng(0), n_tokens=9, n_keys=200)
    given["q"][...], given["k"][...] = 0, 0
    given["q"][..., 0] = 1
    given["k"][..., 0] = (np.arange(200) / 20)[:, None] + np.where(np.arange(200) > 180, 20, 0)[:, None]
    trial(one, device, target=target, arguments=given, n_tokens=9, n_keys=200).require()


def test_a_row_does_not_depend_on_its_neighbours(device: Device) -> None:
    """The same token among others that raise their maxima at other tiles: the same bits."""
    one = spec(causal=False, n_heads=1)
    rng = np.random.default_rng(0)
    given = one.example(rng, n_tokens=16, n_keys=64)
    results = []
    for factor in (1, 40):
        given["q"][1:] = (rng.standard_normal(given["q"][1:].shape) * factor).astype(np.float16)
        results.append(trial(one, device, target="sm_80", arguments=given, n_tokens=16, n_keys=64).require())
    first, second = (r.outputs["out"][0].tobytes() for r in results)
    assert first == second


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
def test_heads_inside_is_a_transposed_q_and_out(device: Device, target: str) -> None:
    """The same bits as of q and out that the caller transposes, for two sequences of four heads."""
    shape: dict[str, Any] = dict(n_heads=8, n_kv_heads=4, q_dtype="bf16", kv_dtype="bf16", layout="heads", lse=True)
    one, plain = spec(heads_inside=4, **shape), spec(**shape)
    sizes = {"n_tokens": 21, "n_keys": 30}
    given = one.example(np.random.default_rng(0), **sizes)
    by_head = {name: given[name].swapaxes(1, 2).reshape(8, 21, *given[name].shape[3:]) for name in ("q", "out", "lse")}
    results = [
        trial(what, device, target=target, arguments=arguments, **sizes).require().outputs
        for what, arguments in ((one, given), (plain, given | by_head))
    ]
    for name in ("out", "lse"):
        ours = results[0][name].swapaxes(1, 2).reshape(results[1][name].shape)
        assert ours.tobytes() == results[1][name].tobytes(), name


@pytest.mark.parametrize(("inside", "more"), [(3, {}), (4, {"layout": "tokens"}), (16, {}), (1, {}), (-4, {})])
def test_heads_inside_holds_whole_groups(inside: int, more: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"^[^\n]*heads_inside: "):
        spec(**{"n_heads": 8, "n_kv_heads": 4, "layout": "heads", "heads_inside": inside, **more})


def test_capacity_decides_the_grid() -> None:
    """The launch depends on n_tokens alone."""
    launch = generate(spec(n_heads=6, n_kv_heads=2), "sm_80").launch
    assert launch.capacities == {"n_tokens"}
    rows = tiles.tensor_tile(16, parse_target("sm_80"), False).rows
    assert launch.at({"n_tokens": 100}).grid == (2 * -(-300 // rows), 1, 1)


# -- order of memory -------------------------------------------------------------------------------------------------

CHECKED: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "tensor": ("sm_80", {"head_dim": 104}, {"n_tokens": 70, "n_keys": 70}),
    "q in registers": ("sm_80", {"head_dim": 72}, {"n_tokens": 70, "n_keys": 70}),
    "q in shared memory": ("sm_80", {"head_dim": 120}, {"n_tokens": 70, "n_keys": 70}),
    "no keys": ("sm_80", {"head_dim": 120, "max_len": 8}, {"n_tokens": 70, "kv_len": 0}),
    "column groups": ("sm_80", {"head_dim": 400}, {"n_tokens": 40, "n_keys": 40}),
    "column groups, q in registers": ("sm_80", {"head_dim": 264}, {"n_tokens": 40, "n_keys": 40}),
    "converted": ("sm_90", {"head_dim": 24, "q_dtype": "f32", "kv_dtype": "s8", "max_len": 200}, {"n_tokens": 70}),
    "converted, one stage": ("sm_80", {"head_dim": 392, "kv_dtype": "s8", "max_len": 40}, {"n_tokens": 40}),
    "batch": ("sm_80", {"head_dim": 24, "max_len": 30, "batched": True}, {"n_tokens": 70, "batch": 4}),
    "two stages": ("sm_80", {"head_dim": 24, "q_dtype": "f32", "kv_dtype": "f32"}, {"n_tokens": 70, "n_keys": 70}),
    "one stage": ("sm_75", {"head_dim": 24}, {"n_tokens": 70, "n_keys": 70}),
}


@pytest.mark.parametrize("name", CHECKED)
def test_checking_finds_nothing(name: str) -> None:
    """No race, no byte read before it is written, no access out of bounds."""
    target, fields, sizes = CHECKED[name]
    trial(spec(lse=True, **fields), open_device("cpu", mode="check"), target=target, repeat=False, **sizes).require()


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ExecutionNote")  # of the stores before the one that differs
@pytest.mark.parametrize(
    ("name", "instruction", "index"),
    [
        *(("tensor", "bar.sync", n) for n in range(4)), *(("tensor", "cp.async.wait_all", n) for n in range(2)),
        ("q in registers", "bar.sync", 1), ("q in shared memory", "cp.async.wait_all", 0), ("no keys", "bar.sync", 1),
        *(("column groups", "bar.sync", n) for n in range(4)),
        ("converted", "bar.sync", 0), ("two stages", "bar.sync", 0),
        ("converted, one stage", "bar.sync", 0), ("converted, one stage", "bar.sync", 1),
        ("two stages", "cp.async.wait_all", 0), ("one stage", "bar.sync", 0), ("one stage", "bar.sync", 1),
    ],
)  # fmt: skip
def test_a_missing_barrier_is_noticed(name: str, instruction: str, index: int) -> None:
    target, fields, sizes = CHECKED[name]
    one = spec(**fields)
    ptx, given = generate(one, target), one.example(np.random.default_rng(0), **sizes)
    lines = ptx.text.split("\n")
    where = [i for i, line in enumerate(lines) if instruction in line][index]
    checker = open_device("cpu", mode="check")
    entry = checker.module("\n".join(lines[:where] + lines[where + 1 :]))[ptx.entry]
    launch = ptx.launch.at({**one.sizes, **sizes})
    values = (given[p.name] for p in ptx.params)
    args = [checker.array(v) if isinstance(v, np.ndarray) else v for v in values]
    with pytest.raises(ExecutionError):
        entry.launch(launch.grid, launch.block, args, launch.shared)


# -- what is refused -------------------------------------------------------------------------------------------------


def test_every_reason_is_given() -> None:
    fields = {
        "head_dim": 100, "n_heads": 6, "n_kv_heads": 4, "q_dtype": "s8", "kv_dtype": "u8", "layout": "rows",
        "window": 5, "causal": False, "scale": -1.0, "soft_cap": -2.0, "max_len": -1, "batched": True, "indirect": True,
        "page_size": 20,
    }  # fmt: skip
    with pytest.raises(SpecError) as refused:
        MultiHeadAttention(**fields)
    text = str(refused.value)
    for words in (
        "head_dim: must be a multiple of 8 from 8 to 512 (got 100; nearest: 96 or 104)",
        "n_heads: must be a multiple of n_kv_heads",
        "q_dtype: must be one of f32, f16, bf16 (got s8)",
        "kv_dtype: must be one of f32, f16, bf16, e4m3, s8 (got u8)",
        "layout: must be one of tokens, heads (got rows)",
        "window: needs causal=True",
        "scale: must be a positive number",
        "soft_cap: must be a positive number",
        "max_len: must be from 0",
        "batched: needs max_len and layout='tokens'",
        "page_size: must be a multiple of 16 from 16 to 65536 (got 20; nearest: 16 or 32)",
        "indirect: the lengths of a batch are in device memory already",
    ):
        assert words in text
    reasons = supports({"kernel_type": "multi_head_attention", **fields}, "sm_80").reasons
    assert len(reasons) == 12


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_scales_must_be_positive_numbers(value: float) -> None:
    with pytest.raises(SpecError, match="scale: must be a positive number"):
        spec(scale=value)


# -- what assembles --------------------------------------------------------------------------------------------------


@needs_assembler
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_assembles_without_spills(target: str) -> None:
    every: tuple[dict[str, Any], ...] = (
        {"head_dim": 64}, {"head_dim": 128, "lse": True}, {"head_dim": 128, "q_dtype": "f32", "window": 99},
        {"head_dim": 256, "soft_cap": 9.0}, {"head_dim": 512, "max_len": 64}, {"head_dim": 504, "causal": False},
        {"head_dim": 128, "q_dtype": "f32", "kv_dtype": "f32"}, {"head_dim": 512, "q_dtype": "f32", "kv_dtype": "f32"},
        {"head_dim": 192, "kv_dtype": "s8", "max_len": 64, "lse": True}, {"head_dim": 512, "kv_dtype": "e4m3"},
        {"head_dim": 80, "sinks": True}, {"head_dim": 104, "window": 99}, {"head_dim": 176, "soft_cap": 9.0},
        {"head_dim": 224, "lse": True}, {"head_dim": 384}, {"head_dim": 448, "causal": False},
        {"head_dim": 128, "kv_dtype": "s8", "soft_cap": 9.0, "split_keys": True},
        {"head_dim": 112, "kv_dtype": "e4m3", "causal": False, "indirect": True, "split_keys": True},
        {"head_dim": 128, "kv_dtype": "s8", "max_len": 64}, {"head_dim": 64, "kv_dtype": "e4m3", "window": 99},
    )  # fmt: skip
    for fields in (each for each, where in sweep.pairs(every, TARGETS, 2) if where == target):
        if fields.get("split_keys") and target == "sm_75":
            continue  # from sm_80 on
        ptx = generate(spec(n_heads=6, n_kv_heads=2, **fields), target)
        resources = assemble(ptx.text, target).resources[ptx.entry]
        assert resources.clean, (fields, resources)


@pytest.mark.parametrize("target", [*TARGETS, "sm_87", "sm_103", "sm_110", "sm_121"])
def test_every_tile_fits_its_target(target: str) -> None:
    """So many CTAs of it as are to be resident, each with what the driver keeps but for one."""
    where = parse_target(target)
    for head_dim in range(8, 513, 8):
        chosen: list[tuple[Any, int]] = [(tiles.simt_tile(head_dim, where), 0)]
        if where.includes_any(("sm_80",)):
            for converts, beside in itertools.product((False, True), (0, tiles.TOLD_BYTES)):
                chosen.append((tiles.tensor_tile(head_dim, where, converts, beside), beside))
        for tile, beside in chosen:
            nbytes = tile.shared_bytes(head_dim) + beside
            assert tile.ctas * nbytes + (tile.ctas - 1) * tiles.RESERVED <= where.shared_limit
            assert tile.rows > 0
            assert tile.keys > 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"head_dim": 64}, (2,)), ({"head_dim": 160}, (1,)), ({"head_dim": 16, "kv_dtype": "f32"}, (2,)),
        ({"head_dim": 64, "kv_dtype": "f32"}, None),
    ],
)  # fmt: skip
def test_the_assembler_knows_how_many_ctas_are_resident(fields: dict[str, Any], said: tuple[int, ...] | None) -> None:
    ptx = generate(spec(q_dtype="f32", **fields), "sm_80")
    assert ptx.module.functions[ptx.entry].performance.get("minnctapersm") == said


def test_rows_in_shared_memory_never_share_banks() -> None:
    """Eight rows at one column: eight different groups of four banks."""
    for nbytes in range(16, 2049, 16):
        step = copies.pitch(nbytes) // 16
        assert len({row * step % 8 for row in range(8)}) == 8
        assert nbytes <= copies.pitch(nbytes) <= nbytes + 16
