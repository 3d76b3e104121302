"""PackedGemm: which tiles are legal, what a launch asks for first, which tile is the best."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.dtypes import bf16, e4m3, f32
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.products.wgmma.cost_model import choice, few_tokens
from ptxgen.products.wgmma.rules import FORMATS
from ptxgen.products.wgmma.tiling import geometry
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.registers import CARRIED_REGISTERS, FACTORED_REGISTERS, REGISTERS, SHARED_REGISTERS
from ptxgen.products.wgmma.tokens import layout
from tests.support.marks import needs_assembler
from tests.support.packed_products import WHERE


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
        ({"row_scales": True}, r"row_scales: is a choice of e4m3 \(got row_scales=True, x_dtype=bf16"),
        ({**BYTE, "row_scales": True}, r"row_scales: is for weights with scales of blocks \(got weights='e4m3'"),
        ({"x_dtype": "f16"}, r"x_dtype: exact digits are bf16 \(got f16"),
        ({"tokens": 256}, r"tokens: must be at most 128 .* \(got 256; nearest: 128\)"),
        ({"tokens": 256, "weights": "q4_k", "precision": "fast"}, "tokens: must be at most 192"),
        ({"tokens": 256, "gated": True, "activation": "silu", "precision": "fast"}, "tokens: must be at most 128"),
        ({"tile_rows": 256, "tokens": 192, "precision": "fast"}, "tokens: must be at most 176"),
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


def test_no_turns_where_a_warpgroup_has_several_products_a_stage() -> None:
    for fields in ({"tokens": 256, "tile_rows": 128}, {"tokens": 128, "tile_rows": 64}):
        spec = PackedGemm(384, 1536, "e4m3_block", x_dtype=e4m3, precision="fast", split=1, **fields)
        assert not Geometry.of(spec).turns
        assert "next_turn" not in generate(spec, WHERE).text


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", layout.TOKENS)
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


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 33, 65, 512, 4096])
@pytest.mark.parametrize("more", [{}, {"gated": True, "activation": "silu"}, {"tokens": 64}])
def test_the_best_tile_is_legal(name: str, rows: int, more: dict[str, Any]) -> None:
    for precision in layout.DIGITS:
        if rows > 64 or "tokens" in more:
            spec = PackedGemm.best(rows, n=4096, k=2048, weights=name, precision=precision, **more)
            assert supports(spec, WHERE)


@pytest.mark.parametrize("rows", [8, 32, 64])
@pytest.mark.parametrize(("n", "k"), [(256, 512), (256, 2048), (512, 512), (768, 1024), (1536, 256), (1536, 2048)])
def test_small_matrices_have_tiles_of_rows_that_are_there(n: int, k: int, rows: int) -> None:
    """In few CTAs nothing is read for long, so a tile's own work counts, whose rows must be no dead weight."""
    spec = PackedGemm.best(rows, n=n, k=k, weights="bf16", precision="fast", out_dtype="bf16", programmatic=True)
    assert n % spec.tile_rows == 0
    assert spec.split == 1 or spec.k >= 2 * spec.columns * spec.split


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


@pytest.mark.parametrize("weights", ["bf16", "q4_k"])
@pytest.mark.parametrize("rows", [65, 96, 128, 192, 320])
def test_gate_and_down_have_tiles_of_as_many_tokens(weights: str, rows: int) -> None:
    """Those that are the fastest for both: of 64 or 112 tokens, which suit the gate alone, down would share no k."""
    gate = {"n": 14336, "k": 4096, "gated": True, "packed_out": True, "activation": "silu"}
    down = {"n": 4096, "k": 14336, "residual": True}
    more: dict[str, Any] = {"weights": weights, "precision": "fast", "programmatic": True}
    assert choice.tokens_of_both(PackedGemm, {**gate, **more}, {**down, **more}, rows) == 128
    assert PackedGemm.best(rows, **down, **more, tokens=128).split == 2


@pytest.mark.parametrize("k", [4096, 14336])
def test_of_equal_tiles_the_one_with_more_tokens_is_taken(k: int) -> None:
    spec = PackedGemm.best(128, n=4096, k=k, precision="fast")
    assert (spec.tokens, spec.tile_rows, spec.split) == (128, 64, 2)


@pytest.mark.parametrize("row", [*choice.MEASURED_PLAIN, *choice.MEASURED_PROGRAMMATIC])
def test_a_tile_that_was_measured_is_taken_unless_another_is_given(row: tuple[int, ...]) -> None:
    n, k, least, most, *tile = row
    fields: dict[str, Any] = {"n": n, "k": k, "precision": "fast", "out_dtype": bf16}
    if row in choice.MEASURED_PROGRAMMATIC:
        fields["programmatic"] = True
    for rows in (least, most):
        spec = PackedGemm.best(rows, **fields)
        assert [getattr(spec, name) for name in choice.TILE] == tile
        assert not PackedGemm.best(rows, **fields, evict_first=False).evict_first
        assert PackedGemm.best(rows, **fields, evict_first=True).evict_first
        assert choice._measured(fields | {"carried": True}, rows) == {}
        assert supports(spec, WHERE)
        assert PackedGemm.best(rows, **fields, split=2).split == 2
    for rows in (least - 1, most + 1):
        assert choice._measured(fields, rows) != dict(zip(choice.TILE, tile, strict=True))
    assert choice._measured(fields | {"out_dtype": f32}, most) == {}
    other = fields | {"programmatic": row in choice.MEASURED_PLAIN}
    assert choice._measured(other, most) == {}


# Of programmatic launches of bf16, the fastest of 4 to 12 tiles on an H200: outputs, columns, rows of x;
# rows of weights, CTAs that share k, and warpgroups that do.
FASTEST = (
    (2048, 8192, 64, 64, 3, 1), (3072, 2048, 8, 128, 3, 1), (4096, 4096, 32, 64, 2, 1), (5120, 13824, 64, 192, 4, 1),
    (6144, 4096, 32, 64, 1, 2), (12288, 4096, 64, 192, 2, 1), (16384, 2048, 64, 128, 1, 1), (17920, 1536, 32, 64, 1, 2),
    (17920, 1536, 64, 192, 1, 1), (28672, 4096, 8, 64, 1, 2), (3584, 18944, 8, 128, 4, 1), (1536, 8960, 64, 64, 4, 1),
)  # fmt: skip


@pytest.mark.parametrize("row", FASTEST, ids=str)
def test_few_tokens_have_the_tile_that_was_the_fastest(row: tuple[int, ...]) -> None:
    n, k, rows, *tile = row
    spec = PackedGemm.best(rows, n=n, k=k, precision="fast", out_dtype=bf16, programmatic=True)
    assert [spec.tile_rows, spec.split, spec.slices] == tile
    assert spec.evict_first
    assert supports(spec, WHERE)


# the same of exact numbers with 32 rows of x, and of tokens in e4m3 with a scale a row
EXACT: dict[str, Any] = {"precision": "exact"}
SCALED: dict[str, Any] = {"precision": "fast", "weights": "e4m3_channel", "x_dtype": e4m3}
FASTEST_OF_32: tuple[tuple[int, int, dict[str, Any], list[int]], ...] = (
    (2048, 8192, EXACT, [64, 3, 1]), (4096, 4096, EXACT, [64, 2, 1]), (5120, 13824, EXACT, [192, 4, 1]),
    (12288, 4096, EXACT, [192, 2, 1]), (17920, 1536, EXACT, [64, 1, 2]), (6144, 4096, SCALED, [64, 1, 2]),
    (5120, 13824, SCALED, [192, 4, 1]), (28672, 4096, SCALED, [128, 1, 1]), (2048, 8192, SCALED, [64, 4, 1]),
)  # fmt: skip


@pytest.mark.parametrize("row", FASTEST_OF_32, ids=str)
def test_32_exact_tokens_have_the_tile_that_was_the_fastest(row: tuple[int, int, dict[str, Any], list[int]]) -> None:
    n, k, how, tile = row
    spec = PackedGemm.best(32, n=n, k=k, programmatic=True, **how)
    assert [spec.tile_rows, spec.split, spec.slices] == tile
    assert supports(spec, WHERE)


GIVEN: tuple[dict[str, Any], ...] = (
    {"tile_rows": 256}, {"share": 2}, {"split": 3}, {"stream": True}, {"share": 2, "split": 3}, {"slices": 1},
    {"slices": 2},
)  # fmt: skip


@pytest.mark.parametrize("rows", [8, 32, 64, 300])
@pytest.mark.parametrize("given", GIVEN, ids=str)
@pytest.mark.parametrize("programmatic", [False, True])
def test_what_is_given_of_a_tile_stays(rows: int, given: dict[str, Any], programmatic: bool) -> None:
    fields = {"n": 4096, "k": 4096, "precision": "fast", "out_dtype": bf16, "programmatic": programmatic}
    spec = PackedGemm.best(rows, **fields, **given)
    assert {name: getattr(spec, name) for name in given} == given
    assert supports(spec, WHERE)


@pytest.mark.parametrize(
    "how", [{}, EXACT, {**EXACT, "gated": True, "activation": "silu"}, {"weights": "q8_0"}, SCALED]
)
def test_slices_are_had_by_asking_for_them(how: dict[str, Any]) -> None:
    for rows in (1, 8, 17, 32):
        spec = PackedGemm.best(rows, **{"n": 2048, "k": 8192, "precision": "fast", "slices": 2, **how})
        assert (spec.slices, Geometry.of(spec).shape.slices) == (2, 2)
        assert supports(spec, WHERE)


@pytest.mark.parametrize("how", [{"precision": "fast"}, EXACT, SCALED])
def test_weights_that_several_tiles_of_tokens_read_stay_in_the_l2(how: dict[str, Any]) -> None:
    fields = {"n": 4096, "k": 4096, "programmatic": True, **how}
    assert not PackedGemm.best(32, **fields, tokens=16).evict_first
    assert PackedGemm.best(16, **fields, tokens=16).evict_first


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("n", [1, 64, 96])
def test_tiles_have_no_rows_that_are_not_there(n: int, rows: int) -> None:
    converted = ({"precision": "fast", "weights": name} for name in ("q8_0", "int4_g128", "e4m3_block", "q4_k"))
    for how in ({"precision": "fast"}, EXACT, SCALED, *converted):
        assert PackedGemm.best(rows, n=n, k=2048, programmatic=True, **how).tile_rows <= -(-n // 64) * 64


@pytest.mark.parametrize("rows", [1, 8, 9, 33, 64])
@pytest.mark.parametrize(("n", "k"), [(64, 64), (8, 4096), (100, 192), (151936, 64), (130, 128000)])
def test_few_tokens_have_a_tile_whatever_the_matrix(n: int, k: int, rows: int) -> None:
    spec = PackedGemm.best(rows, n=n, k=k, precision="fast", programmatic=True)
    assert supports(spec, WHERE)
    same = PackedGemm.best(rows, n=n, k=k, precision="fast", programmatic=True, tokens=64)
    assert same.tokens == 64


@pytest.mark.parametrize("rows", [1, 9, 33, 64])
@pytest.mark.parametrize(
    "weights", ["q8_0", "q4_0", "q5_0", "q4_1", "int4_g32", "int4_g128", "e4m3", "e4m3_channel", "e4m3_block", "q6_k"]
)
@pytest.mark.parametrize(("n", "k"), [(64, 256), (8, 4096), (151936, 256), (130, 128000)])
def test_few_tokens_have_a_tile_of_converted_weights(n: int, k: int, weights: str, rows: int) -> None:
    for residual in (False, True):
        spec = PackedGemm.best(rows, n=n, k=k, weights=weights, precision="fast", programmatic=True, residual=residual)
        costs = few_tokens.COSTS[few_tokens.multiplied(spec)]
        assert supports(spec, WHERE)
        assert spec.tokens >= rows
        assert (spec.tile_rows, spec.slices) in costs.paces or not costs.least <= rows <= costs.most


def test_weights_that_are_converted_have_many_warps_that_convert() -> None:
    fields: dict[str, Any] = {"n": 5120, "k": 13824, "precision": "fast", "programmatic": True}
    for weights in ("e4m3_channel", "q8_0", "int4_g128"):
        spec = PackedGemm.best(32, weights=weights, **fields)
        assert (spec.tile_rows, spec.split) == (192, 4), weights


SLICED: tuple[tuple[int, dict[str, Any], bool], ...] = (
    (32, {"n": 8960, "k": 1536, "gated": True, "activation": "silu"}, True),
    (32, {"n": 5120, "k": 1536, "gated": True, "activation": "silu"}, False),
    (32, {"n": 8960, "k": 1536, "gated": True, "activation": "silu", "precision": "exact"}, False),
    (32, {"n": 5632, "k": 2048, "gated": True, "activation": "silu", "precision": "exact"}, True),
    (32, {"n": 8192, "k": 8192, "weights": "e4m3_channel"}, True),
    (64, {"n": 4096, "k": 4096, "weights": "q8_0"}, True),
    (64, {"n": 28672, "k": 4096, "weights": "q8_0"}, False),
    (64, {"n": 4096, "k": 4096, "weights": "q4_k"}, False),
    (64, {"n": 4096, "k": 4096, "weights": "e4m3_channel", "x_dtype": e4m3}, True),
    (64, {"n": 1536, "k": 8960, "weights": "e4m3_channel", "x_dtype": e4m3}, False),
    (32, {"n": 4096, "k": 4096, "weights": "e4m3_block", "x_dtype": e4m3}, False),
)


@pytest.mark.parametrize(("rows", "fields", "sliced"), SLICED, ids=str)
def test_warpgroups_share_k_where_that_was_faster(rows: int, fields: dict[str, Any], sliced: bool) -> None:
    fields = {"precision": "fast", **fields}
    assert PackedGemm.best(rows, **fields, programmatic=True).slices == 1 + sliced
    assert PackedGemm.best(rows, **fields).slices == 1  # not faster in plain launches
    assert PackedGemm.best(rows, **fields, programmatic=True, split=1).slices == 1
    given = PackedGemm.best(rows, **fields, programmatic=True, evict_first=False)
    assert not given.evict_first


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


def test_warpgroups_take_no_more_registers_than_their_launch_has() -> None:
    """setmaxnreg would wait for ever."""
    first = {2: 168, 3: 128, 4: 96}  # of 65536, for all threads of so many warpgroups and the one that copies
    chosen = [*REGISTERS.items(), *SHARED_REGISTERS.items(), (2, FACTORED_REGISTERS), (2, CARRIED_REGISTERS)]
    for groups, (fewer, more) in chosen:
        assert fewer + groups * more <= (groups + 1) * first[groups]
