"""Marks that several test files share."""

from __future__ import annotations

import pytest

from ptxgen.assembler import available_assemblers

needs_assembler = pytest.mark.skipif(
    not available_assemblers(), reason="no assembler is installed (pip install 'ptxgen[ptxas]')"
)
needs_ptxas = pytest.mark.skipif(
    not any(each.path for each in available_assemblers()),
    reason="needs a ptxas (pip install 'ptxgen[ptxas]'): nvJitLink leaves setmaxnreg out",
)
