"""The kernel types that tests of every kernel type run over: ours, or those of another package.

PTXGEN_TEST_PACKAGE=my_package PTXGEN_TEST_GOLDENS=path/to/golden_ptx pytest -k my_kernel
"""

from __future__ import annotations

import os
from pathlib import Path

from ptxgen.kernel import KernelType, kernel_types
from ptxgen.packages import OURS, package_of
from ptxgen.targets import target

PACKAGE = os.environ.get("PTXGEN_TEST_PACKAGE", OURS)
GOLDENS = Path(os.environ.get("PTXGEN_TEST_GOLDENS", Path(__file__).resolve().parents[2] / "golden_ptx"))
EVERY = {name: cls for name, cls in kernel_types().items() if package_of(cls) == PACKAGE}
TYPES = {name: cls for name, cls in EVERY.items() if cls.goldens}  # tests/package/test_spec_space.py names the others
NAMES = sorted(TYPES)


def usual_target(cls: type[KernelType]) -> str:
    """sm_90, or the lowest that a kernel type has where that is none of it."""
    return "sm_90" if target("sm_90").includes(target(cls.lowest_target)) else cls.lowest_target
