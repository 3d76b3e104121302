"""Sizes of declared variables and of parameter lists, in bytes."""

from __future__ import annotations

import re

from ptxgen.nodes import Variable

_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def variable_bytes(variable: Variable) -> int:
    """Bytes of one variable; an unsized array counts 0."""
    digits = re.sub(r"^[a-z]+|x2$", "", variable.type)
    count = variable.vector or 1
    for extent in variable.dims:
        count *= extent
    return _SIZES.get(digits, 8) * count


def parameter_bytes(params: tuple[Variable, ...]) -> int:
    """Bytes of a parameter list, each aligned to its size or its `.align`."""
    end = 0
    for param in params:
        size = variable_bytes(param)
        align = param.align or (size if not param.dims else size // max(1, param.dims[0]))
        end = -(-end // max(1, align)) * max(1, align) + size
    return end
