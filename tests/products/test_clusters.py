"""Products with one token whose rows a cluster shares: results in every mode, geometry, and faults."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ptxgen.assembler import assemble
from ptxgen.generator import generate
from ptxgen.kernel import KernelType
from ptxgen.kernels import Gemv, NextToken, QkvAppend
from ptxgen.products.geometry import Runs, share_runs
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from ptxgen.tuning import ProductChoice, fixed, using
from ptxgen.weights import weight_format
from tests.support.marks import needs_assembler
from tests.tools.mutations import SpecSubject

SM_90 = target("sm_90")
# what stands around a product, CTAs with and without a unit more, a part of x and all of it
CASES: list[tuple[KernelType, ProductChoice]] = [
    (Gemv(40, 2304, "q4_k", norm="rms", residual=True), ProductChoice(4, 2, 6, 2)),
    (Gemv(40, 1280, "q8_0", bias=True, programmatic=True), ProductChoice(4, 2, 8, 4)),
    (Gemv(40, 1408, "e4m3_block", gated=True, activation="silu", norm="rms"), ProductChoice(3, 1, 8, 2)),
    (Gemv(72, 1152, "int4_g128"), ProductChoice(4, 2, 4, 2)),
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
        assert launch.cluster == (choice.cluster, 1, 1)
        for mode, seed in (("fast", 0), ("check", 0), ("random", 1), ("random", 2)):
            done = trial(spec, open_device("cpu", mode=mode, seed=seed), target="sm_90", seed=5).require()
            results.append({name: np.asarray(value).tobytes() for name, value in done.outputs.items()})
    assert all(each == results[0] for each in results)


@pytest.mark.parametrize("k", [1024 + 128 * more for more in range(9)])
def test_every_length_of_k(k: int) -> None:
    """Of eight to sixteen tiles, which two, four and eight CTAs share."""
    for cluster in (2, 4, 8):
        with using(fixed(ProductChoice(2, 2, cluster, cluster))):
            trial(Gemv(40, k, "q8_0"), open_device("cpu"), target="sm_90").require()


@pytest.mark.parametrize("k", [508, 512, 516])
def test_columns_around_a_whole_tile(k: int) -> None:
    with using(fixed(ProductChoice(2, 2, 4, 4))):
        trial(Gemv(40, k, "bf16"), open_device("cpu"), target="sm_90").require()


@pytest.mark.parametrize("tiles", [1, 2, 3, 5, 9, 35])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_a_cta_brings_the_columns_of_its_tiles(tiles: int, parts: int, cluster: int) -> None:
    """Those of x follow one another as the tiles of its warps do, the first of a record behind its last."""
    kind = weight_format("q4_k")
    for units, ctas in itertools.product((3, 7, 96), (cluster, 4 * cluster, 32 * cluster)):
        choice = ProductChoice(4, 2, ctas, cluster)
        at = share_runs(units, parts, kind, tiles * kind.tile_k, since_sm_90=True, choice=choice, whole_x=False)
        assert at.cluster <= cluster
        assert at.cluster == 1 or not at.idle
        for count in {at.least, at.most}:
            total = count * parts * tiles
            taken: list[int] = []
            for rank in range(at.cluster):
                first = rank * total // at.cluster
                sharers = range(rank * at.warps, (rank + 1) * at.warps)
                own = [range(total * warp // at.sharing, total * (warp + 1) // at.sharing) for warp in sharers]
                assert own[0].start == first
                brought = [(first % tiles + place) % tiles for place in range(at.x_tiles)]
                if at.x_tiles < tiles:
                    assert all(brought[tile - first] == tile % tiles for run in own for tile in run)
                taken += (tile for run in own for tile in run)
            assert taken == list(range(total))


def test_what_clusters_share() -> None:
    at = runs_of(1536, 8960, "q4_k", ProductChoice(8, 2, 132, 4))
    assert (at.cluster, at.ctas, at.launched, at.most, at.x_tiles) == (4, 33, 132, 3, 27)
    assert runs_of(16, 256, "q4_k", ProductChoice(8, 2, 264, 2)).cluster == 1  # one tile
    few = runs_of(16, 1280, "q4_k", ProductChoice(8, 2, 264, 8))  # every warp has a tile
    assert (few.cluster, few.warps) == (4, 1)
    with using(fixed(ProductChoice(8, 2, 264, 2))):
        normed = Gemv(1536, 8960, "q4_k", norm="rms").geometry(SM_90)  # every CTA needs all squares
        assert isinstance(normed, Runs)
        assert (normed.cluster, normed.x_tiles) == (2, 35)
        before = Gemv(1536, 8960, "q4_k").geometry(target("sm_80"))  # has no clusters
        assert isinstance(before, Runs)
        assert before.cluster == 1
        both = QkvAppend(max_len=16, head_dim=64, n_heads=4, n_kv_heads=1, k=2048, weights="q4_k", v_weights="q6_k")
        assert all(isinstance(at, Runs) and at.cluster == 1 for at in both.geometries(SM_90))  # CTAs of two products


@needs_assembler
@pytest.mark.parametrize("weights", ["q4_k", "q5_k", "q8_0", "q4_0", "int4_g128", "e4m3_block", "bf16", "f16"])
@pytest.mark.parametrize("norm", ["", "rms"])
def test_no_spills(weights: str, norm: str) -> None:
    for choice in (ProductChoice(8, 2, 132, 4), ProductChoice(16, 1, 264, 2), ProductChoice(8, 3, 132, 8)):
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
