"""`ptxgen tune`: what it would measure, that it finds the fastest choice, times a graph, and says what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from ptxgen import PtxgenError, tuning
from ptxgen.attention.decode.plan import choice_of
from ptxgen.cli import tune
from ptxgen.cli._main import invoke
from ptxgen.errors import CudaError
from ptxgen.runtime.cuda.device import CudaDevice
from ptxgen.runtime.tools import tuner
from ptxgen.runtime.tools.product_timer import ProductTimer
from ptxgen.runtime.tools.tuner import Timer
from ptxgen.targets import target
from ptxgen.tuning import Choice, ProductChoice, Table, using
from ptxgen.tuning_jobs import attention as jobs
from ptxgen.tuning_jobs import products as product_jobs
from ptxgen.tuning_jobs.attention import Job, choices, search
from ptxgen.tuning_jobs.outcome import FINALISTS
from ptxgen.tuning_jobs.products import ProductJob, search_product
from tests.support.fake_cuda import Binding, fake_device, running_device

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
SM_90 = target("sm_90")
LLAMA = Job(32, 8, 128, "f16", 8192)
BATCH = Job(32, 8, 128, "f16", 8192, (8, 32))
SMALL = ["--heads", "4/2/16", "--capacity", "600", "--batch", "1"]


class Clock(Binding):
    """A driver whose events say that a graph of CTAs of two warps takes 1 ms, and any other 2 ms."""

    def _cuEventElapsedTime(self, start: object, end: object) -> float:
        return 1.0 if self.launched[-1].block[0] == 64 else 2.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    device, _ = fake_device(Clock())
    monkeypatch.setattr(tune, "_open", lambda name: device)
    monkeypatch.setattr(tuner, "L2_BYTES", 1e6)
    return device


# -- the search --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [LLAMA, BATCH, Job(12, 2, 128, "s8", 512), Job(8, 8, 80, "f32", 32768)], ids=Job.label)
def test_the_search_finds_what_is_fastest(job: Job) -> None:
    """The time is a bowl around a plan that is not the default one."""
    default = choice_of(job.spec.attention, SM_90, batched=bool(job.batches))

    def us(choice: Choice) -> float:
        plan = job.plan(SM_90, choice)
        return 10 + abs(plan.cluster - 4) + 2 * abs(math.log2(plan.shape.warps / 2)) + abs(plan.shape.in_flight - 2)

    found = search(job, SM_90, us)
    assert found.before == default
    assert found.before_us == us(default)
    assert found.best_us == 10.0
    assert found.better
    assert found.measured <= choices(job, SM_90) + 20


def test_a_search_measures_no_plan_twice_and_many_ways_to_divide() -> None:
    plans = []
    search(LLAMA, SM_90, lambda choice: plans.append(LLAMA.plan(SM_90, choice)) or 1.0)
    assert len(plans) - 1 - FINALISTS <= len(set(plans)) < len(plans), "but for the few that decide"
    assert {p.cluster for p in plans} == {1, 2, 4, 8}
    assert {p.shape.warps for p in plans} >= {2, 4, 6, 8, 12}
    assert len({p.most_splits * p.cluster for p in plans}) >= 6
    assert {p.mergers for p in plans if p.most_splits > 1} == {0, 1, 2, 4, 8, 16}
    assert not [p for p in plans if p.mergers and p.most_splits == 1]


def test_a_row_is_written_from_a_gain_on() -> None:
    default = choice_of(LLAMA.spec.attention, SM_90, batched=False)
    assert not search(LLAMA, SM_90, lambda choice: 10.0 if choice == default else 9.85).better
    assert search(LLAMA, SM_90, lambda choice: 10.0 if choice == default else 9.85, least_gain=0.01).better


def test_luck_is_not_a_gain() -> None:
    """The first measurement of every choice but the default is 20 % too low."""
    seen: set[Choice] = {choice_of(LLAMA.spec.attention, SM_90, batched=False)}

    def us(choice: Choice) -> float:
        lucky = choice not in seen
        seen.add(choice)
        return 8.0 if lucky else 10.0

    found = search(LLAMA, SM_90, us)
    assert found.best == found.before
    assert not found.better


def test_equal_times_change_nothing() -> None:
    found = search(LLAMA, SM_90, lambda choice: 7.0)
    assert found.best == found.before
    assert not found.better


def test_a_row_of_a_job_is_found_again_and_holds_for_its_class_only() -> None:
    choice = Choice(2, 4, 96, 3, 2048)
    with using(Table((LLAMA.row(SM_90, choice, ""),))):
        for job, same in ((LLAMA, True), (Job(32, 8, 128, "f16", 4097), True), (Job(32, 8, 128, "f16", 4096), False),
                          (BATCH, False), (Job(16, 8, 128, "f16", 8192), False)):  # fmt: skip
            attention = job.spec.attention
            assert (choice_of(attention, SM_90, batched=bool(job.batches)) == choice) is same, job.label()
        assert choice_of(LLAMA.spec.attention, target("sm_80"), batched=False) != choice


# -- the timer ---------------------------------------------------------------------------------------------------------


def test_the_timer_launches_the_kernel_on_every_cache_in_turn() -> None:
    device = running_device()
    job = Job(4, 2, 16, "s8", 128, (2, 3), fills=(0.25, 1.0))
    timer = Timer(device, job, SM_90, sets=3)
    us = timer.us(choice_of(job.spec.attention, SM_90, batched=True))
    # 1.5 ms for a graph of at least eight calls: three full caches thrice, twelve quarters of them
    assert us == pytest.approx(1.5e3 / (9 * 12) ** 0.5)
    assert [(one.sets, one.moves) for one in timer.launches] == [(3, [4, 1])] * 2
    assert [[int(b["seq_lens"].numpy()[0]) for b in one.lengths] for one in timer.launches] == [[32, 128]] * 2
    outs = [one.expected for one in timer.launches]
    assert all(abs(part).max() > 0 and (part != whole).any() for part, whole in outs)


def test_prepared_kernels_are_compiled_once_and_kept_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    device, job = running_device(), Job(4, 2, 16, "f16", 128)
    loads: list[str] = []
    load = device._load
    monkeypatch.setattr(device, "_load", lambda text, label: loads.append(label) or load(text, label))
    timer = Timer(device, job, SM_90, sets=1)
    choices = [Choice(warps, 1, 8, 1, 4096) for warps in (2, 4)]
    timer.prepare(choices)
    assert len(loads) == 2
    timer.us(choices[1])
    assert len(loads) == 2
    timer.us(choices[1])
    assert len(loads) == 3
    timer.prepare([])
    timer.us(choices[0])
    assert len(loads) == 4


def test_a_search_says_what_comes_next() -> None:
    told: list[list[Choice]] = []
    asked: list[Choice] = []
    search(LLAMA, SM_90, lambda choice: asked.append(choice) or 7.0, prepare=lambda c: told.append(list(c)))
    prepared = [choice for part in told for choice in part]
    assert prepared == asked[: len(prepared)], "all but the few that are measured again"
    assert len(asked) - len(prepared) <= 1 + FINALISTS


def test_quarters_of_caches_do_not_overlap() -> None:
    """Each reads 32 positions of every KV head, and no two the same."""
    (launches,) = Timer(running_device(), Job(4, 2, 16, "f16", 128, fills=(0.25,)), SM_90, sets=2).launches
    read: set[int] = set()
    for caches in launches._caches(0):
        start = caches["k_cache"].pointer
        assert start + caches["k_cache"].nbytes <= launches.pools["k_cache"].pointer + launches.pools["k_cache"].nbytes
        rows = {start + 32 * (128 * head + position) for head in range(2) for position in range(32)}
        assert not rows & read
        read |= rows
    assert len(read) == 2 * 4 * 2 * 32


@pytest.mark.parametrize("kv_dtype", ["f16", "e4m3"])
def test_another_result_than_before_is_refused(kv_dtype: str) -> None:
    job = Job(4, 2, 16, kv_dtype, 600)
    timer = Timer(running_device(), job, SM_90, sets=1)
    default = choice_of(job.spec.attention, SM_90, batched=False)
    timer.us(default)
    timer.us(Choice(2, 1, 8, 1, 4096))
    timer.launches[0].expected[0] += 1
    with pytest.raises(PtxgenError, match=r"Choice.*another result than before"):
        timer.us(default)


def test_caches_that_do_not_fit_are_refused() -> None:
    device, binding = fake_device()
    binding.free_bytes = 1 << 20
    with pytest.raises(PtxgenError, match=r"32/8/128 f16, 8192 positions, one sequence: needs 0\.4 GB of caches"):
        Timer(device, LLAMA, SM_90)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of some choices, not of some hundred."""
    for axis in ("_WAVES", "_WARPS", "_IN_FLIGHT", "_MERGERS"):
        monkeypatch.setattr(jobs, axis, getattr(jobs, axis)[:2])


@pytest.mark.usefixtures("few_choices")
def test_it_writes_the_rows_that_are_faster(
    clock: CudaDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "own.json"
    assert invoke(["tune", *SMALL, "-o", str(path)]) == 0
    said = capsys.readouterr().err
    assert f"1 row written to {path}" in said
    assert f"export PTXGEN_TUNING={path}" in said
    (row,) = Table.read(path).rows
    assert dict(row.where) == {"sm": "sm_90", "head_dim": 16, "group": 2, "n_kv_heads": 2, "kv_dtype": "f16",
                               "capacity": (301, 600), "batched": False, "programmatic": False}  # fmt: skip
    assert dict(row.choose)["warps"] == 2
    text = path.read_text()
    with using(path):  # what is in force now is the best: nothing is written, and other rows stay
        assert invoke(["tune", *SMALL, "-o", str(path)]) == 0
    assert "0 rows written" in capsys.readouterr().err
    assert path.read_text() == text
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    assert invoke(["tune", *SMALL[:3], "700", "--batch", "2", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["row"]
    assert found["before_us"] == pytest.approx(2 * found["best_us"])
    assert len(Table.read(path).rows) == 2


def test_where_the_table_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    monkeypatch.delenv(tuning.VARIABLE, raising=False)
    assert tune._path(None, False) == Path("/somewhere/ptxgen/tuning.json")
    assert tune._path(None, True) == Path(tuning.SHIPPED)
    monkeypatch.setenv(tuning.VARIABLE, "/own.json")
    assert tune._path(None, False) == Path("/own.json")
    assert tune._path("x.json", False) == Path("x.json")


def test_time_ends_between_classes(clock: CudaDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL, "--capacity", "100", "--seconds", "0.000001", "-o", str(tmp_path / "own.json")]
    assert invoke(["tune", *options]) == 0
    assert "0 rows written" in (said := capsys.readouterr().err)
    assert "2 classes were not measured" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("few_choices")
def test_dry_run_shows_every_class_and_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(CONFIGS / "tinyllama-1.1b.json")
    options = ["--config", config, "--heads", "4/2/16", "--capacity", "512", "--capacity", "4096", "--kv-dtype", "e4m3"]
    assert invoke(["tune", *options, "--target", "sm_90", "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [line["job"] for line in shown] == [
        f"{heads} e4m3, {capacity} positions, {batches}"
        for heads, most in (("4/2/16", 4096), ("32/4/64", 2048))
        for capacity in (512, most)
        for batches in ("one sequence", "batches of 8, 32")
    ]
    assert all(line["choices"] > 5 for line in shown)
    assert shown[0]["now"].keys() == {each.name for each in dataclasses.fields(Choice)}
    assert invoke(["tune", *options, "--target", "sm_90", "--dry-run"]) == 0
    assert "32/4/64 e4m3, 2048 positions, batches of 8, 32" in capsys.readouterr().out


def test_without_a_gpu_it_says_so_in_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str) -> None:
        raise CudaError("cuInit: no CUDA device\nmore about it")

    monkeypatch.setattr("ptxgen.runtime.open_device", none)
    assert invoke(["tune", *SMALL]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "ptxgen: tune: needs a GPU to measure on, and there is none to use (cuInit: no CUDA device); "
    )
    assert said.endswith("; --dry-run with --target needs none\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "tune: --heads, --config or --product: is needed"),
        (["--product", "64/q4_k"], "--product: must be NxK/FORMAT, as 4096x14336/q4_k (got '64/q4_k')"),
        (["--product", "64x512/q9"], "weights"),
        (["--product", "64x512/f32"], "--product: has no tensor cores, and so nothing to choose (got 64 x 512 f32)"),
        (["--heads", "32/8"], "--heads: must be Q/KV/DIM, as 32/8/128 (got '32/8')"),
        (["--heads", "32/5/128"], "n_heads: must be a multiple of n_kv_heads"),
        (["--heads", "32/8/128", "--kv-dtype", "f8"], "--kv-dtype: must be one of f32"),
        ([*SMALL, "--device", "cpu"], "--device: tune measures on a GPU: must be cuda or cuda:N (got 'cpu')"),
        ([*SMALL, "--shipped", "-o", "x.json"], "tune: -o or --shipped, not both"),
        ([*SMALL, "--fill", "0"], "--fill"),
        ([*SMALL, "--gain", "-1"], "--gain"),
    ],
)
def test_wrong_use_is_told(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["tune", *options]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_table_that_is_wrong_is_told_before_anything_is_measured(
    clock: CudaDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.json"
    path.write_text('{"rows": 3}')
    assert invoke(["tune", *SMALL, "-o", str(path)]) == 2
    assert f"{path}: rows must be a list" in capsys.readouterr().err
    assert path.read_text() == '{"rows": 3}'


# -- products ----------------------------------------------------------------------------------------------------------

PRODUCT = ProductJob(64, 2048, "q4_k")


def test_the_search_of_a_product_finds_what_is_fastest() -> None:
    job = ProductJob(4096, 8192, "q4_k")
    asked: list[ProductChoice] = []
    told: list[ProductChoice] = []

    def us(choice: ProductChoice) -> float:
        asked.append(choice)
        return 10 + abs(choice.warps - 4) + abs(choice.stages - 2)

    found = search_product(job, SM_90, us, prepare=told.extend)
    assert found.before == job.before(SM_90)
    assert (found.best.warps, found.best.stages, found.best_us) == (4, 2, 10)
    assert found.better
    assert asked[: len(told)] == told
    runs = [job.runs(SM_90, choice) for choice in told]
    assert len(set(runs)) == len(runs) == found.measured > 5


def test_a_row_of_a_product_is_found_again() -> None:
    choice = ProductChoice(3, 2, 2)
    with using(Table(products=(PRODUCT.row(SM_90, choice, ""),))):
        assert PRODUCT.before(SM_90) == choice
        assert ProductJob(64, 2048, "q4_k", gated=True).before(SM_90) != choice


def test_the_timer_of_a_product_takes_every_copy_of_the_weights_in_turn() -> None:
    device = running_device()
    timer = ProductTimer(device, PRODUCT, SM_90, sets=3)
    choices = list(PRODUCT.choices(SM_90))[:2]
    timer.prepare(choices)
    assert [timer.us(choice) for choice in choices] == pytest.approx([1.5e3 / 9] * 2)
    assert timer._expected is not None
    assert np.isfinite(timer._expected).all()
    timer._expected = timer._expected + np.float32(1)
    with pytest.raises(PtxgenError, match=r"64 x 2048 q4_k with .*another result than before"):
        timer.us(choices[0])


def test_weights_that_do_not_fit_are_refused() -> None:
    device, binding = fake_device()
    binding.free_bytes = 1 << 20
    with pytest.raises(PtxgenError, match=r"tune: 64 x 2048 q4_k: needs 0\.0 GB of weights"):
        ProductTimer(device, PRODUCT, SM_90)


def test_it_writes_the_rows_of_products(
    clock: CudaDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_jobs, "_WARPS", (2, 4))
    monkeypatch.setattr(product_jobs, "_STAGES", (2,))
    path = tmp_path / "own.json"
    assert invoke(["tune", "--product", "64x2048/q4_k", "-o", str(path)]) == 0
    assert f"1 row written to {path}" in capsys.readouterr().err
    (row,) = Table.read(path).products
    assert dict(row.where) == {"sm": "sm_90", "weights": "q4_k", "n": 64, "k": 2048, "gated": False,
                               "programmatic": False}  # fmt: skip
    assert dict(row.choose)["warps"] == 2
    assert not Table.read(path).rows


def test_products_of_a_model_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(CONFIGS / "tinyllama-1.1b.json")
    options = ["--config", config, "--weights", "q4_k", "--capacity", "512", "--batch", "1"]
    assert invoke(["tune", *options, "--target", "sm_90", "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [line["job"] for line in shown[1:]] == [
        "2560 x 2048 q4_k", "2048 x 2048 q4_k", "5632 x 2048 q4_k, gate and up", "2048 x 5632 q4_k", "32000 x 2048 q4_k"
    ]  # fmt: skip
    assert shown[1]["now"].keys() == {"warps", "stages", "ctas", "split", "x_first"}
