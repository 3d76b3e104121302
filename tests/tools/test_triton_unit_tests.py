"""Triton's own unit tests: what is drawn, what a failure is put down to, the guide's table of the committed rows."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tools.triton_unit_tests import (
    GUIDE,
    PARTS,
    REASONS,
    Plugin,
    main,
    part_of,
    read,
    reason_of,
    table,
    with_table,
)


@pytest.mark.parametrize(
    ("name", "part"),
    [("test_reduce1d", "reductions"), ("test_argmax_argmin_with_nan", "reductions"), ("test_scan2d", "scans"),
     ("test_side_effectful_scan", "scans"), ("test_tensor_atomic_cas", "atomics"), ("test_dot3d", "dots"),
     ("test_sort", "sorts"), ("test_flip", ""), ("test_bin_op", "")],
)  # fmt: skip
def test_a_function_belongs_to_the_part_of_its_name(name, part):
    assert part_of(name) == part


@pytest.mark.parametrize(
    ("message", "reason"),
    [("triton.compiler.errors.CompilationError: at 1:0", "refused by Triton's compiler for the target"),
     ("ptxgen.errors.ExecutionError: race in kernel k", "a finding of the executor"),
     ("AssertionError: Not equal to tolerance", "another number than the test expects"),
     ("tests.tools.triton_unit_tests._OutOfTime: not over after 60 s", "does not end in the time given"),
     ("ValueError: too many indices for tensor of rank 0", "indexes a scalar, which this version of Triton refuses"),
     ("ModuleLoadError: module:3: cvt.rn.f16x2.e4m3x2 needs PTX ISA 8.1, sm_89 because of cvt; the target is sm_80",
      "Triton's PTX has what the target has not, so that ptxas refuses it, too"),
     ("KeyError: 'x'", "another error")],
)  # fmt: skip
def test_a_failure_is_put_down_to_what_its_message_says(message, reason):
    assert reason_of(message) == reason


def test_the_draw_has_some_cases_of_each_function_and_is_the_same_again():
    def drawn(seed):
        cases = [
            (name, n) for name, count in (("test_dot", 50), ("test_sort", 2), ("test_flip", 9)) for n in range(count)
        ]
        items = [SimpleNamespace(originalname=name, name=f"{name}[{n}]") for name, n in cases]
        plugin = Plugin(each=5, seed=seed, seconds=1, only="")
        plugin.pytest_collection_modifyitems(None, items)
        assert plugin.collected == {"test_dot": 50, "test_sort": 2}
        return [item.name for item in items]

    assert len(drawn(1)) == 7
    assert drawn(1) == drawn(1) != drawn(2)


def test_a_row_says_what_failed_without_the_folder_of_the_checkout():
    plugin = Plugin(each=1, seed=1, seconds=1, only="", base=Path("/somewhere/python"))
    crash = SimpleNamespace(message="AssertionError: /somewhere/python/test_core.py:7:\n  Not equal")
    said = SimpleNamespace(reprcrash=crash)
    plugin.pytest_runtest_logreport(
        SimpleNamespace(when="call", outcome="failed", nodeid="a/test_core.py::test_dot", longrepr=said)
    )
    (row,) = plugin.rows
    assert row["says"] == "AssertionError: test_core.py:7: Not equal"
    assert row["reason"] == "another number than the test expects"


def test_a_folder_without_the_tests_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"test_core\.py.*no such file; FOLDER must be a checkout of Triton"):
        main([str(tmp_path), "--of", "a 1"])


def test_the_guide_has_the_table_of_the_rows():
    guide = GUIDE.read_text(encoding="utf-8")
    assert with_table(guide) == guide


def test_the_rows_say_why_a_test_failed_and_are_of_all_parts():
    records = read()
    assert {(r["mode"], r["target"]) for r in records} >= {("fast", "sm_80"), ("check", "sm_80")}
    for record in records:
        assert {part_of(name) for name in record["collected"]} == set(PARTS)
        for row in record["rows"]:
            assert row["outcome"] in ("passed", "failed", "skipped")
            assert row["outcome"] == "passed" or row["says"]
            assert row["outcome"] != "failed" or row["reason"] in dict(REASONS)
        counted = sum(row["outcome"] == "passed" for row in record["rows"])
        assert f"| all | {sum(record['collected'].values()):,} |" in table([record])
        assert f"| {counted} |" in table([record])
