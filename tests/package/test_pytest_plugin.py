"""The pytest plug-in: tests with `ptx_device` in every mode, findings as failures with source lines."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.evidence.known_races.pair import pairs

pytest_plugins = "pytester"
PLUGIN = ("-p", "ptxgen.testing.pytest_plugin", "-p", "no:cacheprovider")
TEST = """
TEXT = {text!r}

def test_sum(ptx_device):
    out = ptx_device.zeros(64, "u32")
    ptx_device.module(TEXT, "k.ptx")["k"].launch(1, 64, [out])
    assert (out.numpy() == 7).all()
"""


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def made(broken: bool, *options: str):
        text = pairs()["broadcast_without_barrier"].source(broken)
        text = text.replace(".address_size 64", '.address_size 64\n.file 1 "test_it.py"', 1)
        text = text.replace("  ld.shared.u32 %x0, [s];", "  .loc 1 4 0\n  ld.shared.u32 %x0, [s];", 1)
        pytester.makepyfile(test_it=TEST.format(text=text))
        return pytester.runpytest_inprocess(*PLUGIN, *options)

    return made


def test_without_the_option_tests_run_once(run):
    run(True).assert_outcomes(passed=1)


def test_with_it_they_run_in_every_mode_and_findings_fail_with_their_source(run):
    result = run(True, "--ptx-check", "--ptx-seeds", "2", "-v")
    text = result.stdout.str()
    assert "test_sum[fast] PASSED" in text
    assert "test_sum[random-1]" in text
    assert "test_sum[check] FAILED" in text
    result.stdout.fnmatch_lines([
        "race in kernel k", "*k.ptx:*: ld.shared.u32 %x0, *test_it.py:4*",
        '*test_it.py:4 | out = ptx_device.zeros(64, "u32")', '*test_it.py:5: ptx_device.module(TEXT, "k.ptx")*',
    ])  # fmt: skip


def test_the_mended_one_passes(run):
    run(False, "--ptx-check", "--ptx-seeds", "1").assert_outcomes(passed=3)


def test_a_number_of_orders_below_zero_is_refused(run):
    result = run(False, "--ptx-check", "--ptx-seeds", "-1")
    assert "--ptx-seeds: must be an integer ≥ 0 (got '-1')" in result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_it_costs_those_who_do_not_use_it_next_to_nothing():
    code = "import sys, ptxgen.testing.pytest_plugin; print([m for m in sys.modules if 'numpy' in m or 'llvm' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
