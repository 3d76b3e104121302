"""Products with one token whose k CTAs of a cluster share: results in every mode, geometry, and faults."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from ptxgen.assembler import assemble
from ptxgen.generator import generate
from ptxgen.kernel import KernelType
from ptxgen.kernels import Gemv, NextToken, QkvAppend
from ptxgen.products.geometry.runs import Runs, share_runs
from ptxgen.runtime import open_device
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from ptxgen.tuning import ProductChoice, fixed, using
from ptxgen.weights import weight_format
from tests.support.marks import needs_assembler
from tests.tools.mutations import SpecSubject

SM_90 = target("sm_90")
# what stands around a product, CTAs with and without a unit more, k that does and does not come out even
CASES: list[tuple[KernelType, ProductChoice]] = [
    (Gemv(40, 2304, "q4_k", norm="rms", residual=True), ProductChoice(4, 2, 6, 2)),
    (Gemv(40, 1280, "q8_0", bias=True, programmatic=True), ProductChoice(4, 2, 8, 4)),
    (Gemv(40, 1408, "e4m3_block", gated=True, activation="silu", norm="rms"), ProductChoice(3, 1, 8, 2)),
    (Gemv(72, 1152, "int4_g128"), ProductChoice(4, 2, 4, 2)),
    (Gemv(72, 1152, "e4m3_block", bias=True), ProductChoice(4, 2, 4, 2, 1)),
    (Gemv(40, 1280, "q8_0"), ProductChoice(4, 2, 8, 4, 1)),
    (Gemv(33, 600, "bf16", norm="rms", norm_offset=1.0), ProductChoice(4, 2, 8, 4)),
    (Gemv(16, 2048, "q6_k", activation="gelu", programmatic=True), ProductChoice(2, 2, 8, 8)),
    (NextToken(72, 512, "bf16", norm="rms", max_len=64), ProductChoice(4, 2, 8, 2)),
    (
        QkvAppend(max_len=16, head_dim=16, n_heads=2, n_kv_heads=1, k=512, weights="q8_0", norm="rms"),
        ProductChoice(4, 2, 8, 2),
    ),
]


def runs_of(n: int, k: int, weights: str, choice: ProductChoice) -> Runs:
    with using(fixed(choice)):
        made = Gemv(n, k, weights).geometry(SM_90)
    assert isinstance(made, Runs)
    return made


@pytest.mark.parametrize(("spec", "choice"), CASES, ids=lambda each: getattr(each, "slug", ""))
def test_the_result_is_the_same_in_every_mode(spec: KernelType, choice: ProductChoice) -> None:
    results = []
    with using(fixed(choice)):
        launch = generate(spec, SM_90).launch
        assert launch.cluster == (choice.split, 1, 1)
        for mode, seed in (("fast", 0), ("check", 0), ("random", 1), ("random", 2)):
            done = trial(spec, open_device("cpu", mode=mode, seed=seed), target="sm_90", seed=5).require()
            results.append({name: np.asarray(value).tobytes() for name, value in done.outputs.items()})
    assert all(each == results[0] for each in results)


@pytest.mark.parametrize("k", [1024 + 128 * more for more in range(9)])
def test_every_length_of_k(k: int) -> None:
    """Of eight to sixteen tiles two, four and eight CTAs take their part."""
    for split in (2, 4, 8):
        with using(fixed(ProductChoice(2, 2, split, split))):
            trial(Gemv(16, k, "q8_0", norm="rms"), open_device("cpu"), target="sm_90").require()


@pytest.mark.parametrize("tiles", [1, 2, 3, 5, 9, 35])
@pytest.mark.parametrize("split", [1, 2, 4, 8])
def test_every_tile_of_k_is_taken_once(tiles: int, split: int) -> None:
    kind = weight_format("q4_k")
    choice = ProductChoice(4, 2, 96, split)
    at = share_runs(6, 1, kind, tiles * kind.tile_k, since_sm_90=True, choice=choice)
    taken: list[int] = []
    for rank in range(at.split):
        first = min(rank * at.tiles, tiles - at.tiles)
        skipped = at.spare if rank == at.split - 1 else 0
        taken += range(first + skipped, first + at.tiles)
    if at.split > 1:
        assert sorted(taken) == list(range(tiles))
        assert 0 <= at.spare < at.tiles
    assert at.split <= min(split, tiles)


def test_what_shares_k() -> None:
    at = runs_of(1536, 8960, "q4_k", ProductChoice(8, 2, 264, 2))
    assert (at.split, at.ctas, at.launched, at.tiles, at.spare) == (2, 96, 192, 18, 1)
    assert runs_of(16, 256, "q4_k", ProductChoice(8, 2, 264, 2)).split == 1  # one tile
    assert runs_of(16, 1280, "q4_k", ProductChoice(8, 2, 264, 4)).split == 2  # the last of four would have none
    many = runs_of(4096, 4096, "bf16", ProductChoice(2, 2, 8, 2))  # 64 records of 16 rows for 64 threads
    assert (many.split, many.ctas) == (1, 8)
    with using(fixed(ProductChoice(8, 2, 264, 2))):
        before = Gemv(1536, 8960, "q4_k").geometry(target("sm_80"))  # has no clusters
        assert isinstance(before, Runs)
        assert before.split == 1
        both = QkvAppend(
            max_len=16, head_dim=64, n_heads=4, n_kv_heads=1, k=2048, weights="q4_k", v_weights="q6_k"
        )  # of two products CTAs differ
        assert all(isinstance(at, Runs) and at.split == 1 for at in both.geometries(SM_90))


@pytest.mark.parametrize(
    ("n", "k", "weights", "chain", "alone"),
    [
        (4096, 14336, "q4_k", (16, 2, 66, 2), None),  # a row of the table has launches alone
        (2048, 5632, "int4_g128", (16, 1, 66, 2), (8, 2, 66, 2)),
        (1024, 4096, "q5_k", (8, 1, 64, 2), (8, 1, 64, 2)),
        (4096, 4096, "q6_k", (16, 1, 66, 2), (8, 2, 66, 2)),
        (2048, 2048, "q6_k", (8, 1, 128, 1), (8, 1, 128, 1)),
        (3584, 18944, "q8_0", (16, 2, 66, 2), (8, 3, 132, 2)),
        (4096, 4096, "e4m3_channel", (16, 3, 132, 1), (8, 3, 132, 2)),
        (2048, 2048, "bf16", (4, 2, 128, 4), (8, 2, 128, 2)),
        (1024, 4096, "bf16", (8, 2, 64, 4), (8, 3, 64, 2)),
        (5120, 5120, "int4_g128", (16, 2, 132, 1), (8, 2, 66, 2)),
        (5120, 5120, "q8_0", (16, 3, 132, 1), (8, 3, 132, 2)),
        (1280, 5120, "q8_0", (16, 3, 80, 1), (16, 3, 80, 1)),  # 160 CTAs of 132 multiprocessors
        (3072, 3072, "q5_k", (16, 1, 66, 2), (12, 2, 132, 1)),
        (4096, 4096, "f16", (16, 3, 132, 1), (8, 3, 132, 2)),
        (3584, 18944, "bf16", (16, 2, 66, 2), (8, 3, 132, 2)),
        (1536, 8960, "q4_k", (12, 2, 96, 1), None),  # 66 clusters would have two records or one
        (32768, 4096, "q4_k", (16, 2, 132, 1), (16, 2, 132, 1)),  # x is little of what comes
        (48, 512, "bf16", (8, 1, 3, 1), (8, 1, 3, 1)),
    ],
)
def test_matrices_that_no_row_names_share_k(n: int, k: int, weights: str, chain: Any, alone: Any) -> None:
    for programmatic, wanted in ((True, chain), (False, alone)):
        at = Gemv(n, k, weights, programmatic=programmatic).geometry(SM_90)
        assert isinstance(at, Runs)
        if wanted is not None:
            assert (at.warps, at.stages, at.ctas, at.split) == wanted
        before = Gemv(n, k, weights).geometry(target("sm_80"))
        gated = Gemv(n, k, weights, gated=True, activation="silu", programmatic=programmatic).geometry(SM_90)
        assert isinstance(before, Runs)
        assert isinstance(gated, Runs)
        assert before.split == gated.split == 1


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(("n", "k", "weights"), [(1056, 2048, "q4_k"), (1040, 1088, "bf16")])
def test_what_they_make_of_it(mode: str, n: int, k: int, weights: str) -> None:
    spec = Gemv(n, k, weights, norm="rms", residual=True, programmatic=True)
    trial(spec, open_device("cpu", mode=mode), target="sm_90").require()


@pytest.mark.parametrize("programmatic", [True, False])
@pytest.mark.parametrize(("n", "k", "weights"), [(1056, 2304, "q4_k"), (2112, 1280, "q8_0"), (1040, 1088, "bf16")])
def test_they_are_the_same_on_every_device(device: Device, n: int, k: int, weights: str, programmatic: bool) -> None:
    trial(Gemv(n, k, weights, bias=True, programmatic=programmatic), device, target="sm_90").require()


@pytest.mark.parametrize(("fields", "first"), [({}, True), ({"programmatic": True}, False), ({"norm": "rms"}, False)])
def test_x_comes_first_where_a_row_says_so_and_nothing_is_waited_for(fields: dict[str, Any], first: bool) -> None:
    for chosen in (0, 1):
        with using(fixed(ProductChoice(4, 2, 8, 1, chosen))):
            text = generate(Gemv(40, 1280, "q8_0", **fields), SM_90).text
        x_at, weights_at = text.index("// stage: load the columns"), text.index("// request_0")
        assert (x_at < weights_at) == (first and chosen == 1)
    with using(fixed(ProductChoice(4, 2, 8, 1, 1))):
        long = generate(Gemv(40, 8960, "q8_0"), SM_90).text  # more columns than four warps ask for at once
    assert long.index("// request_0") < long.index("// stage: load the columns")


def tiles_around_x(text: str) -> tuple[int, int]:
    """First tiles that are asked for before x, and behind it."""
    before, _, behind = text.partition("// stage: load the columns")
    return tuple(len(re.findall(r"// request_\d:", part)) for part in (before, behind))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("n", "k", "weights", "stages"), [(16, 2560, "q4_k", 2), (16, 2304, "e4m3_channel", 2), (16, 3072, "bf16", 3)]
)
def test_the_last_of_the_first_tiles_comes_behind_x_that_is_normed(n: int, k: int, weights: str, stages: int) -> None:
    for fields, behind in (
        ({"norm": "rms", "programmatic": True}, 1),
        ({"norm": "rms"}, 0),
        ({"programmatic": True}, 0),
    ):
        text = generate(Gemv(n, k, weights, **fields), SM_90).text
        assert tiles_around_x(text) == (stages - behind, behind), fields


@pytest.mark.parametrize(("k", "behind"), [(2048, 1), (1984, 0)])
def test_tiles_of_short_rows_are_all_asked_for_before_x(k: int, behind: int) -> None:
    with using(fixed(ProductChoice(8, 3, 1))):
        text = generate(Gemv(64, k, "bf16", norm="rms", programmatic=True), SM_90).text
    assert tiles_around_x(text) == (3 - behind, behind)


@pytest.mark.parametrize(
    ("n", "k", "weights", "choice"),
    [
        (40, 2560, "q4_k", None),
        (72, 2304, "q4_k", ProductChoice(2, 4, 2)),  # a warp has tiles of several records
        (24, 2304, "e4m3_channel", None),
        (24, 3072, "bf16", None),
    ],
)
def test_products_that_norm_x_are_the_same_in_every_mode(
    n: int, k: int, weights: str, choice: ProductChoice | None
) -> None:
    results = set()
    with using(fixed(choice)) if choice is not None else nullcontext():
        for programmatic in (True, False):
            spec = Gemv(n, k, weights, norm="rms", residual=True, programmatic=programmatic)
            for mode, seed in (("fast", 0), ("check", 0), ("random", 1), ("random", 2)):
                done = trial(spec, open_device("cpu", mode=mode, seed=seed), target="sm_90", seed=5).require()
                results.add(np.asarray(done.outputs["out"]).tobytes())
    assert len(results) == 1


def test_short_runs_of_many_words_have_one_tile_on_its_way() -> None:
    """Where launches overlap; a table's choice stands."""
    for weights, wanted in (("q6_k", 1), ("q5_k", 1), ("q4_k", 2)):
        at = Gemv(14336, 4096, weights, norm="rms", programmatic=True).geometry(SM_90)
        assert isinstance(at, Runs)
        assert (at.warps, at.stages) == (16, wanted)
        with using(fixed(ProductChoice(16, 2, 132))):
            chosen = Gemv(14336, 4096, weights, norm="rms", programmatic=True).geometry(SM_90)
        assert isinstance(chosen, Runs)
        assert chosen.stages == 2
    for spec in (Gemv(128256, 4096, "q6_k", programmatic=True), Gemv(14336, 4096, "q6_k")):
        at = spec.geometry(SM_90)
        assert isinstance(at, Runs)
        assert at.stages == 2


@needs_assembler
@pytest.mark.parametrize(
    "weights", ["q4_k", "q5_k", "q8_0", "q4_0", "q5_0", "q5_1", "int4_g128", "e4m3_block", "bf16", "f16"]
)
@pytest.mark.parametrize("norm", ["", "rms"])
def test_no_spills(weights: str, norm: str) -> None:
    for choice in (ProductChoice(6, 2, 264, 2), ProductChoice(16, 1, 264, 2), ProductChoice(8, 3, 528, 4)):
        with using(fixed(choice)):
            ptx = generate(Gemv(1536, 8960, weights, norm=norm, residual=True), "sm_90")
        assert assemble(ptx.text, "sm_90").resources[ptx.entry].clean, choice


@pytest.mark.parametrize(("spec", "choice"), CASES[:3], ids=lambda each: getattr(each, "slug", ""))
def test_faults_are_noticed(spec: KernelType, choice: ProductChoice) -> None:
    """Every barrier, arrival and wait left out, one at a time, but for the wait until the first CTA has begun: the
    executor begins all CTAs of a cluster together."""
    with using(fixed(choice)):
        subject = SpecSubject(spec, SM_90)
        every = [each for each in subject.mutations() if each.kind != "stride"]
        missed = [each for each in every if subject.noticed(each.text) is None]
    assert len(every) >= 6
    assert not [str(each) for each in missed if "barrier.cluster.wait" not in each.what]
    assert len(missed) <= 1
