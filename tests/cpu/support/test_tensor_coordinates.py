"""Facts about coordinates of bulk tensor copies that a GPU refuses: findings, faults of the oracle, and a GPU's word.

An H200 ends two kinds with an illegal instruction: an innermost coordinate that is no multiple of 16 bytes, and a
negative one of a store or a reduction.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.runtime import open_device
from tests.evidence.oracle import Oracle
from tests.evidence.oracle.memory import OracleFault
from tests.support.tensor_copy import BODIES, numbers, run

ROOT = Path(__file__).resolve().parents[3]
# What a GPU ends with an illegal instruction: a copy; its innermost coordinate, the same in bytes, elements in 16 bytes
CROOKED = {
    "s32, past the end": (("s32", (5, 8), (2, 4), (1, 1), (1, 6), 0, "zero"), (6, 24, 4)),
    "s32, inside": (("s32", (5, 8), (2, 4), (1, 1), (1, 2), 0, "zero"), (2, 8, 4)),
    "s32, before": (("s32", (8,), (4,), (1,), (-1,), 0, "zero"), (-1, -4, 4)),
    "bf16": (("bf16", (4, 64), (2, 24), (1, 1), (3, 60), 0, "zero"), (60, 120, 8)),
    "u64, swizzled": (("u64", (3, 2, 16), (1, 2, 16), (1, 1, 1), (0, 0, 1), 128, "zero"), (1, 8, 2)),
}
# The same: a store or a reduction; the dimension in which it begins before the array.
NEGATIVE = {
    "innermost": (("s32", (5, 8), (2, 4), (1, 1), (1, -4), 0, "zero"), 0),
    "a row": (("f16", (5, 40), (4, 16), (1, 1), (-1, 32), 32, "zero"), 1),
    "outermost": (("u64", (3, 2, 2, 2, 4), (2, 1, 1, 1, 4), (1,) * 5, (-3, 0, 1, 0, 2), 0, "zero"), 4),
}


def attempt(device, body, name):
    """Ask a device for the load, store or reduction of this name."""
    case = (CROOKED | NEGATIVE)[name][0]
    array = numbers(case[0], case[1])
    run(device, BODIES[body], case, array, np.zeros(int(np.prod(case[2])) * array.dtype.itemsize, np.uint8))


def refused(name, body, mode, rule):
    """A copy that a GPU does not make is a finding with its place and the rule, and a fault of the oracle."""
    lines = [r"\S+:\d+: .*async\.bulk\.tensor\..*;", r"CTA \(0, 0, 0\), warp 0, lane 0", rule]
    with pytest.raises(ExecutionError, match="\n  ".join(["^wrong use in kernel k", *lines]) + "$"):
        attempt(open_device("cpu", mode=mode, threads=1), body, name)
    with pytest.raises(OracleFault, match=r"no multiple of 16 bytes|before the array"):
        attempt(Oracle(), body, name)


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", CROOKED)
def test_an_innermost_coordinate_between_multiples_of_16_bytes_is_found(name, body, mode):
    _, (coordinate, byte, elements) = CROOKED[name]
    said = rf"the innermost coordinate \(.*\) is {coordinate}, byte {byte} of a row: it must be"
    legal = f"a multiple of 16 bytes, here of {elements} elements, or a GPU ends this with an illegal instruction"
    refused(name, body, mode, f"{said} {legal}")


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
@pytest.mark.parametrize("body", ["store", "reduction"])
@pytest.mark.parametrize("name", NEGATIVE)
def test_a_store_that_begins_before_the_array_is_found(name, body, mode):
    case, dimension = NEGATIVE[name]
    said = rf"coordinate {dimension} \(.*\) is {case[4][::-1][dimension]}: a store or a reduction must begin at 0 or"
    legal = "above in every dimension, or a GPU ends this with an illegal instruction; only loads may begin before .*"
    refused(name, body, mode, f"{said} {legal}")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("body", "name"), [*((body, "s32, inside") for body in BODIES), ("load", "u64, swizzled"), ("store", "a row")]
)
def test_a_gpu_ends_what_is_a_finding_here(body, name, gpu):
    """Each in a process of its own: after an illegal instruction nothing runs in it any more."""
    program = (
        "import sys; from ptxgen.runtime import open_device\n"
        "from tests.cpu.support.test_tensor_coordinates import attempt\n"
        "attempt(open_device('cuda'), *sys.argv[1:])"
    )
    done = subprocess.run([sys.executable, "-c", program, body, name], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0, "the copy was made"
    assert "CUDA_ERROR_ILLEGAL_INSTRUCTION" in done.stderr
