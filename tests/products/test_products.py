"""Gemv, Gemm and Embedding: every format, fusion and way of sharing the work out, against float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.kernel import KernelType
from ptxgen.kernels import Embedding, Gemm, Gemv, QkvAppend
from ptxgen.products.geometry.groups import choose, choose_for_tensor_cores
from ptxgen.products.geometry.runs import share_runs, side_by_side
from ptxgen.runtime import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from ptxgen.weights import weight_format, weight_formats
from tests.support import sweep
from tests.support.marks import needs_assembler

FORMATS = tuple(weight_formats())
F32_CLASS = 1e-6  # of a result whose every product is f32


def width(name: str, at_least: int) -> int:
    """A number of columns that the format has, and that is no multiple of its tile where that can be."""
    step = weight_format(name).block_cols
    return -(-at_least // step) * step if step > 1 else at_least


def small(name: str, **fields: Any) -> Gemv:
    return Gemv(37, width(name, 300), name, **fields)


def narrow() -> list[tuple[str, int]]:
    """Formats with widths whose tiles are narrow, of every width of tile."""
    found = []
    for name in FORMATS:
        for each in weight_format(name).narrow:
            widths = (tiles * each.tile_k for tiles in itertools.count(3))
            found.append((name, next(k for k in widths if weight_format(name).fitted(k) is each)))
    return found


@pytest.mark.parametrize("where", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize(("name", "k"), narrow())
def test_narrow_tiles(device: Device, name: str, k: int, where: str) -> None:
    for spec in (Gemv(37, k, name, norm="rms"), Gemm(37, k, name, residual=True), Embedding(50, k, name)):
        trial(spec, device, target=where, limit=F32_CLASS).require()


@pytest.mark.parametrize(("name", "k"), narrow())
def test_narrow_tiles_without_a_finding(name: str, k: int) -> None:
    gated = {"activation": "silu", "gated": True}
    for spec in (Gemv(37, k, name, **gated), Gemm(37, k, name, **gated), Embedding(50, k, name)):
        trial(spec, CpuDevice(mode="check"), target="sm_90", limit=F32_CLASS).require()


# -- Gemv --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["sm_75", "sm_90"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(device: Device, name: str, where: str) -> None:
    trial(small(name), device, target=where, limit=F32_CLASS).require()


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "check") for name in FORMATS), ("f32", "random"), ("q6_k", "random")]
)
def test_every_format_in_any_order_of_threads_and_without_a_finding(name: str, mode: str) -> None:
    spec = small(name, norm="rms", residual=True)
    trial(spec, CpuDevice(mode=mode), target="sm_80", limit=F32_CLASS).require()


FUSIONS: tuple[dict[str, Any], ...] = (
    {"norm": "rms"},
    {"norm": "rms", "norm_offset": 1.0, "eps": 0.01},
    {"bias": True},
    {"activation": "silu"},
    {"activation": "gelu_tanh"},
    {"activation": "gelu"},
    {"gated": True, "activation": "silu"},
    {"residual": True},
    {"norm": "rms", "bias": True, "activation": "silu", "residual": True},
    {"norm": "rms", "gated": True, "activation": "gelu_tanh", "residual": True},
)


@pytest.mark.parametrize("fields", FUSIONS, ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("name", ["f32", "q4_k"])
def test_every_fusion(device: Device, name: str, fields: dict[str, Any]) -> None:
    trial(small(name, **fields), device, limit=2e-6).require()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 127, 129, 600])
@pytest.mark.parametrize("k", [1, 2, 31, 64, 65, 1030])
def test_ragged_shapes(device: Device, n: int, k: int) -> None:
    trial(Gemv(n, k, "bf16", norm="rms"), device, limit=F32_CLASS).require()


@pytest.mark.parametrize("n", [1000 * 16, 1030 * 16 + 3, 2050 * 16, 5000 * 16])
def test_many_rows_are_shared_by_warps_and_then_by_turns(device: Device, n: int) -> None:
    trial(Gemv(n, 160, "q4_0", norm="rms", residual=True), device, limit=F32_CLASS, repeat=False).require()


def test_a_long_row_is_staged_in_passes(device: Device) -> None:
    trial(Gemv(20, 20000, "q8_0", norm="rms"), device, target="sm_90", limit=F32_CLASS).require()


def test_the_longest_row_that_fits(device: Device) -> None:
    """A gated product of one token and its sums, in all the shared memory of sm_75."""
    spec = Gemv(20, 15360, "q8_0", norm="rms", gated=True, activation="silu")
    trial(spec, device, target="sm_75", limit=2e-6, repeat=False).require()
    trial(Gemm(20, 15360, "q8_0", norm="rms"), device, target="sm_75", rows=3, limit=F32_CLASS, repeat=False).require()


def test_what_is_in_x_comes_out(device: Device) -> None:
    """A NaN reaches every row, an infinity the rows whose weight is not zero."""
    spec = Gemv(16, 64, "f32")
    weight = np.zeros((16, 64), np.float32)
    weight[3, 5] = 2
    packed = spec.kind.pack({"weight": weight}, 16, 64).reshape(1, -1)
    x = np.zeros((1, 64), np.float32)
    x[0, 5] = 3
    out = trial(spec, device, arguments={"x": x, "weight": packed}).require().outputs["out"]
    assert out[0].tolist() == [0] * 3 + [6] + [0] * 12
    x[0, 6] = np.nan
    assert np.isnan(trial(spec, device, arguments={"x": x, "weight": packed}).require().outputs["out"]).all()


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "f32"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_in_x_is_a_nan_in_every_row(device: Device, name: str, value: float) -> None:
    spec = Gemv(20, 256, name)
    x = np.random.default_rng(0).standard_normal((1, 256), np.float32)
    x[0, 77] = value
    out = trial(spec, device, target="sm_90", arguments={"x": x}, limit=np.inf).outputs["out"]
    assert np.isnan(out).all()


def test_weights_are_asked_for_before_the_producer_is_waited_for() -> None:
    """One of two tiles, of four loads, and the norm's weights to the L2; the residual stream at once afterwards."""
    text = generate(Gemv(64, 8192, "q4_k", norm="rms", residual=True, programmatic=True), "sm_90").text
    before, after = text.split("    griddepcontrol.wait")
    released, before = before.split("mov.u32 %thread")
    assert "griddepcontrol.launch_dependents" in released
    assert before.count("ld.global.L1::no_allocate.v4") == 4
    assert "ld.global.nc" not in before, "an assembler may move these behind the wait"
    assert before.count("prefetch.global.L2 [%norm_line_at") == 1
    assert "%stage_from" not in before
    assert "ld.global.f32 %before" not in before
    assert after.index("ld.global.f32 %before") < after.index("ld.global.v4.f32 {%staged0")
    assert not supports(Gemv(64, 256, programmatic=True), "sm_89")


# -- Gemm --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 33])
@pytest.mark.parametrize("name", ["f32", "f16", "q4_k", "q6_k", "int4_g64"])
def test_any_number_of_tokens(device: Device, name: str, rows: int) -> None:
    trial(Gemm(37, width(name, 300), name), device, rows=rows, limit=F32_CLASS).require()


@pytest.mark.parametrize(("name", "where"), [*((name, "sm_80") for name in FORMATS), ("q8_0", "sm_75")])
def test_tokens_of_every_format_without_a_finding(name: str, where: str) -> None:
    spec = Gemm(21, width(name, 150), name, norm="rms", residual=True, indirect=True)
    trial(spec, CpuDevice(mode="check"), target=where, rows=5, limit=2e-6).require()


@pytest.mark.parametrize("name", ["f16", "q5_k", "int4_g32"])
def test_tokens_in_any_order_of_threads(name: str) -> None:
    spec = Gemm(40, width(name, 700), name, norm="rms", residual=True)
    trial(spec, CpuDevice(mode="random"), target="sm_80", rows=10, limit=2e-6).require()


@pytest.mark.parametrize("k", [1, 3, 30, 66, 1030])
@pytest.mark.parametrize("where", ["sm_75", "sm_80"])
def test_ragged_widths_of_tokens(device: Device, k: int, where: str) -> None:
    for name in ("bf16", "e4m3"):
        trial(Gemm(50, k, name, norm="rms"), device, target=where, rows=3, limit=F32_CLASS).require()


@pytest.mark.parametrize(("count", "indirect"), [(0, True), *itertools.product((1, 4, 6), (False, True))])
def test_rows_past_the_number_of_tokens_do_not_matter(device: Device, count: int, indirect: bool) -> None:
    spec = Gemm(20, 80, "f16", norm="rms", indirect=indirect)
    x = np.random.default_rng(1).standard_normal((7, 80), np.float32)
    x[count:] = np.nan
    out = trial(spec, device, rows=7, n_rows=count, arguments={"x": x}).require().outputs["out"]
    assert np.isfinite(out[:count]).all()
    assert np.isnan(out[count:]).all()  # as they were


@pytest.mark.parametrize("where", ["sm_75", "sm_90"])
def test_a_token_of_many_is_that_token_alone_bit_for_bit(device: Device, where: str) -> None:
    """Sums are in one order, however many tokens there are, and wherever among them one stands."""
    spec = Gemm(40, 512, "q5_k", norm="rms")
    values = spec.example(np.random.default_rng(3), rows=11)
    out = trial(spec, device, target=where, arguments=values, rows=11).require().outputs["out"]
    shared = {name: values[name] for name in ("weight", "norm_weight")}
    for row in (0, 3, 9):
        own = {**shared, "x": values["x"][row : row + 1]}
        alone = trial(spec, device, target=where, arguments=own, rows=1).require().outputs["out"]
        assert alone.tobytes() == out[row : row + 1].tobytes()


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "f32"])
def test_tensor_cores_have_the_codes_exactly(name: str) -> None:
    """A weight of one row at a time with x = 1: what a lane makes of a code is that code."""
    k = width(name, 256)
    spec = Gemm(32, k, name)
    assert spec.on_tensor_cores(target("sm_80"))
    assert not spec.on_tensor_cores(target("sm_75"))
    x = np.zeros((8, k), np.float32)
    for row, column in enumerate((0, 3, 5, 14, 16, 63, 130, k - 1)):
        x[row, column] = 1
    done = trial(spec, CpuDevice(), target="sm_80", rows=8, arguments={"x": x}, limit=0.0 if name in EXACT else 3e-7)
    assert done.require().ok


EXACT = ("f16", "bf16")  # no scale is rounded


# -- Embedding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_format_are_exact(device: Device, name: str) -> None:
    spec = Embedding(45, width(name, 300), name)
    done = trial(spec, device, rows=9).require()
    table = spec.example(np.random.default_rng(0), rows=9)
    want = spec.reference(**table)["out"]
    assert np.array_equal(done.outputs["out"], want, equal_nan=True)


@pytest.mark.parametrize("mode", ["random", "check"])
@pytest.mark.parametrize(("name", "dim"), [("f32", 131), ("bf16", 258), ("e4m3_block", 300), ("q5_k", 1280)])
def test_a_gather_without_a_finding(name: str, dim: int, mode: str) -> None:
    trial(Embedding(40, dim, name, scale=3.0), CpuDevice(mode=mode), target="sm_80", rows=4).require()


def test_every_row_of_a_table_and_tokens_outside(device: Device) -> None:
    tokens = np.array([*range(19), -1, 19, 2**31 - 1, -(2**31)], np.int32)
    out = trial(Embedding(19, 64, "q8_0"), device, rows=tokens.size, arguments={"tokens": tokens}).require().outputs
    assert np.isfinite(out["out"][:19]).all()
    assert np.isnan(out["out"][19:]).all()


# -- rules, geometry, resources ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Gemv(0, 64), "n: must be from 1 to"),
        (lambda: Gemv(64, 100, "q4_k"), r"k: must be a multiple of 256 .* \(got 100; nearest: 256\)"),
        (lambda: Gemv(64, 64, "q3_k"), r"weights: must be one of .*q4_k.* \(got q3_k\)"),
        (lambda: Gemv(64, 64, norm="layer"), "norm: must be one of '', rms"),
        (lambda: Gemv(64, 64, gated=True), "gated: needs an activation"),
        (lambda: Gemv(64, 64, gated=True, activation="silu", bias=True), "bias: a gated product has none"),
        (lambda: Gemm(64, 64, activation="relu"), "activation: must be one of"),
        (lambda: Embedding(64, 100, "q8_0"), r"dim: must be a multiple of 32"),
    ],
)
def test_an_illegal_spec_is_refused(make: Any, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        make()


def test_a_row_of_x_that_does_not_fit_is_refused_with_the_reason() -> None:
    spec = Gemv(64, 28672, "q4_k")
    assert "k: must be at most 15360 on sm_75" in str(supports(spec, "sm_75"))
    assert supports(Gemv(64, 15360, "q4_k", norm="rms", gated=True, activation="silu"), "sm_75")
    assert supports(spec, "sm_90")
    assert supports(Gemm(64, 28672, "q4_k"), "sm_80")


def test_few_records_have_many_warps_along_k() -> None:
    def at(n: int, k: int, tokens: int = 1) -> tuple[int, int, int, int]:
        made = choose(-(-n // 16), -(-k // 256), tokens, 4 * k, target("sm_90").shared_limit)
        return made.k_warps, made.row_warps, made.tokens, made.ctas

    assert at(4096, 4096) == (8, 1, 1, 256)
    assert at(14336, 4096) == (4, 2, 1, 264)
    assert at(128256, 4096) == (1, 8, 1, 264)
    assert at(4096, 256) == (1, 8, 1, 32)
    assert at(4096, 4096, 4) == (8, 1, 4, 256)
    assert at(128256, 4096, 4) == (2, 4, 4, 264)
    assert at(100, 64) == (1, 4, 1, 2)
    assert choose_for_tensor_cores(256, 16, 8, 20) == choose_for_tensor_cores(256, 64, 8, 20)
    few, many = (choose_for_tensor_cores(896, 16, 8, words) for words in (20, 24))
    assert (few.k_warps, few.row_warps, few.ctas) == (4, 2, 264)
    assert (many.k_warps, many.row_warps, many.ctas) == (4, 1, 528)


def test_every_tile_belongs_to_one_warp() -> None:
    """CTAs have neighbouring units, as many or one more; warps neighbouring tiles; and slots are not shared."""
    shapes = (1, 1, 1), (5, 2, 3), (160, 1, 8), (352, 2, 8), (96, 1, 35), (9496, 1, 6), (20000, 1, 2)
    for (units, parts, tiles), name in itertools.product(shapes, ("q4_k", "bf16")):
        kind = weight_format(name)
        at = share_runs(units, parts, kind, tiles * kind.tile_k, since_sm_90=True)
        assert at.ctas * at.least + at.more == units
        for count in {at.least, at.most}:
            total = count * parts * tiles
            runs = [(total * warp // at.warps, total * (warp + 1) // at.warps) for warp in range(at.warps)]
            owners = {tile: warp for warp, run in enumerate(runs) for tile in range(*run)}
            assert sorted(owners) == list(range(total))
            assert at.idle or all(begin < end for begin, end in runs)
            slots = {(tile // tiles + warp, tile // tiles, warp) for tile, warp in owners.items()}
            assert len({slot for slot, *_ in slots}) == len(slots)
            for record in range(count * parts):
                sharers = {owners[record * tiles + tile] for tile in range(tiles)}
                first = (at.warps * record + (at.warps - 1) // tiles) // (count * parts)
                last = (at.warps * (record + 1) - 1) // (count * parts)
                assert (min(sharers), max(sharers)) == (first, last)
                assert last - first < at.sharers


def test_products_of_one_launch_have_ctas_in_proportion_to_their_bytes() -> None:
    kinds = [weight_format(name) for name in ("q4_k", "q6_k")]
    first, second = side_by_side([144, 16], kinds, 2048, since_sm_90=True)
    assert (first.ctas, second.ctas, first.warps) == (114, 16, second.warps)


MODELS = ((14336, 4096, True), (1536, 8960, False))


@needs_assembler
@pytest.mark.parametrize(("name", "where"), sweep.pairs(FORMATS, ["sm_75", "sm_80", "sm_90a", "sm_120"], 3))
def test_no_spills_at_a_models_sizes(name: str, where: str) -> None:
    for n, k, gated in MODELS:
        fusion = {"gated": True, "activation": "silu", "norm": "rms"} if gated else {"residual": True}
        specs: list[KernelType] = [Gemv(n, k, name, **fusion), Gemm(n, k, name, **fusion)]
        for spec in [each for each in specs if supports(each, where)]:
            ptx = generate(spec, where)
            assert assemble(ptx.text, where).resources[ptx.entry].clean, (spec, where)


@needs_assembler
@pytest.mark.parametrize(("k", "heads"), [(4096, (32, 8, 128)), (8192, (64, 8, 128)), (3584, (28, 4, 128))])
def test_no_spills_of_two_formats_in_one_launch(k: int, heads: tuple[int, int, int]) -> None:
    """As layers of Q4_K_M have them; of many words one tile is on its way."""
    n_heads, n_kv_heads, head_dim = heads
    spec = QkvAppend(
        max_len=4608, head_dim=head_dim, n_heads=n_heads, n_kv_heads=n_kv_heads, k=k, weights="q4_k",
        v_weights="q6_k", norm="rms", kv_dtype="f16", programmatic=True,
    )  # fmt: skip
    ptx = generate(spec, "sm_90a")
    assert assemble(ptx.text, "sm_90a").resources[ptx.entry].clean
