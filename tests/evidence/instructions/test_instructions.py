"""Every instruction form on the CPU executor and on the NumPy oracle, against results recorded on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.evidence.devices import open_device
from tests.evidence.instructions import bounds, record, report
from tests.evidence.instructions.catalogue import FORMS, TOPICS, entries
from tests.evidence.instructions.form import Entry, Form
from tests.evidence.instructions.runner import differences, float_view, run
from tests.evidence.oracle import Oracle

ENTRIES = {f"{topic}-{n}": e for topic in TOPICS for n, e in enumerate(entries(topic))}


@pytest.fixture(scope="module")
def recorded():
    assert record.OUTPUT.exists(), (
        f"no {record.OUTPUT.name}: python -m tests.evidence.instructions.record on a GPU makes it"
    )
    return record.load()


def test_every_form_was_recorded_as_it_is_now(recorded):
    results, digests, meta = recorded
    assert meta["refused"] == {}
    assert sorted(set(FORMS) - set(results)) == []
    assert sorted(n for n, f in FORMS.items() if digests[n] != f.digest) == []


def compare(form: Form, got: list[np.ndarray], expected: list[np.ndarray]) -> list[str]:
    """What is wrong with one form's results: bits, or an error over its bound."""
    if form.exact:
        return differences(form, got, expected)
    if form.name.startswith("mma"):
        limit = bounds.sum_bound(form)
        far = [np.abs(np.subtract(float_view(a, _held(form)), float_view(b, _held(form)))).max()
               for a, b in zip(got, expected, strict=True)]  # fmt: skip
        return [f"{form.name}: {max(far):.3g} from the recorded sums, over {limit:.3g}"] if max(far) > limit else []
    found = bounds.errors(form, got[0], expected[0])
    if found.share <= 1 and not found.special:
        return []
    return [f"{form.name}: {found.share:.3g} of its bound, {found.ulp:.3g} ulp; {found.special} zeros, inf or NaN"]


def _held(form: Form) -> str:
    return "f16x2" if form.results[0] == "b32" else form.results[0]


def check(entry: Entry, device, recorded) -> None:
    results, expected = run(entry, device), recorded[0]
    missing = [f.name for f in entry.forms if f.name not in expected]
    assert not missing, f"never recorded: {missing}"
    wrong = [line for f in entry.forms for line in compare(f, results[f.name], expected[f.name])]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("mode", ["fast", "check"])
@pytest.mark.parametrize("name", ENTRIES)
def test_the_cpu_executor_agrees_with_the_gpu(name, mode, recorded):
    check(ENTRIES[name], open_device(mode), recorded)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_oracle_agrees_with_the_gpu(name, recorded):
    check(ENTRIES[name], Oracle(), recorded)


def test_the_gpu_keeps_the_bounds_that_the_isa_states(recorded):
    approximate = [f for f in FORMS.values() if not f.exact and not f.name.startswith("mma")]
    shares = {f.name: bounds.errors(f, recorded[0][f.name][0], recorded[0][f.name][0]).share for f in approximate}
    assert {n: s for n, s in shares.items() if s > 1} == {}


def test_a_wrong_bit_is_reported(recorded):
    form = FORMS["add.s32"]
    good = recorded[0]["add.s32"]
    bad = [good[0].copy()]
    bad[0][7] ^= 1
    assert compare(form, good, good) == []
    assert "1 of 256 differ" in compare(form, bad, good)[0]


def test_an_approximation_off_by_three_bits_is_reported(recorded):
    form = FORMS["ex2.approx.f32"]
    bad = [recorded[0][form.name][0] + np.uint32(8)]
    assert "of its bound" in compare(form, bad, recorded[0][form.name])[0]


def test_the_recorder_takes_a_failing_group_apart_and_goes_on(tmp_path):
    output = tmp_path / "few.npz"
    assert record.main(["--device", "oracle", "--only", "lop3", "--output", str(output)]) == 0
    results, digests, meta = record.load(output)
    assert set(results) == {n for n in FORMS if "lop3" in n}
    assert all(digests[n] == FORMS[n].digest for n in results)
    recorder = record.Recorder([["add.s32", "sub.s32"]], "oracle")
    recorder._apart(["add.s32", "sub.s32"], "no such entry")
    assert recorder.waiting[1:] == [["add.s32"], ["sub.s32"]]
    recorder._apart(["add.s32"], "no such entry")
    assert recorder.refused == {"add.s32": "no such entry"}
    assert meta["device"] == "the NumPy oracle"


def test_the_documented_errors_are_the_present_ones():
    page = Path(__file__).parents[3] / "docs" / "approximations.md"
    assert page.read_text() == report.text()


def test_the_documents_count_the_forms_that_were_recorded(recorded):
    docs = Path(__file__).parents[3] / "docs"
    made = report.counts()
    with np.load(record.OUTPUT) as file:
        names = len(set(file["names"].tolist()))
    assert made["recorded"] == names == len(recorded[0]) == made["exact"] + made["approximate"] + made["sums"]
    page = (docs / "approximations.md").read_text(encoding="utf-8")
    assert f"results of {names} instruction forms were recorded" in page
    assert page.count("\n| `") == made["approximate"]
    assert f"Of {names} recorded instruction forms" in (docs / "cpu-executor.md").read_text(encoding="utf-8")
