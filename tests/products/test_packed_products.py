"""PackTokens and PackedGemm: formats, fusions, ragged shapes, digits, the ring's turns, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.dtypes import bf16, dtype, e4m3
from ptxgen.generator import clear_cache
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.kernels.packed_gemm import FORMATS
from ptxgen.products.wgmma import geometry, tasks, tokens
from ptxgen.products.wgmma.geometry import Geometry
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from tests.support.marks import needs_assembler

EXACT = 1e-6  # of a result whose every product is f32
FAST = 4e-3  # of one whose factors are rounded to bf16
WHERE = "sm_90a"


def tried(spec: PackedGemm | PackTokens, mode: str, rows: int, limit: float, **more: Any) -> Any:
    where = WHERE if isinstance(spec, PackedGemm) else "sm_80"
    return trial(spec, CpuDevice(mode=mode), target=where, rows=rows, limit=limit, **more).require()


# -- PackTokens --------------------------------------------------------------------------------------------------------


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


# -- PackedGemm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("fields", [{"tokens": 16}, {"tokens": 32, "gated": True, "activation": "silu"}])
def test_every_format_exactly(name: str, fields: dict[str, Any]) -> None:
    tried(PackedGemm(100, 512, name, **fields), "check", 20, 2 * EXACT)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_rounded_once(name: str) -> None:
    tried(PackedGemm(70, 512, name, tokens=128, precision="fast"), "check", 20, FAST)


@pytest.mark.parametrize(
    ("name", "k"),
    [("e4m3_block", 192), ("e4m3_channel", 192), ("q8_0", 192), ("q4_0", 576), ("int4_g32", 192), ("int4_g64", 192),
     ("int4_g128", 384)],
)  # fmt: skip
def test_narrow_tiles(name: str, k: int) -> None:
    for fields in ({"tokens": 16}, {"tokens": 64, "precision": "fast", "gated": True, "activation": "silu"}):
        spec = PackedGemm(130, k, name, **fields)
        tried(spec, "check", 20, FAST if spec.precision == "fast" else 2 * EXACT)


BYTES: tuple[tuple[int, dict[str, Any]], ...] = (
    (20, {"n": 130, "k": 512, "weights": "e4m3_block", "tokens": 16}),
    (20, {"n": 130, "k": 512, "weights": "e4m3_block", "tokens": 8, "split": 2, "programmatic": True}),
    (20, {"n": 37, "k": 1024, "weights": "e4m3_channel", "tokens": 32, "split": 4, "bias": True, "residual": True}),
    (20, {"n": 37, "k": 1024, "weights": "e4m3_channel", "tokens": 32, "promoted": True}),
    (70, {"n": 130, "k": 1000, "weights": "e4m3", "tokens": 64, "indirect": True}),
    (300, {"n": 130, "k": 512, "weights": "e4m3_channel", "tokens": 256, "share": 2}),
    (300, {"n": 130, "k": 512, "weights": "e4m3_channel", "tokens": 256, "promoted": True, "out_dtype": "bf16"}),
    (200, {"n": 400, "k": 384, "weights": "e4m3", "tokens": 128, "promoted": True, "tile_rows": 192}),
    (150, {"n": 300, "k": 512, "weights": "e4m3_block", "tokens": 128, "share": 2, "tile_rows": 256}),
    (150, {"n": 130, "k": 512, "weights": "e4m3_block", "tokens": 128, "gated": True, "activation": "silu"}),
    (200, {"n": 200, "k": 384, "weights": "e4m3_block", "tokens": 192, "programmatic": True}),
    (70, {"n": 330, "k": 1024, "weights": "e4m3_block", "tokens": 64, "share": 2, "programmatic": True}),
)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(("rows", "fields"), BYTES, ids=str)
def test_products_of_bytes(mode: str, rows: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor adds exactly, so that only the scales and the order of sums are rounded."""
    monkeypatch.setattr(geometry, "PROCESSORS", 4)  # a CTA goes on to further tiles
    tried(PackedGemm(**fields, x_dtype="e4m3", precision="fast"), mode, rows, EXACT)
    clear_cache()


@pytest.mark.parametrize(
    ("fields", "early"),
    [({"tokens": 64}, 0), ({"tokens": 128, "tile_rows": 64, "split": 2}, 4), ({"tokens": 128}, 2), ({"tokens": 256}, 2),
     ({"tokens": 128, "tile_rows": 256}, 1)],
)  # fmt: skip
def test_many_tokens_are_asked_for_behind_a_few_stages_of_weights(fields: dict[str, Any], early: int) -> None:
    """Of few tokens, behind a whole ring's."""
    at = Geometry.of(PackedGemm(4096, 4096, **{"precision": "fast", "split": 1, "share": 1, **fields}))
    assert at.early == (early or at.stages)


def test_a_split_of_k_that_leaves_a_cta_a_tile_takes_no_two_at_a_time() -> None:
    assert Geometry.of(PackedGemm(64, 256, tokens=8, precision="fast", split=4)).shape.tiles == 1


def test_tiles_of_32_columns_are_refused() -> None:
    with pytest.raises(
        SpecError, match=r"k: must be a multiple of 64 from 64 to 131072 \(got 96; nearest: 64 or 128\)"
    ):
        PackedGemm(64, 96, "q8_0")


SHAPES: tuple[tuple[int, dict[str, Any]], ...] = (
    (70, {"n": 200, "k": 512, "tokens": 64}),
    (300, {"n": 130, "k": 192, "tokens": 256, "bias": True, "residual": True}),
    (20, {"n": 37, "k": 1024, "tokens": 16, "bias": True, "activation": "silu", "residual": True}),
    (20, {"n": 300, "k": 512, "tokens": 128, "gated": True, "activation": "gelu_tanh", "indirect": True}),
    (3, {"n": 1, "k": 1, "tokens": 8}),
    (9, {"n": 15, "k": 65, "tokens": 8, "programmatic": True}),
    (30, {"n": 337, "k": 2048, "tokens": 32, "programmatic": True, "indirect": True}),
)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(("rows", "fields"), SHAPES, ids=str)
def test_ragged_shapes_and_fusions(mode: str, rows: int, fields: dict[str, Any]) -> None:
    tried(PackedGemm(**fields, precision="fast"), mode, rows, EXACT)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (70, {"n": 600, "k": 512, "tokens": 16}),
        (600, {"n": 530, "k": 192, "tokens": 256, "residual": True}),
        (300, {"n": 260, "k": 512, "tokens": 128, "weights": "q4_k"}),
        (60, {"n": 270, "k": 512, "tokens": 16, "gated": True, "activation": "silu", "programmatic": True}),
    ],
    ids=str,
)
def test_a_cta_goes_on_to_further_tiles(
    mode: str, rows: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "PROCESSORS", 1)
    spec = PackedGemm(**fields, precision="fast")
    at = Geometry.of(spec)
    assert at.row_groups * -(-rows // spec.tokens) > at.most_turns
    tried(spec, mode, rows, FAST)


PACKED: tuple[tuple[int, dict[str, Any]], ...] = (
    (20, {"n": 512, "k": 192, "tokens": 16, "gated": True, "precision": "fast"}),
    (70, {"n": 256, "k": 512, "tokens": 64, "bias": True}),
    (70, {"n": 512, "k": 2048, "tokens": 8, "bias": True, "precision": "fast"}),
    (150, {"n": 512, "k": 128, "tokens": 128, "weights": "q8_0", "bias": True, "precision": "fast"}),
    (150, {"n": 512, "k": 128, "tokens": 104, "precision": "fast"}),
)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(("rows", "fields"), PACKED, ids=str)
def test_a_packed_result_is_what_pack_tokens_makes_of_it(mode: str, rows: int, fields: dict[str, Any]) -> None:
    spec = PackedGemm(**fields, activation="silu", packed_out=True)
    done = tried(spec, mode, rows, 4e-3 if spec.precision == "fast" else 1e-4)
    assert not done.outputs["out"][-1, :, :, rows % spec.tokens :].any()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("fields", [{"tokens": 256}, {"tokens": 128, "weights": "q4_k"}], ids=str)
def test_ctas_that_share_tokens(mode: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = 256 // fields["tokens"]
    shape = geometry.Shape(2, blocks, 1, 2, 1, 8, 1, share=2)
    monkeypatch.setattr(geometry, "choose", lambda *_: shape)
    monkeypatch.setattr(geometry, "PROCESSORS", 4)
    tried(PackedGemm(700, 512, precision="fast", residual=True, **fields), mode, 600, FAST)
    clear_cache()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (300, {"n": 388, "k": 192, "tokens": 128, "tile_rows": 192, "share": 2, "out_dtype": "bf16"}),
        (150, {"n": 700, "k": 128, "tokens": 96, "tile_rows": 64, "share": 4, "out_dtype": "f16"}),
        (200, {"n": 190, "k": 192, "tokens": 192, "tile_rows": 192, "bias": True, "activation": "silu"}),
        (130, {"n": 390, "k": 512, "tokens": 128, "tile_rows": 192, "split": 2, "residual": True}),
        (130, {"n": 770, "k": 512, "tokens": 128, "share": 4, "weights": "q4_k", "indirect": True}),
        (20, {"n": 37, "k": 1024, "tokens": 16, "bias": True, "out_dtype": "bf16"}),
        (20, {"n": 300, "k": 512, "tokens": 64, "gated": True, "activation": "silu", "out_dtype": "f16"}),
        (30, {"n": 200, "k": 256, "tokens": 32, "tile_rows": 192, "weights": "int4_g128"}),
        (70, {"n": 300, "k": 1024, "tokens": 64, "share": 2}),
        (70, {"n": 330, "k": 1024, "tokens": 64, "share": 2, "programmatic": True, "indirect": True}),
        (20, {"n": 700, "k": 2048, "tokens": 8, "share": 4, "programmatic": True, "residual": True}),
        (40, {"n": 300, "k": 512, "tokens": 16, "share": 2, "weights": "q4_k", "programmatic": True}),
    ],
    ids=str,
)
def test_tiles_and_results_that_no_table_takes(
    mode: str, rows: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "PROCESSORS", 4)
    tried(PackedGemm(**fields, precision="fast"), mode, rows, FAST)
    clear_cache()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (300, {"n": 392, "k": 192, "tokens": 128, "tile_rows": 192, "share": 2}),
        (300, {"n": 392, "k": 1024, "tokens": 256, "programmatic": True}),
        (150, {"n": 704, "k": 128, "tokens": 96, "tile_rows": 64, "share": 4}),
        (150, {"n": 704, "k": 128, "tokens": 128, "tile_rows": 256, "bias": True, "activation": "silu"}),
        (250, {"n": 392, "k": 512, "tokens": 104, "programmatic": True}),
        (220, {"n": 136, "k": 128, "tokens": 104, "tile_rows": 64, "bias": True}),
        (20, {"n": 1064, "k": 512, "tokens": 8, "bias": True, "split": 1}),
        (20, {"n": 1032, "k": 512, "tokens": 64, "gated": True, "activation": "silu", "split": 1}),
        (20, {"n": 40, "k": 128, "tokens": 16, "precision": "exact", "split": 1}),
    ],
    ids=str,
)
def test_rows_of_16_bits_that_leave_eight_at_a_time(
    mode: str, rows: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "PROCESSORS", 4)
    spec = PackedGemm(**{"precision": "fast", "out_dtype": "f16", **fields})
    assert Geometry.of(spec).halves
    tried(spec, mode, rows, FAST)
    clear_cache()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (130, {"n": 392, "k": 1024, "tokens": 128, "split": 2, "share": 2, "out_dtype": "bf16"}),
        (130, {"n": 700, "k": 1024, "tokens": 256, "split": 4, "share": 2, "residual": True}),
        (60, {"n": 1000, "k": 2048, "tokens": 64, "split": 2, "share": 4, "tile_rows": 64, "indirect": True}),
        (96, {"n": 640, "k": 2048, "tokens": 96, "split": 8, "tile_rows": 64, "out_dtype": "bf16"}),
        (130, {"n": 640, "k": 2048, "tokens": 64, "gated": True, "activation": "silu", "split": 4, "share": 2}),
        (20, {"n": 512, "k": 2048, "tokens": 8, "bias": True, "packed_out": True, "split": 4}),
    ],
    ids=str,
)
def test_ctas_that_share_k_and_tokens(mode: str, rows: int, fields: dict[str, Any]) -> None:
    tried(PackedGemm(precision="fast", programmatic=True, **fields), mode, rows, FAST)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("processors", [4, 7])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (300, {"n": 392, "k": 512, "out_dtype": "bf16", "programmatic": True}),
        (300, {"n": 392, "k": 512, "tokens": 256, "share": 2, "residual": True, "indirect": True}),
        (130, {"n": 200, "k": 1024, "tile_rows": 192, "weights": "q8_0", "programmatic": True}),
        (130, {"n": 256, "k": 1024, "tokens": 96, "gated": True, "activation": "silu", "packed_out": True}),
        (130, {"n": 256, "k": 1024, "tokens": 96, "weights": "e4m3_block", "x_dtype": "e4m3"}),
        (100, {"n": 130, "k": 1024, "tokens": 96, "precision": "exact"}),
        (8, {"n": 200, "k": 8192, "tokens": 8, "tile_rows": 64, "residual": True, "programmatic": True}),
        (8, {"n": 256, "k": 8192, "tokens": 8, "tile_rows": 64, "programmatic": True, "stages": 5}),
        (
            20,
            {
                "n": 256,
                "k": 8192,
                "tokens": 16,
                "gated": True,
                "activation": "silu",
                "packed_out": True,
                "tile_rows": 128,
                "programmatic": True,
            },
        ),
        (7, {"n": 256, "k": 4096, "tokens": 8, "precision": "exact", "indirect": True, "programmatic": True}),
    ],
    ids=str,
)
def test_k_of_all_tiles_is_shared_out(
    mode: str, processors: int, rows: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "PROCESSORS", processors)
    spec = PackedGemm(**{"precision": "fast", "tokens": 128, "stream": True, **fields})
    tried(spec, mode, rows, FAST)
    clear_cache()


def test_a_launch_finds_no_sums_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "PROCESSORS", 3)
    spec = PackedGemm(392, 512, tokens=128, precision="fast", stream=True)
    device = CpuDevice()
    values = spec.example(np.random.default_rng(0), rows=300)
    given = device.zeros((3, Geometry.of(spec).warps), "u32")
    arrays = {name: value if name == "n_rows" else device.array(value) for name, value in values.items()}
    bound = device.load(spec, WHERE).bind(**arrays, given=given)
    for _ in range(2):
        bound.launch()
        device.synchronize()
        assert not given.numpy().any()
    clear_cache()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("indirect", [False, True])
def test_bands_of_tokens(mode: str, indirect: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "PROCESSORS", 4)
    monkeypatch.setattr(tasks, "BAND", 256)
    tried(PackedGemm(392, 128, tokens=128, precision="fast", programmatic=True, indirect=indirect), mode, 700, FAST)
    clear_cache()


@pytest.mark.parametrize("mode", ["check", "random"])
def test_192_rows_exactly(mode: str) -> None:
    tried(PackedGemm(200, 256, tokens=64, tile_rows=192), mode, 70, 2 * EXACT)


@pytest.mark.parametrize(("count", "indirect"), [(0, True), (1, False), (4, True), (6, False)])
def test_rows_past_the_number_of_tokens_are_not_written(count: int, indirect: bool) -> None:
    spec = PackedGemm(20, 80, "f16", tokens=8, indirect=indirect)
    out = tried(spec, "check", 7, EXACT, n_rows=count).outputs["out"]
    assert np.isfinite(out[:count]).all()
    assert np.isnan(out[count:]).all()  # as they were


FIELDS_OF_TILES = ({"tokens": 8}, {"tokens": 64}, {"tokens": 128}, {"tokens": 8, "programmatic": True})


@pytest.mark.parametrize("fields", FIELDS_OF_TILES, ids=str)
def test_packed_tiles_without_a_token_are_not_written(fields: dict[str, Any]) -> None:
    spec = PackedGemm(256, 64, precision="fast", packed_out=True, **fields)
    for count, tiles in ((0, 0), (fields["tokens"], 1)):
        out = tried(spec, "check", 2 * fields["tokens"], FAST, n_rows=count).outputs["out"].astype(np.float32)
        assert np.isfinite(out[:tiles]).all()
        assert np.isnan(out[tiles:]).all()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("indirect", [False, True])
def test_weights_asked_for_in_vain_come_before_the_end(mode: str, indirect: bool) -> None:
    """CTAs of tiles without a token, whose copies are under way when they hear of it."""
    spec = PackedGemm(128, 512, tokens=8, precision="fast", programmatic=True, indirect=indirect)
    for count in (0, 3):
        tried(spec, mode, 20, FAST, n_rows=count)


def test_a_token_of_many_is_that_token_alone_bit_for_bit() -> None:
    """Sums are in one order, however many tokens there are, and wherever among them one stands."""
    spec = PackedGemm(40, 512, "q5_k", tokens=16, precision="fast")
    values = spec.example(np.random.default_rng(3), rows=11)
    out = tried(spec, "fast", 11, FAST, arguments=values).outputs["out"]
    for row in (0, 3, 9):
        own = np.zeros_like(values["x"])
        token = tokens.unpack(values["x"], 11, 512)[row : row + 1].astype(np.float32)
        own[:1] = tokens.pack(token, 16, bf16, 1)
        alone = tried(spec, "fast", 1, FAST, arguments={"x": own, "weight": values["weight"]}).outputs["out"]
        assert alone.tobytes() == out[row : row + 1].tobytes()


BYTE = {"x_dtype": "e4m3", "precision": "fast", "weights": "e4m3"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"weights": "f32"}, "weights: must be one of"),
        ({"tokens": 48}, "tokens: must be one of 8, 16"),
        ({"x_dtype": "e4m3"}, r"x_dtype: exact digits are bf16 \(got e4m3; nearest: bf16\)"),
        ({"x_dtype": "e4m3", "precision": "fast"}, r"e4m3 goes with weights in e4m3 \(got weights='bf16'"),
        ({**BYTE, "weights": "e4m3_block", "promoted": True}, "promoted: sums of blocks with scales always are"),
        ({**BYTE, "k": 192}, r"k: must be a multiple of 128 from 128 .* \(got 192; nearest: 128 or 256\)"),
        ({**BYTE, "n": 256, "packed_out": True}, "packed_out: e4m3 needs the scale of a whole row"),
        ({"promoted": True}, r"promoted: is a choice of e4m3 \(got promoted=True, x_dtype=bf16"),
        ({"x_dtype": "f16"}, r"x_dtype: exact digits are bf16 \(got f16"),
        ({"tokens": 256}, r"tokens: must be at most 128 .* \(got 256; nearest: 128\)"),
        ({"tokens": 256, "weights": "q4_k", "precision": "fast"}, "tokens: must be at most 192"),
        ({"tokens": 256, "gated": True, "activation": "silu", "precision": "fast"}, "tokens: must be at most 128"),
        ({"tile_rows": 256, "tokens": 192, "precision": "fast"}, "tokens: must be at most 128"),
        ({"tile_rows": 64, "gated": True, "activation": "silu"}, "tile_rows: a gated product has 128 or 256"),
        ({"split": 8}, "split: must be at most 4, the tiles of k"),
        ({"tile_rows": 192, "tokens": 256, "precision": "fast"}, "tokens: must be at most 192"),
        ({"tile_rows": 192, "gated": True, "activation": "silu"}, r"a gated product has 128 or 256 \(got 192"),
        ({"out_dtype": "bf16", "residual": True}, r"out_dtype: with residual it is f32 \(got bf16"),
        ({"out_dtype": "e4m3"}, "out_dtype: must be one of f32, bf16, f16"),
        ({"share": 4, "tokens": 64, "split": 4}, r"share: with split at most 8 CTAs \(got share=4, .* nearest: 2"),
        ({"share": 8, "tokens": 128}, "share: must be one of 0, 1, 2, 4"),
        ({"gated": True, "tokens": 8}, "gated: needs an activation"),
        ({"packed_out": True}, r"n: must be a multiple of 256 .* \(got 64"),
        ({"packed_out": True, "residual": True}, "residual: a packed result is added to nothing"),
    ],
)
def test_an_illegal_spec_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        PackedGemm(**{"n": 64, "k": 256, **fields})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "e4m3"}, r"dtype: exact digits are bf16 \(got e4m3; nearest: bf16\)"),
        ({"precision": "fast", "group": 128}, "group: must be 0 with dtype bf16, which has no scales"),
        ({"precision": "fast", "dtype": "e4m3", "group": 64}, "group: must be one of 0, 128"),
    ],
)
def test_illegal_tiles_of_tokens_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        PackTokens(256, **fields)


def test_it_is_for_sm_90a_alone() -> None:
    assert supports(PackedGemm(64, 64), "sm_90a")
    assert "sm_90a" in str(supports(PackedGemm(64, 64), "sm_90"))
    assert not supports(PackedGemm(64, 64), "sm_100")


def test_the_first_weights_are_asked_for_before_the_producer_is_waited_for() -> None:
    spec = PackedGemm(64, 1024, tokens=8, precision="fast", programmatic=True)
    at = Geometry.of(spec)
    before, after = generate(spec, WHERE).text.split("    griddepcontrol.wait", 1)
    assert before.count("@%elected cp.async.bulk") == at.early * at.records > 0
    assert "[%tokens_from]" in after
    assert "[%tokens_from]" not in before


@pytest.mark.parametrize("indirect", [False, True])
def test_with_many_tokens_only_where_their_number_is_known(indirect: bool) -> None:
    spec = PackedGemm(256, 1024, tokens=128, precision="fast", programmatic=True, indirect=indirect)
    at = Geometry.of(spec)
    before = generate(spec, WHERE).text.split("    griddepcontrol.wait", 1)[0]
    assert before.count("@%elected cp.async.bulk") == (0 if indirect else at.early * at.records)


@pytest.mark.parametrize(
    ("fields", "elects"),
    [
        ({"n": 128}, True),
        ({"n": 140}, False),  # the last CTA's records past the last are the last
        ({"n": 128, "weights": "q8_0"}, False),
        ({"n": 128, "weights": "e4m3", "x_dtype": e4m3, "tile_rows": 128}, True),
        ({"n": 128, "weights": "e4m3", "x_dtype": e4m3, "tile_rows": 64}, False),
    ],
)
def test_one_lane_copies_records_that_lie_one_after_the_other(fields: dict[str, Any], elects: bool) -> None:
    text = generate(PackedGemm(k=1024, tokens=128, precision="fast", **fields), WHERE).text
    assert ("elect.sync" in text) == elects


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("fields", [{"tile_rows": 128}, {"tile_rows": 192, "tokens": 96}, {"k": 256}])
def test_warpgroups_take_turns_where_each_has_one_product_a_stage(mode: str, fields: dict[str, Any]) -> None:
    given = {"n": 400, "k": 1536, "tokens": 128, "weights": "e4m3_block", "split": 1, **fields}
    spec = PackedGemm(**given, x_dtype=e4m3, precision="fast", out_dtype=bf16)
    at = Geometry.of(spec)
    assert at.turns
    assert generate(spec, WHERE).text.count("bar.arrive %next_turn") == 2  # the first, and a stage's
    tried(spec, mode, 150, 4e-2)


def test_no_turns_where_a_warpgroup_has_several_products_a_stage() -> None:
    for fields in ({"tokens": 256, "tile_rows": 128}, {"tokens": 128, "tile_rows": 64}):
        spec = PackedGemm(384, 1536, "e4m3_block", x_dtype=e4m3, precision="fast", split=1, **fields)
        assert not Geometry.of(spec).turns
        assert "next_turn" not in generate(spec, WHERE).text


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("k", [1152, 1088, 128])
def test_stages_of_one_warpgroup_are_long_where_the_table_says_so(mode: str, k: int) -> None:
    spec = PackedGemm(128, k, tokens=128, tile_rows=64, split=1, share=1, precision="fast", out_dtype=bf16)
    assert Geometry.of(spec).shape.tiles == (1 if k == 1088 else 2)  # 17 tiles of k are no pairs
    tried(spec, mode, 150, FAST)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("count", "split", "each"), [(8, 4, 8), (16, 2, 8), (32, 8, 8), (96, 8, 16), (112, 4, 56), (192, 8, 24)]
)
def test_ctas_that_share_k_finish_whole_octets(mode: str, count: int, split: int, each: int) -> None:
    spec = PackedGemm(
        128, 1024, tokens=count, tile_rows=64, split=split, share=1, precision="fast", out_dtype=bf16, bias=True
    )
    at = Geometry.of(spec)
    assert (at.out_tokens, at.takers) == (each, count // each)
    tried(spec, mode, count + 3, FAST)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", tokens.TOKENS)
@pytest.mark.parametrize("fusion", [{}, {"gated": True, "activation": "silu"}])
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_every_legal_tile_has_two_stages_that_fit(
    name: str, count: int, fusion: dict[str, Any], precision: str
) -> None:
    fields = {"n": 4096, "k": 4096, "weights": name, "tokens": count, "precision": precision, **fusion}
    if not supports({"kernel_type": "packed_gemm", **fields}, WHERE):
        return
    at = Geometry.of(PackedGemm(**fields))
    assert at.stages >= geometry.FEWEST
    assert at.shared + geometry.KEPT <= geometry.SHARED
    assert at.chunks * at.shape.blocks % (2 * at.shape.part) == 0


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    "fields",
    [
        {"split": 2, "weights": "q8_0", "gated": True, "activation": "silu", "tokens": 128},
        {"split": 4, "bias": True, "residual": True, "tokens": 128},
        {"split": 2, "tokens": 64, "tile_rows": 64},
        {"tokens": 96, "tile_rows": 256},
    ],
    ids=str,
)
def test_ctas_that_share_k_and_other_tiles(mode: str, fields: dict[str, Any]) -> None:
    tried(PackedGemm(300, 512, precision="fast", **fields), mode, 150, FAST)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 33, 65, 512, 4096])
@pytest.mark.parametrize("more", [{}, {"gated": True, "activation": "silu"}, {"tokens": 64}])
def test_the_best_tile_is_legal(name: str, rows: int, more: dict[str, Any]) -> None:
    for precision in tokens.DIGITS:
        if rows > 64 or "tokens" in more:
            spec = PackedGemm.best(rows, n=4096, k=2048, weights=name, precision=precision, **more)
            assert supports(spec, WHERE)


def test_few_tiles_share_k_and_many_tokens_have_large_tiles() -> None:
    few = PackedGemm.best(128, n=2048, k=8192, precision="fast")
    many = PackedGemm.best(4096, n=4096, k=4096, precision="fast")
    assert few.split > 1
    assert (many.tokens, many.split) == (256, 1)


@pytest.mark.parametrize(
    ("count", "n", "k", "more"),
    [
        (64, 4096, 4096, {}),
        (64, 28672, 4096, {}),
        (112, 4096, 4096, {}),
        (112, 4096, 4096, {"weights": "e4m3_channel", "x_dtype": "e4m3"}),
    ],
)
def test_tokens_that_are_never_the_fastest_have_a_tile_where_they_are_given(
    count: int, n: int, k: int, more: dict[str, Any]
) -> None:
    spec = PackedGemm.best(512, n=n, k=k, tokens=count, precision="fast", **more)
    assert spec.tokens == count
    assert spec.tile_rows > 0
    assert PackedGemm.best(512, n=n, k=k, precision="fast", **more).tokens != count


@pytest.mark.parametrize("k", [4096, 14336])
def test_of_equal_tiles_the_one_with_more_tokens_is_taken(k: int) -> None:
    spec = PackedGemm.best(128, n=4096, k=k, precision="fast")
    assert (spec.tokens, spec.tile_rows, spec.split) == (128, 64, 2)


@needs_assembler
@pytest.mark.parametrize(("name", "count", "rows"), [("e4m3_block", 128, 256), ("e4m3_channel", 192, 128)])
def test_no_spills_of_products_of_bytes(name: str, count: int, rows: int) -> None:
    spec = PackedGemm(4096, 4096, name, tokens=count, tile_rows=rows, x_dtype="e4m3", precision="fast")
    ptx = generate(spec, WHERE)
    assert assemble(ptx.text, WHERE).resources[ptx.entry].clean


@needs_assembler
@pytest.mark.parametrize(("name", "count"), [("bf16", 64), ("q4_k", 16), ("q6_k", 64), ("int4_g128", 64)])
def test_no_spills_at_a_models_sizes(name: str, count: int) -> None:
    for fusion in ({"residual": True}, {"gated": True, "activation": "silu"}):
        ptx = generate(PackedGemm(4096, 4096, name, tokens=count, precision="fast", **fusion), WHERE)
        assert assemble(ptx.text, WHERE).resources[ptx.entry].clean, (name, fusion)
