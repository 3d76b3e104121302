"""Marks that several test files share."""

from __future__ import annotations

import pytest

from ptxgen.assembler import available_assemblers

needs_assembler = pytest.mark.skipif(
    not available_assemblers(), reason="no assembler is installed (pip install 'ptxgen[ptxas]')"
)
