"""PackTokens: tiles of rows in 16 bits and in e4m3, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.dtypes import bf16, dtype, e4m3
from ptxgen.kernels import PackTokens
from ptxgen.products.wgmma import tokens
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
    back = tokens.unpack(tokens.pack(x, 8, dtype(name), digits), 13, 300)
    assert np.abs(back - x).max() <= (0 if digits == 3 else 2e-3)


def test_a_lane_has_the_columns_that_its_weights_have() -> None:
    """Place 4t, 4t + 1 of a chunk's halves are columns 4t … 4t + 3; token 1's pieces are exchanged in pairs."""
    x = np.tile(np.arange(256, dtype=np.float32), (2, 1))
    packed = tokens.pack(x, 8, bf16, 1)[0, 0, 0].astype(int)
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
    packed, scales = tokens.pack_scaled(x, 8, e4m3, group)
    assert packed.shape == (2, 4, 1, 8, 128)
    assert scales.shape == (2, 4 if group else 1, 8)
    back = tokens.unpack(packed, 13, 300, scales)
    assert (np.abs(back - x) <= np.abs(x) / 16 + scales.max() / 512).all()
    assert not scales[1, :, 5:].any()  # of rows that are not there


def test_e4m3_columns_are_in_their_own_order() -> None:
    """Token 1's pieces of 16 are exchanged in pairs."""
    x = np.tile(np.arange(256, dtype=np.float32) % 32, (2, 1))
    packed = tokens.pack(x, 8, e4m3, 1)[0, 0, 0].astype(int)
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
