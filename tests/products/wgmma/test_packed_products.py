"""PackedGemm: formats, fusions, ragged shapes, digits, the ring's turns, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.dtypes import bf16, e4m3
from ptxgen.generator import clear_cache
from ptxgen.kernels import PackedGemm, PackedQkvAppend
from ptxgen.products.wgmma import tasks
from ptxgen.products.wgmma.rules import FORMATS
from ptxgen.products.wgmma.tiling import geometry, shape
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tokens import layout
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from tests.support.packed_products import EXACT, FAST, WHERE, tried


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("fields", [{"tokens": 16}, {"tokens": 32, "gated": True, "activation": "silu"}])
def test_every_format_exactly(name: str, fields: dict[str, Any]) -> None:
    tried(PackedGemm(100, 512, name, **fields), "check", 20, 2 * EXACT)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_rounded_once(name: str) -> None:
    tried(PackedGemm(70, 512, name, tokens=128, precision="fast"), "check", 20, FAST)


def test_a_squared_relu_doubles_relative_errors() -> None:
    """Here 4.9e-3, over what is said of other activations."""
    spec = PackedGemm(17, 1536, "int4_g64", tokens=112, precision="fast", activation="relu2", gated=True)
    found = trial(spec, CpuDevice(), target="sm_90a", seed=556, repeat=False)
    assert found.ok
    assert FAST < found.verdicts[0].error < found.verdicts[0].limit == 1.5 * FAST


@pytest.mark.parametrize(
    ("name", "k"),
    [("e4m3_block", 192), ("e4m3_channel", 192), ("q8_0", 192), ("q4_0", 576), ("q5_0", 576), ("q5_1", 192),
     ("int4_g32", 192), ("int4_g64", 192),
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
    monkeypatch.setattr(shape, "PROCESSORS", 4)  # a CTA goes on to further tiles
    tried(PackedGemm(**fields, x_dtype="e4m3", precision="fast"), mode, rows, EXACT)
    clear_cache()


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
    monkeypatch.setattr(shape, "PROCESSORS", 1)
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
    tile = shape.Shape(2, blocks, 1, 2, 1, 8, 1, share=2)
    monkeypatch.setattr(geometry, "choose", lambda *_: tile)
    monkeypatch.setattr(shape, "PROCESSORS", 4)
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
    monkeypatch.setattr(shape, "PROCESSORS", 4)
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
    monkeypatch.setattr(shape, "PROCESSORS", 4)
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
        (70, {"n": 130, "k": 1024, "tokens": 64, "split": 4, "tile_rows": 64, "out_dtype": "bf16"}),
        (20, {"n": 330, "k": 2048, "tokens": 16, "split": 8, "tile_rows": 128, "indirect": True}),
        (20, {"n": 130, "k": 1024, "tokens": 16, "split": 2, "tile_rows": 128, "precision": "exact"}),
        (20, {"n": 200, "k": 1024, "tokens": 8, "split": 2, "tile_rows": 192, "precision": "exact"}),
        (65, {"n": 200, "k": 1088, "tokens": 64, "split": 3, "tile_rows": 64, "out_dtype": "bf16"}),
        (9, {"n": 136, "k": 448, "tokens": 8, "split": 3, "tile_rows": 128, "residual": True}),
        (33, {"n": 100, "k": 1024, "tokens": 32, "split": 3, "tile_rows": 64, "precision": "exact", "bias": True}),
        (31, {"n": 200, "k": 1024, "tokens": 32, "split": 3, "tile_rows": 192, "precision": "exact"}),
        (17, {"n": 130, "k": 1152, "weights": "e4m3_channel", "x_dtype": "e4m3", "tokens": 16, "split": 3}),
        (33, {"n": 264, "k": 640, "tokens": 32, "split": 3, "share": 2, "tile_rows": 64, "indirect": True}),
        (16, {"n": 256, "k": 512, "tokens": 16, "split": 3, "packed_out": True, "gated": True, "activation": "silu"}),
        (
            20,
            {
                "n": 260,
                "k": 1024,
                "weights": "q4_k",
                "tokens": 8,
                "x_dtype": "f16",
                "by_row": True,
                "split": 2,
                "tile_rows": 256,
            },
        ),
    ],
    ids=str,
)
def test_ctas_that_share_k_and_tokens(mode: str, rows: int, fields: dict[str, Any]) -> None:
    for programmatic in (True, False):
        spec = PackedGemm(**{"precision": "fast", "programmatic": programmatic, **fields})
        assert not (Geometry.of(spec).apart and Geometry.of(spec).wide)
        tried(spec, mode, rows, FAST)


@pytest.mark.parametrize(
    ("tokens", "split", "share", "apart"), [(64, 4, 1, True), (8, 8, 1, True), (64, 2, 2, False), (128, 2, 1, False)]
)
def test_sums_of_few_tokens_have_a_place_of_their_own(tokens: int, split: int, share: int, apart: bool) -> None:
    """Beside the ring, on an mbarrier: no barrier of the cluster, which is a fence of the GPU, stands in a tile."""
    spec = PackedGemm(512, 2048, tokens=tokens, split=split, share=share, precision="fast", out_dtype="bf16")
    at, text = Geometry.of(spec), generate(spec, WHERE).text
    assert at.apart == apart
    assert at.sums_at == (at.stages * at.stage_bytes if apart else 0)
    assert text.count("st.async") == (at.out_tokens // 8 * at.takers * at.shape.blocks if apart else 0)
    in_tile = text[text.index("bra $multiplied_tiles_end;") : text.index("\n$multiplied_tiles_end:")]
    assert in_tile.count("barrier.cluster.arrive") == (0 if apart else 2)
    assert "bra $multiplied_tiles;" not in text  # a CTA has one tile: there are as many clusters as tiles


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("processors", [4, 7])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (150, {"n": 392, "k": 512, "out_dtype": "bf16", "programmatic": True}),
        (150, {"n": 392, "k": 512, "tile_rows": 128, "share": 2, "residual": True, "indirect": True}),
        (150, {"k": 512, "tile_rows": 256, "activation": "silu", "packed_out": True, "n": 512}),
        (130, {"n": 200, "k": 1024, "tile_rows": 192, "weights": "q8_0", "programmatic": True}),
        (130, {"n": 256, "k": 1024, "gated": True, "activation": "silu", "packed_out": True}),
        (130, {"n": 256, "k": 1024, "weights": "e4m3_block", "x_dtype": "e4m3"}),
        (100, {"n": 130, "k": 1024, "tokens": 32, "precision": "exact"}),
        (8, {"n": 200, "k": 8192, "tokens": 8, "tile_rows": 64, "residual": True, "programmatic": True}),
        (8, {"n": 256, "k": 8192, "tokens": 8, "tile_rows": 64, "programmatic": True}),
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
    monkeypatch.setattr(shape, "PROCESSORS", processors)
    spec = PackedGemm(**{"precision": "fast", "tokens": 64, "stream": True, **fields})
    tried(spec, mode, rows, FAST)
    clear_cache()


@pytest.mark.parametrize("processors", [1, 2, 3, 5, 12, 13])
@pytest.mark.parametrize("rows", [127, 128, 129])
def test_runs_end_anywhere_within_tiles(processors: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "PROCESSORS", processors)
    tried(PackedGemm(392, 320, tokens=64, precision="fast", stream=True, programmatic=True), "check", rows, FAST)
    clear_cache()


@pytest.mark.parametrize(
    ("kernel", "fields"),
    [
        (PackedGemm, {"n": 320, "k": 512}),
        (PackedGemm, {"n": 320, "k": 512, "weights": "q4_k", "norm": "rms"}),
        (PackedGemm, {"n": 320, "k": 512, "last_tiles": 1}),
        (PackedGemm, {"n": 320, "k": 512, "last_split": 2}),
        (PackedQkvAppend, {"max_len": 64, "head_dim": 16, "n_heads": 4, "n_kv_heads": 2, "k": 256}),
    ],
    ids=str,
)
def test_k_of_many_tokens_is_not_shared_out(kernel: type[PackedGemm], fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"stream: is for at most 64 tokens \(got tokens=96; nearest: stream=False\)"):
        kernel(**{"precision": "fast", **fields}, tokens=96, stream=True)


def test_a_launch_finds_no_sums_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "PROCESSORS", 3)
    spec = PackedGemm(392, 512, tokens=64, precision="fast", stream=True)
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
    monkeypatch.setattr(shape, "PROCESSORS", 4)
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
        token = layout.unpack(values["x"], 11, 512)[row : row + 1].astype(np.float32)
        own[:1] = layout.pack(token, 16, bf16, 1)
        alone = tried(spec, "fast", 1, FAST, arguments={"x": own, "weight": values["weight"]}).outputs["out"]
        assert alone.tobytes() == out[row : row + 1].tobytes()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("fields", [{"tile_rows": 128}, {"tile_rows": 192, "tokens": 96}, {"k": 256}])
def test_warpgroups_take_turns_where_each_has_one_product_a_stage(mode: str, fields: dict[str, Any]) -> None:
    given = {"n": 400, "k": 1536, "tokens": 128, "weights": "e4m3_block", "split": 1, **fields}
    spec = PackedGemm(**given, x_dtype=e4m3, precision="fast", out_dtype=bf16)
    at = Geometry.of(spec)
    assert at.turns
    assert generate(spec, WHERE).text.count("bar.arrive %next_turn") == 2  # the first, and a stage's
    tried(spec, mode, 150, 4e-2)


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
