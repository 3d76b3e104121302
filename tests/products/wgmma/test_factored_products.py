"""Products of many tokens in e4m3 by weights with scales of blocks, against float64: tokens' scales are powers of four
that a warp packs, or those of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.cases.models import MODELS, model_spec, unfused
from ptxgen import generate
from ptxgen.assembler import assemble
from ptxgen.dtypes import bf16, e4m3, f32
from ptxgen.errors import SpecError
from ptxgen.generator import clear_cache
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.models.step.decode import step_program
from ptxgen.products.wgmma.tiling import shape
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.registers import FACTORED
from ptxgen.products.wgmma.tokens import layout
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from tests.support.marks import needs_assembler

WHERE = "sm_90a"
ROUNDED = 3e-3  # of results in bf16
EXACT = 1e-6  # sums are f32, as on the device those of 128 columns are not
MODES = pytest.mark.parametrize("mode", ["check", "random"])


def product(**fields: Any) -> PackedGemm:
    return PackedGemm(**{"weights": "e4m3_block", "x_dtype": e4m3, "precision": "fast", **fields})


@pytest.fixture
def few_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CTA goes on to further tiles."""
    monkeypatch.setattr(shape, "PROCESSORS", 4)
    yield
    clear_cache()


@MODES
@pytest.mark.parametrize(("rows", "count"), FACTORED)
@pytest.mark.parametrize("k", [128, 1152])
@pytest.mark.parametrize("row_scales", [False, True])
def test_every_tile(mode: str, rows: int, count: int, k: int, row_scales: bool) -> None:
    spec = product(n=512, k=k, tokens=count, tile_rows=rows, split=1, row_scales=row_scales)
    assert Geometry.of(spec).pipelined
    assert Geometry.of(spec).factored != row_scales
    trial(spec, CpuDevice(mode=mode), target=WHERE, rows=count + 9, limit=EXACT).require()


CASES: tuple[tuple[int, dict[str, Any]], ...] = (
    (300, {"n": 384, "k": 512, "tokens": 128, "split": 2, "bias": True}),
    (700, {"n": 512, "k": 1152, "tokens": 192, "split": 1, "residual": True, "indirect": True, "programmatic": True}),
    (700, {"n": 512, "k": 1152, "tokens": 256, "share": 2, "split": 2, "activation": "silu"}),
    (300, {"n": 384, "k": 1152, "tokens": 256, "split": 2, "programmatic": True, "out_dtype": bf16}),
    (300, {"n": 384, "k": 1152, "tokens": 256, "split": 2, "residual": True, "bias": True}),
    (300, {"n": 384, "k": 512, "tokens": 256, "split": 2, "residual": True, "row_scales": True, "programmatic": True}),
    (300, {"n": 512, "k": 1024, "tokens": 96, "share": 2, "residual": True, "programmatic": True}),
    (300, {"n": 384, "k": 512, "tokens": 128, "split": 2, "bias": True, "row_scales": True}),
    (300, {"n": 512, "k": 512, "tokens": 192, "row_scales": True, "programmatic": True}),
    (700, {"n": 512, "k": 1152, "tokens": 256, "share": 2, "activation": "silu", "row_scales": True}),
    (700, {"n": 512, "k": 512, "tokens": 256, "activation": "gelu_tanh", "bias": True, "out_dtype": bf16}),
    (700, {"n": 512, "k": 512, "tokens": 192, "activation": "silu", "out_dtype": bf16, "row_scales": True}),
)


@MODES
@pytest.mark.parametrize(("rows", "fields"), CASES, ids=str)
@pytest.mark.usefixtures("few_processors")
def test_what_stands_around_the_products(mode: str, rows: int, fields: dict[str, Any]) -> None:
    spec = product(**fields)
    assert Geometry.of(spec).pipelined
    limit = ROUNDED if spec.out_dtype == bf16 else EXACT
    trial(spec, CpuDevice(mode=mode), target=WHERE, rows=rows, limit=limit).require()


@MODES
@pytest.mark.parametrize("row_scales", [False, True])
@pytest.mark.parametrize("fields", [
    {"tokens": 104, "split": 2, "gated": True, "activation": "silu"},
    {"tokens": 112, "tile_rows": 128, "split": 2, "residual": True},
], ids=str)  # fmt: skip
def test_tiles_of_no_multiple_of_64_tokens_share_k(mode: str, fields: dict[str, Any], row_scales: bool) -> None:
    spec = product(n=256, k=512, row_scales=row_scales, **fields)
    trial(spec, CpuDevice(mode=mode), target=WHERE, rows=spec.tokens + 3, limit=EXACT).require()


@MODES
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (20, {"n": 200, "tokens": 16}),
        (90, {"n": 200, "tokens": 64, "tile_rows": 128}),
        (150, {"n": 200, "tokens": 128, "tile_rows": 256, "residual": True}),
        (150, {"n": 200, "tokens": 128, "tile_rows": 256, "gated": True, "activation": "silu", "split": 2}),
        (70, {"n": 72, "tokens": 64, "gated": True, "activation": "silu"}),
    ],
    ids=str,
)
def test_rows_of_tokens_beside_blocks_of_weights_that_are_not_whole(
    mode: str, rows: int, fields: dict[str, Any]
) -> None:
    spec = product(k=640, row_scales=True, **fields)
    assert not Geometry.of(spec).pipelined
    trial(spec, CpuDevice(mode=mode), target=WHERE, rows=rows, limit=EXACT).require()


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 200},  # a block of rows that is not whole
        {"n": 256, "gated": True, "activation": "silu"},
        {"n": 256, "tile_rows": 64},
        {"n": 256, "tokens": 64},
        {"n": 256, "tokens": 256, "residual": True, "split": 1},  # no registers are left
        {"n": 256, "weights": "e4m3_channel", "promoted": True},
    ],
    ids=str,
)
def test_other_products_read_scales_themselves(fields: dict[str, Any]) -> None:
    spec = product(**{"k": 512, "tokens": 128, "tile_rows": 128, **fields})
    assert not Geometry.of(spec).pipelined
    assert "factors:" not in generate(spec, WHERE).text


@MODES
def test_a_scale_that_is_infinite_or_zero_is_its_tokens_alone(mode: str) -> None:
    spec, rows = product(n=128, k=256, tokens=128, split=1), 40
    given = spec.example(np.random.default_rng(0), rows=rows)
    scales = given["x_scales"].copy()
    scales[0, 1, 5], scales[0, 0, 6] = np.inf, 0
    done = trial(spec, CpuDevice(mode=mode), target=WHERE, rows=rows, limit=EXACT)
    spoiled = trial(spec, CpuDevice(mode=mode), target=WHERE, rows=rows, arguments={"x_scales": scales})
    others = [row for row in range(rows) if row not in (5, 6)]
    got, wanted = spoiled.outputs["out"], done.outputs["out"]
    assert (got[others] == wanted[others]).all()
    assert np.isinf(got[5]).any()
    assert np.isfinite(got[6]).all()


@MODES
@pytest.mark.parametrize(("rows", "count"), FACTORED)
def test_every_token_of_every_group_has_its_own_scale(mode: str, rows: int, count: int) -> None:
    """Row by row, since large ones would hide the others."""
    spec, there = product(n=128, k=384, tokens=count, tile_rows=rows, split=1), count + 9
    given = spec.example(np.random.default_rng(0), rows=there)
    rng, (tiles, groups, _) = np.random.default_rng(1), given["x_scales"].shape
    exponents = rng.integers(-30, 31, (tiles, 1, count)) + rng.integers(-3, 4, (tiles, groups, count))
    given["x_scales"] = np.float32(4.0) ** exponents.astype(np.float32)
    wanted = spec.reference(**given)["out"].astype(np.float64)
    done = trial(spec, CpuDevice(mode=mode), target=WHERE, rows=there, arguments=given, repeat=False)
    errors = np.linalg.norm(done.outputs["out"] - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert errors.max() < EXACT


@pytest.mark.parametrize("count", [64, 128])
@pytest.mark.parametrize("scale", [0.37, 0.5, -1.0, np.nan, np.nextafter(np.float32(1), np.float32(2))])
def test_a_scale_that_is_no_power_of_four_is_refused(count: int, scale: float) -> None:
    spec = product(n=128, k=512, tokens=count)
    scales = spec.example(np.random.default_rng(0), rows=40)["x_scales"]
    scales[0, 2, 3] = scale
    said = rf"^PackedGemm.x_scales: must be powers of four, or 0 \(got {scale:g} at row 3, group 2\)$"
    with pytest.raises(SpecError, match=said):
        trial(spec, CpuDevice(), target=WHERE, rows=40, arguments={"x_scales": scales})
    trial(spec, CpuDevice(), target=WHERE, rows=3, n_rows=3, limit=EXACT).require()
    assert [param.doc for param in spec.params() if param.name == "x_scales"] != [""]


@pytest.mark.parametrize(("of_weights", "exponent"), [(1e-33, -9), (1e-30, -18), (1e-40, 20), (1e30, 20)])
def test_scales_whose_product_is_no_normal_number_are_refused(of_weights: float, exponent: int) -> None:
    spec = product(n=128, k=256, tokens=128)
    given = spec.example(np.random.default_rng(0), rows=40)
    first = spec.kind.tiles(256) * spec.kind.tile_bytes
    given["weight"][:, first : first + 8] = np.full(2, of_weights, np.float32).view(np.uint8)
    given["x_scales"][:] = np.float32(4.0) ** exponent
    with pytest.raises(SpecError, match=r"^PackedGemm.x_scales: times the weights' must be 0, or at least 2\^-126"):
        spec.reference(**given)
    given["x_scales"][:] = 1 if of_weights > 1e-38 else 0
    spec.reference(**given)


def test_no_rows_are_refused_in_words() -> None:
    with pytest.raises(SpecError, match=r"^bind\(rows\): a capacity must be an int ≥ 1 \(got 0\)$"):
        trial(product(n=128, k=256, tokens=128), CpuDevice(), target=WHERE, rows=0)


@MODES
@pytest.mark.parametrize("source", ["f32", "bf16"])
def test_packed_scales_are_exact(mode: str, source: str) -> None:
    spec = PackTokens(520, 8, dtype=e4m3, src_dtype=source, precision="fast", group=128)
    x = spec.example(np.random.default_rng(0), rows=11)["x"]
    out = trial(spec, CpuDevice(mode=mode), target="sm_80", rows=11).require().outputs
    wanted, scales = layout.pack_scaled(x.astype(np.float32), 8, e4m3, 128)
    assert len(np.unique(scales)) > 5
    assert (out["scales"] == scales).all()
    assert out["out"].tobytes() == wanted.tobytes()


def test_scales_of_groups_are_the_least_powers_of_four_that_hold_them() -> None:
    x = np.random.default_rng(0).standard_normal((9, 512), np.float32)
    x *= np.float32(10.0) ** np.random.default_rng(1).integers(-30, 30, (9, 1)).astype(np.float32)
    x[4, :128] = 0
    _, scales = layout.pack_scaled(x, 16, e4m3, 128)
    largest = np.abs(x).reshape(9, 4, 128).max(2)
    found = scales[0, :4, :9].T
    assert found[4, 0] == 0
    there = found > 0
    assert there.sum() == found.size - 1
    assert (np.log2(found[there]) % 2 == 0).all()
    ratio = largest[there] / found[there]
    assert ratio.max() <= 448
    assert ratio.min() > 448 / 4 * (1 - 1e-6)


@MODES
def test_what_is_not_finite_keeps_a_row_from_being_finite(mode: str) -> None:
    spec = PackTokens(256, 8, dtype=e4m3, precision="fast", group=128)
    x = np.random.default_rng(0).standard_normal((8, 256), np.float32)
    x[2, 7], x[3, 200] = np.inf, np.nan
    out = trial(spec, CpuDevice(mode=mode), target="sm_80", rows=8, arguments={"x": x}).require().outputs
    with np.errstate(invalid="ignore"):  # infinity times zero
        back = layout.unpack(out["out"], 8, 256, out["scales"])
    assert np.isnan(back[2]).any()
    assert np.isnan(back[3]).any()
    assert np.isfinite(back[[0, 1, 4, 5, 6, 7]]).all()


@needs_assembler
@pytest.mark.parametrize(("rows", "count"), FACTORED)
@pytest.mark.parametrize(
    "more",
    [
        {"out_dtype": bf16},
        {"residual": True},
        {"out_dtype": bf16, "share": 2},
        {"out_dtype": bf16, "bias": True},
        {"bias": True, "activation": "silu"},
        {"out_dtype": bf16, "split": 2},
        {"out_dtype": bf16, "bias": True, "activation": "gelu_tanh"},
        {"residual": True, "split": 2},
        {"residual": True, "bias": True, "split": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("row_scales", [False, True])
def test_no_spills(rows: int, count: int, more: dict[str, Any], row_scales: bool) -> None:
    """Of 256 tokens with a residual, if no k is shared, those are meant that are not pipelined."""
    fields = {"tokens": count, "tile_rows": rows, "programmatic": True, "row_scales": row_scales, **more}
    ptx = generate(product(n=4096, k=4096, **fields), WHERE)
    assert assemble(ptx.text, WHERE).resources[ptx.entry].clean


@needs_assembler
@pytest.mark.parametrize(
    "more",
    [
        {"out_dtype": bf16},
        {"residual": True, "share": 2},
        {"gated": True, "activation": "silu", "split": 2},
        {"gated": True, "activation": "gelu_tanh", "out_dtype": bf16},
        {"bias": True, "activation": "gelu_tanh", "out_dtype": bf16},
        {"activation": "silu", "out_dtype": bf16},
    ],
    ids=str,
)
@pytest.mark.parametrize("row_scales", [False, True])
def test_no_spills_of_two_blocks_of_rows(more: dict[str, Any], row_scales: bool) -> None:
    fields = {"tokens": 128, "tile_rows": 256, "programmatic": True, "indirect": True, "row_scales": row_scales}
    spec = product(n=4096, k=4096, **fields, **more)
    assert Geometry.of(spec).crowded
    ptx = generate(spec, WHERE)
    assert assemble(ptx.text, WHERE).resources[ptx.entry].clean


@needs_assembler
@pytest.mark.parametrize("rows", [256, 512, 4096])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_best_tile_has_registers_for_an_activation(rows: int, activation: str, bias: bool) -> None:
    fields: dict[str, Any] = {
        "n": 4096,
        "k": 4096,
        "weights": "e4m3_block",
        "x_dtype": e4m3,
        "precision": "fast",
        "out_dtype": bf16,
    }
    for row_scales in (False, True):
        more = {"bias": bias, "activation": activation, "programmatic": True, "row_scales": row_scales}
        ptx = generate(PackedGemm.best(rows, **fields, **more), WHERE)
        assert assemble(ptx.text, WHERE).resources[ptx.entry].clean


# Of 6 to 18 tiles the fastest on an H200, but the last two and those of residuals: rows of x, outputs, columns; tokens,
# CTAs that share k
@pytest.mark.parametrize(
    ("rows", "n", "k", "more", "tile"),
    [
        (512, 4096, 4096, {}, (128, 1)), (512, 4096, 14336, {}, (256, 2)), (512, 2048, 7168, {}, (128, 2)),
        (512, 7168, 2048, {}, (256, 1)), (512, 5120, 13824, {}, (192, 1)), (256, 4096, 14336, {}, (128, 2)),
        (384, 4096, 14336, {}, (192, 2)), (1024, 2048, 7168, {}, (128, 1)),
        (512, 4096, 14336, {"residual": True, "out_dtype": f32}, (256, 2)),
        (512, 4096, 14336, {"slices": 1, "by_memory": False}, (256, 2)),
        (4096, 4096, 14336, {}, (256, 1)), (512, 2048, 2048, {}, (96, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_the_best_tile_is_one_of_these(rows: int, n: int, k: int, more: dict[str, Any], tile: tuple[int, int]) -> None:
    fields = {"weights": "e4m3_block", "x_dtype": e4m3, "precision": "fast", "out_dtype": bf16, **more}
    spec = PackedGemm.best(rows, n=n, k=k, **fields)
    assert (spec.tokens, spec.split, Geometry.of(spec).factored) == (*tile, True)


@pytest.mark.parametrize("given", [
    {"split": 1}, {"split": 0}, {"tokens": 128}, {"share": 1}, {"bias": True}, {"indirect": True},
    {"row_scales": True}, {"activation": "silu"},
], ids=str)  # fmt: skip
def test_what_was_not_measured_keeps_its_tile(given: dict[str, Any]) -> None:
    fields = {"n": 4096, "k": 14336, "weights": "e4m3_block", "x_dtype": e4m3, "precision": "fast"}
    assert (PackedGemm.best(512, **fields).tokens, PackedGemm.best(512, **fields).split) == (256, 2)
    kept = PackedGemm.best(512, **fields, **given)
    assert (kept.tokens, Geometry.of(kept).shape.split) == (128, 1)
    assert all(getattr(kept, name) == value for name, value in given.items())


def test_short_rows_keep_their_tile() -> None:
    fields = {"weights": "e4m3_block", "x_dtype": e4m3, "precision": "fast", "out_dtype": bf16}
    assert PackedGemm.best(512, n=28672, k=128, **fields).tokens == 256  # by `cycles` alone


def test_a_model_has_a_warp_pack_the_scales_of_its_last_product() -> None:
    """Tokens are packed for a product without a residual; the one that has it must be able to take them so."""
    model = unfused(model_spec(dict(MODELS["llama-3-8b"]), max_len=1024))
    how = {"target": WHERE, "programmatic": True, "precision": "e4m3"}
    step = step_program(model, "e4m3_block", "prefill", rows=512, kv_dtype="f16", **how)
    (down,) = (op.spec for op in step.ops if op.name == "layers.0.down_proj")
    assert isinstance(down, PackedGemm)
    assert (down.residual, down.tokens, down.split) == (True, 256, 2)
    assert Geometry.of(down).factored
