"""PackedGemm in units of rows: codes as numbers of f16, digits of f16, sums of x, against float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.dtypes import e4m3, f16
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.rules import BY_ROW
from ptxgen.products.wgmma.tiling import geometry, shape
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tokens import layout
from ptxgen.runtime import open_device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.weights import weight_format
from ptxgen.weights.blocks import join_scales
from tests.support.marks import needs_assembler
from tests.support.packed_products import EXACT, WHERE, tried

CODES = [name for name in BY_ROW if not weight_format(name).span]
MINS = [name for name in BY_ROW if weight_format(name).has_mins]
WHERES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NEARLY_EQUAL = 1 + 0.01 * np.random.default_rng(5).standard_normal((8, 2048), np.float32)
# of sums of one sign on a GPU: tensor cores truncate every addition, of which a tile's sums have 16; measured 1.2e-6
TRUNCATED = 1.5e-6
ROUNDED = 3e-4  # of Q6_K's integers, one number of 11 bits each


def product(**fields: Any) -> PackedGemm:
    return PackedGemm(**{"weights": "q4_k", "x_dtype": "f16", "by_row": True, **fields})


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": 16, "residual": True},
        {"tokens": 32, "gated": True, "activation": "silu", "programmatic": True},
        {"tokens": 8, "split": 2, "share": 2, "bias": True, "indirect": True},
    ],
    ids=str,
)
def test_every_format(mode: str, name: str, precision: str, fields: dict[str, Any]) -> None:
    limit = ROUNDED if name == "q6_k" and precision == "fast" else EXACT
    tried(product(n=100, k=768, weights=name, precision=precision, **fields), mode, 20, limit)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (60, {"n": 70, "k": 2560, "tokens": 64, "tile_rows": 64}),
        (70, {"n": 70, "k": 512, "tokens": 64, "precision": "fast", "tile_rows": 128, "share": 2}),
        (20, {"n": 300, "k": 1024, "tokens": 32, "tile_rows": 256, "split": 4}),
        (9, {"n": 40, "k": 4096, "tokens": 16, "out_dtype": "bf16", "precision": "fast", "split": 1}),
    ],
    ids=str,
)
def test_tiles_and_the_rings_turns(mode: str, rows: int, fields: dict[str, Any]) -> None:
    tried(product(**fields), mode, rows, 4e-3 if "out_dtype" in fields else EXACT)


@pytest.mark.parametrize("name", CODES)
def test_every_code_is_itself(name: str) -> None:
    """A row of x with a single power of two gives a column of the weights, as f32 multiplies codes and scales."""
    kind, n, k = weight_format(name), 64, 256
    rng = np.random.default_rng(2)
    source = kind.quantise(rng.standard_normal((n, k), np.float32))
    scales = rng.uniform(0.5, 2, 1 << 12).astype(np.float16)
    if name.startswith("int4"):
        groups = k // kind.block_cols
        zeros = (np.arange(n * groups) % 17).astype(np.uint8).reshape(n, groups)
        qweight = rng.integers(0, 16, (n, k), np.uint8)
        source = {"qweight": qweight, "scales": scales[: n * groups].reshape(n, groups), "zeros": zeros}
    elif name.startswith("e4m3"):
        codes = np.arange(256, dtype=np.uint8)
        codes = np.tile(codes[(codes & 127) != 127], -(-n * k // 254))[: n * k]
        source["weight"] = rng.permutation(codes).reshape(n, k).view(e4m3.numpy)
    else:
        blocks = rng.integers(0, 256, source["blocks"].shape, np.uint8)
        each = blocks.reshape(n, k // 32, -1)
        each[..., :2] = scales[: n * k // 32].reshape(n, -1, 1).view(np.uint8)
        source = {"blocks": blocks}
    weight = kind.pack(source, n, k)
    values = kind.dequantise(source, n, k)
    for first in range(0, k, 64):
        x = np.zeros((64, k), np.float32)
        x[np.arange(64), first + np.arange(64)] = 2.0 ** np.arange(-32, 32)
        packed, units, _ = layout.pack_by_row(x, 64, 2)
        given = {"x": packed, "x_scales": units, "weight": weight.reshape(kind.records(n), -1)}
        found = trial(product(n=n, k=k, weights=name, tokens=64), CpuDevice(), target=WHERE, rows=64, arguments=given)
        wanted = values[:, first : first + 64].T * (2.0 ** np.arange(-32, 32, dtype=np.float32))[:, None]
        assert np.array_equal(found.outputs["out"], wanted), first


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("name", MINS)
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (60, {"tokens": 64, "split": 2, "bias": True, "programmatic": True}),
        (70, {"tokens": 64, "tile_rows": 128, "share": 2, "residual": True}),
        (33, {"tokens": 32, "gated": True, "activation": "silu"}),
        (9, {"tokens": 8, "stream": True, "tile_rows": 64, "indirect": True}),
    ],
    ids=str,
)
def test_codes_less_zero_points(mode: str, name: str, rows: int, fields: dict[str, Any]) -> None:
    tried(product(n=100, k=1024, weights=name, **fields), mode, rows, EXACT)


def packed_weight(name: str, source: dict[str, np.ndarray], n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights as a product reads them, and their values."""
    kind = weight_format(name)
    packed = kind.pack(source, n, k).reshape(kind.records(n), -1)
    return packed, kind.dequantise(source, n, k).astype(np.float64)


def product_with(spec: PackedGemm, x: np.ndarray, weight: np.ndarray, where: str) -> np.ndarray:
    packed, units, sums = layout.pack_by_row(x, spec.tokens, 2)
    given = {"x": packed, "x_scales": units, "x_sums": sums, "weight": weight}
    return trial(spec, open_device(where), target=WHERE, rows=len(x), arguments=given).outputs["out"]


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative, 2-norm."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", MINS)
@pytest.mark.parametrize("where", WHERES)
def test_rows_that_are_nearly_equal(where: str, name: str) -> None:
    """Their sums of codes and of mins would cancel: without zero points they are off by 8e-6."""
    n, k = 32, 2048
    source = weight_format(name).quantise(np.random.default_rng(4).standard_normal((n, k), np.float32))
    weight, values = packed_weight(name, source, n, k)
    found = product_with(product(n=n, k=k, weights=name, tokens=8), NEARLY_EQUAL, weight, where)
    assert distance(found, NEARLY_EQUAL.astype(np.float64) @ values.T) < EXACT / 2


@pytest.mark.parametrize("name", MINS)
@pytest.mark.parametrize("skew", ["one of 32", "exponential", "negative", "positive"])
@pytest.mark.parametrize("where", WHERES)
def test_weights_that_are_not_about_the_middle_of_their_codes(where: str, name: str, skew: str) -> None:
    """Zero points are those of 32 columns, wherever they lie, or the nearest code."""
    n, k = 32, 2048
    rng = np.random.default_rng(7)
    weights = -0.01 + 0.001 * rng.standard_normal((n, k), np.float32)
    if skew == "one of 32":
        weights[:, rng.integers(0, 32) :: 32] = 0.31
    elif skew == "exponential":
        weights = rng.standard_exponential((n, k), np.float32) - 1
    elif skew == "positive":
        weights = -weights
    weight, values = packed_weight(name, weight_format(name).quantise(weights), n, k)
    spec = product(n=n, k=k, weights=name, tokens=8)
    found = product_with(spec, NEARLY_EQUAL, weight, where)
    of_one_sign = skew in ("negative", "positive")
    limit = TRUNCATED if of_one_sign and where == "cuda" else EXACT / 2
    assert distance(found, NEARLY_EQUAL.astype(np.float64) @ values.T) < limit


@pytest.mark.parametrize("name", MINS)
@pytest.mark.parametrize(("d", "dmin"), [(60.0, 1e-3), (60000.0, 0.1), (1000.0, 1e-3), (1e-3, 1000.0)])
@pytest.mark.parametrize("where", WHERES)
def test_a_sub_block_much_smaller_than_another(where: str, name: str, d: float, dmin: float) -> None:
    """The larger one is multiplied with nothing, so that the other is all that a row has."""
    n, k = 32, 256
    rng = np.random.default_rng(8)
    blocks = weight_format(name).quantise(rng.standard_normal((n, k), np.float32))["blocks"]
    rows = blocks.reshape(n, -1)
    rows[:, :4] = np.array([d, dmin], np.float16).view(np.uint8)
    scales, mins = np.zeros((2, n, 1, 8), np.uint8)
    large, small = (scales, mins) if d > dmin else (mins, scales)
    large[..., 0], small[..., 1:] = 1, 1
    rows[:, 4:16] = join_scales(scales, mins).reshape(n, 12)
    weight, values = packed_weight(name, {"blocks": blocks}, n, k)
    x = rng.standard_normal((8, k), np.float32)
    x[:, :32] = 0
    found = product_with(product(n=n, k=k, weights=name, tokens=8), x, weight, where)
    assert distance(found, x.astype(np.float64) @ values.T) < 2 * EXACT


@pytest.mark.parametrize("name", MINS)
@pytest.mark.parametrize("fields", ["any", "no scales", "no mins", "neither", "one scale", "one min"])
@pytest.mark.parametrize(
    ("d", "dmin"),
    [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (6e-8, 1.0), (1.0, 6e-8), (6e-8, 6e-8), (3e-5, 5e-5), (-0.01, -0.08),
     (-0.01, 0.08), (60000.0, 0.1), (0.01, 60000.0), (65504.0, 65504.0)],
)  # fmt: skip
@pytest.mark.parametrize("where", WHERES)
def test_blocks_of_any_size(where: str, name: str, fields: str, d: float, dmin: float) -> None:
    """Offsets are f16 numbers in a unit of their block, whatever that is, and whatever of it is multiplied with 0."""
    n, k = 32, 256
    rng = np.random.default_rng(6)
    blocks = weight_format(name).quantise(rng.standard_normal((n, k), np.float32))["blocks"]
    blocks[:] = rng.integers(0, 256, blocks.shape, np.uint8)
    rows = blocks.reshape(n, -1)
    rows[:, :4] = np.array([d, dmin], np.float16).view(np.uint8)
    scales, mins = rng.integers(0, 64, (2, n, 1, 8)).astype(np.uint8)
    for what, each in (("scale", scales), ("min", mins)):
        if fields in (f"no {what}s", "neither"):
            each[:] = 0
        elif fields == f"one {what}":
            each[..., 1:] = 0
    rows[:, 4:16] = join_scales(scales, mins).reshape(n, 12)
    weight, values = packed_weight(name, {"blocks": blocks}, n, k)
    x = rng.standard_normal((8, k), np.float32)
    found = product_with(product(n=n, k=k, weights=name, tokens=8), x, weight, where)
    wanted = x.astype(np.float64) @ values.T
    assert not found.any() if not wanted.any() else distance(found, wanted) < EXACT


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("name", CODES)
def test_narrow_tiles(mode: str, name: str) -> None:
    """Of 64 columns, where wider ones would be empty in part; and groups of 128 in tiles of one."""
    k = 384 if name == "int4_g128" else 320
    spec = product(n=100, k=k, weights=name, tokens=32, residual=True)
    assert spec.kind.tile_k == (128 if name == "int4_g128" else 64)
    tried(spec, mode, 33, EXACT)


GATED = {"gated": True, "activation": "silu"}


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("processors", [2, 132])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (32, {"tokens": 32, "stream": True, "tile_rows": 64, "residual": True, "programmatic": True}),
        (40, {"tokens": 32, "stream": True, "tile_rows": 256, "programmatic": True, **GATED}),
        (30, {"tokens": 32, "tile_rows": 256, **GATED}),
        (31, {"weights": "q8_0", "tokens": 32, "stream": True, "tile_rows": 192, "programmatic": True, **GATED}),
        (33, {"weights": "int4_g128", "tokens": 32, "stream": True, "tile_rows": 128, "residual": True}),
        (17, {"weights": "e4m3_block", "tokens": 32, "stream": True, "tile_rows": 192, **GATED}),
        (15, {"weights": "q4_0", "tokens": 16, "split": 4, "tile_rows": 64, "programmatic": True}),
        (64, {"weights": "int4_g32", "tokens": 64, "split": 2, "tile_rows": 64, "indirect": True}),
        (33, {"tokens": 32, "tile_rows": 64, "precision": "fast", **GATED}),
        (19, {"tokens": 16, "tile_rows": 64, "split": 2, **GATED}),
        (9, {"tokens": 8, "stream": True, "tile_rows": 192, "indirect": True, "programmatic": True}),
    ],
    ids=str,
)
def test_a_block_of_rows_for_every_warpgroup(
    mode: str, processors: int, rows: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """k shared out evenly among few CTAs and among many; gate and up in records of neighbouring warps."""
    monkeypatch.setattr(shape, "PROCESSORS", processors)
    spec = product(n=200, k=1024, **fields)
    assert Geometry.of(spec).shape.blocks == 1
    tried(spec, mode, rows, EXACT)


def test_a_token_is_the_same_bits_among_others() -> None:
    spec = product(n=64, k=512, tokens=16)
    many = tried(spec, "fast", 12, EXACT).outputs["out"]
    few = tried(spec, "fast", 12, EXACT, n_rows=5).outputs["out"]
    assert (many[:5] == few[:5]).all()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"weights": "bf16"}, r"by_row: is for .*q4_k.* \(got weights='bf16'"),
        ({"tokens": 128}, r"by_row: is for at most 64 tokens \(got tokens=128"),
        (
            {"tile_rows": 192, "tokens": 64},
            r"tile_rows: 192 with by_row is for at most 32 tokens \(got 64; nearest: tokens=32\)",
        ),
        ({"n": 256, "packed_out": True}, "packed_out: needs the unit of a whole row"),
    ],
)
def test_an_illegal_spec_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        product(**{"n": 64, "k": 512, **fields})


def test_units_of_rows_are_for_f16() -> None:
    with pytest.raises(SpecError, match=r"by_row: is for f16 \(got x_dtype=bf16; nearest: x_dtype=f16\)"):
        PackedGemm(64, 512, "q4_k", by_row=True)


@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("count", [8, 16, 32, 64])
@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("fusion", [{}, {"gated": True, "activation": "silu"}])
def test_two_stages_fit(name: str, count: int, precision: str, fusion: dict[str, Any]) -> None:
    fields = {"n": 4096, "k": 4096, "weights": name, "tokens": count, "precision": precision, **fusion}
    if not supports({"kernel_type": "packed_gemm", "x_dtype": "f16", "by_row": True, **fields}, WHERE):
        assert (count, precision) == (64, "exact"), fields
        return
    at = Geometry.of(product(**fields))
    assert at.stages >= geometry.FEWEST
    assert at.shared + geometry.KEPT <= geometry.SHARED


@needs_assembler
@pytest.mark.parametrize(
    ("name", "count", "precision"),
    [
        *itertools.product(BY_ROW, (16, 32), ("fast", "exact")),
        *itertools.product(("q4_k", "q5_k", "q6_k"), (64, 512), ("exact",)),
    ],
)
def test_no_spills_at_a_models_sizes(name: str, count: int, precision: str) -> None:
    for fusion in (
        {"n": 4096, "k": 4096, "residual": True},
        {"n": 4096, "k": 14336, "residual": True},
        {"n": 4096, "k": 4096, **GATED},
        {"n": 14336, "k": 4096, **GATED},
        {"n": 128256, "k": 4096},
    ):
        fields = {"weights": name, "precision": precision, **fusion}
        ptx = generate(PackedGemm.best(count, x_dtype=f16, by_row=True, **fields), WHERE)
        assert assemble(ptx.text, WHERE).resources[ptx.entry].clean, (name, fusion)


@pytest.mark.parametrize(
    ("weights", "n", "k", "given"),
    [
        ("q4_k", 6144, 4096, {"split": 2}),
        ("q4_k", 6144, 4096, {"tile_rows": 128}),
        ("q6_k", 4096, 14336, {"stream": False}),
        ("q6_k", 4096, 14336, {"tile_rows": 64, "split": 2}),
    ],
)
def test_a_measured_tile_is_taken_whole_or_not_at_all(weights: str, n: int, k: int, given: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"n": n, "k": k, "weights": weights, "x_dtype": f16, "by_row": True}
    assert PackedGemm.best(9, **fields).stream
    spec = PackedGemm.best(9, **fields, **given)
    assert spec == PackedGemm(**fields, **given, tokens=16)
