"""PackTokens: tiles of rows in 16 bits, in e4m3 and in units of rows, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.dtypes import bf16, dtype, e4m3
from ptxgen.kernels import PackTokens
from ptxgen.products.wgmma.tokens import layout
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from tests.support.packed_products import tried


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (5, {"dim": 256, "tokens": 8}),
        (17, {"dim": 4099, "tokens": 8, "precision": "fast"}),
        (70, {"dim": 66, "tokens": 64, "dtype": "f16", "precision": "fast", "norm": "rms"}),
        (9, {"dim": 2000, "tokens": 16, "norm": "rms", "norm_offset": 1.0, "indirect": True}),
        (300, {"dim": 1001, "tokens": 256, "norm": "rms", "eps": 0.1}),
    ],
)
def test_tokens_are_packed(mode: str, rows: int, fields: dict[str, Any]) -> None:
    tried(PackTokens(**fields), mode, rows, 1e-4 if fields.get("precision") != "fast" else 2e-3)


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_packing_is_undone_by_unpacking(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((13, 300), np.float32)
    digits = 3 if name == "bf16" else 1
    back = layout.unpack(layout.pack(x, 8, dtype(name), digits), 13, 300)
    assert np.abs(back - x).max() <= (0 if digits == 3 else 2e-3)


def test_a_lane_has_the_columns_that_its_weights_have() -> None:
    """Place 4t, 4t + 1 of a chunk's halves are columns 4t … 4t + 3; token 1's pieces are exchanged in pairs."""
    x = np.tile(np.arange(256, dtype=np.float32), (2, 1))
    packed = layout.pack(x, 8, bf16, 1)[0, 0, 0].astype(int)
    assert packed[0, :16].tolist() == [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]
    assert packed[1, :16].tolist() == [2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13]


SCALED: tuple[tuple[int, dict[str, Any]], ...] = (
    (5, {"dim": 256, "group": 128}),
    (17, {"dim": 300, "tokens": 16, "group": 128, "norm": "rms"}),
    (5, {"dim": 17000, "norm": "rms", "norm_offset": 1.0}),
    (9, {"dim": 1000, "norm": "rms", "eps": 0.1, "indirect": True}),
    (70, {"dim": 9001, "tokens": 64}),
    (9, {"dim": 136, "src_dtype": "bf16"}),
    (9, {"dim": 5004, "src_dtype": "f16", "group": 128, "norm": "rms"}),
)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(("rows", "fields"), SCALED, ids=str)
def test_tokens_are_packed_in_e4m3(target: str, mode: str, rows: int, fields: dict[str, Any]) -> None:
    spec = PackTokens(**{"tokens": 8, **fields}, dtype="e4m3", precision="fast")
    trial(spec, CpuDevice(mode=mode), target=target, rows=rows, limit=2e-3).require()


@pytest.mark.parametrize("group", [0, 128])
def test_packing_in_e4m3_leaves_each_column_within_half_a_step(group: int) -> None:
    """Three bits of mantissa: 2^-4 of a number, or half a denormal of its group's scale."""
    x = np.random.default_rng(0).standard_normal((13, 300), np.float32)
    packed, scales = layout.pack_scaled(x, 8, e4m3, group)
    assert packed.shape == (2, 4, 1, 8, 128)
    assert scales.shape == (2, 4 if group else 1, 8)
    back = layout.unpack(packed, 13, 300, scales)
    assert (np.abs(back - x) <= np.abs(x) / 16 + scales.max() / 512).all()
    assert not scales[1, :, 5:].any()  # of rows that are not there


def test_e4m3_columns_are_in_their_own_order() -> None:
    """Token 1's pieces of 16 are exchanged in pairs."""
    x = np.tile(np.arange(256, dtype=np.float32) % 32, (2, 1))
    packed = layout.pack(x, 8, e4m3, 1)[0, 0, 0].astype(int)
    exact = x.astype(e4m3.numpy).astype(int)
    assert packed[0].tolist() == exact[0, :128].tolist()
    assert packed[1, :32].tolist() == [*exact[1, 16:32], *exact[1, :16]]


def test_tiles_without_a_row_are_not_written() -> None:
    out = tried(PackTokens(dim=64, tokens=8), "check", 20, 1e-4, n_rows=3).outputs["out"]
    assert not out[0, :, :, 3:].any()
    assert np.isnan(out[1:].astype(np.float32)).all()


@pytest.mark.parametrize("fields", [{}, {"dtype": "e4m3", "precision": "fast"}], ids=str)
def test_nothing_is_written_of_no_rows(fields: dict[str, Any]) -> None:
    for found in tried(PackTokens(dim=64, tokens=8, **fields), "check", 20, 1e-4, n_rows=0).outputs.values():
        assert np.isnan(found.astype(np.float32)).all()


# -- in units of rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (5, {"dim": 256, "tokens": 8}),
        (9, {"dim": 700, "tokens": 16, "norm": "rms", "norm_offset": 1.0}),
        (40, {"dim": 1000, "tokens": 32, "norm": "rms", "eps": 0.1, "indirect": True}),
        (3, {"dim": 66, "tokens": 8}),
        (9, {"dim": 17000, "tokens": 8}),
        (9, {"dim": 136, "tokens": 8, "src_dtype": "bf16"}),
    ],
    ids=str,
)
def test_rows_are_packed_in_their_units(mode: str, precision: str, rows: int, fields: dict[str, Any]) -> None:
    spec = PackTokens(**fields, dtype="f16", by_row=True, precision=precision)
    tried(spec, mode, rows, 1e-4 if precision == "exact" else 2e-3)


@pytest.mark.parametrize(("digits", "bits"), [(1, 11), (2, 22)])
def test_a_row_keeps_so_many_bits(digits: int, bits: int) -> None:
    """Of every element as far as 2^-24 of the row's largest; beyond, digits end at 2^-38 of it."""
    x = np.random.default_rng(0).standard_normal((13, 700)).astype(np.float32)
    x *= np.exp2(np.arange(13, dtype=np.float32) * 9 - 60)[:, None]
    packed, units, sums = layout.pack_by_row(x, 8, digits)
    assert packed.shape == (2, 12, digits, 8, 64)
    assert (np.log2(units[:, 0].reshape(-1)[:13]) % 1 == 0).all()
    largest = np.abs(packed[:, :, 0].astype(np.float64)).max((1, 3)).reshape(-1)[:13]
    assert ((largest >= 2**14) & (largest <= 2**15)).all()
    back = layout.unpack(packed, 13, 700, units, apart=True)
    limit = np.maximum(np.abs(x) * 2.0**-bits, np.abs(x).max(1, keepdims=True) * 2.0**-38)
    assert (np.abs(back - x) <= limit).all()
    assert sums.shape == (2, 3, 2, 8, 8)


@pytest.mark.parametrize("digits", [1, 2])
def test_sums_are_those_of_the_digits(digits: int) -> None:
    """Those of columns 32 s on at place 2 (s mod 4) + s div 4, over 32."""
    x = np.random.default_rng(1).standard_normal((8, 512), np.float32)
    packed, units, sums = layout.pack_by_row(x, 8, digits)
    scaled = layout.unpack(packed, 8, 512, units, apart=True) / units[0, 0][:, None].astype(np.float64)
    wanted = scaled.reshape(8, 2, 8, 32).sum(3) / 32
    found = sums.astype(np.float64).sum(2)[0].transpose(1, 0, 2)  # [token, unit, place]
    places = [layout.sum_place(sub) for sub in range(8)]
    assert np.abs(found[..., places] - wanted).max() <= 2.0**-20 * np.abs(wanted).max()


@pytest.mark.parametrize("value", [0.0, 1e-38, 3e38])
def test_rows_of_the_smallest_and_the_largest_numbers(value: float) -> None:
    x = np.full((2, 64), value, np.float32)
    packed, units, _ = layout.pack_by_row(x, 8, 2)
    assert np.isfinite(packed.astype(np.float32)).all()
    assert (units > 0).all()
    back = layout.unpack(packed, 2, 64, units, apart=True)
    assert np.abs(back - x).max() <= max(value * 2.0**-22, 2.0**-138)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_spoils_no_other_row(value: float) -> None:
    spec = PackTokens(256, 8, dtype="f16", by_row=True)
    x = np.ones((4, 256), np.float32)
    clean = trial(spec, CpuDevice(), target="sm_80", rows=4, arguments={"x": x.copy()}).outputs
    x[1, 7] = value
    spoiled = trial(spec, CpuDevice(), target="sm_80", rows=4, arguments={"x": x}).outputs
    rows = [0, 2, 3]
    assert (spoiled["out"][:, :, :, rows] == clean["out"][:, :, :, rows]).all()
    assert (spoiled["sums"][..., rows, :] == clean["sums"][..., rows, :]).all()
    assert not np.isfinite(spoiled["out"][:, :, 0, 1].astype(np.float32)).all()
    with np.errstate(invalid="ignore"):
        _, units, sums = layout.pack_by_row(x, 8, 2)
    assert (spoiled["scales"] == units).all()
    assert np.array_equal(spoiled["sums"], sums, equal_nan=True)


def test_units_of_rows_are_for_f16() -> None:
    with pytest.raises(SpecError, match=r"by_row: is for f16 \(got dtype=bf16; nearest: dtype=f16\)"):
        PackTokens(512, by_row=True)
