"""Weight formats: a file each. How a matrix lies in memory, in NumPy and as one lane of a warp reads it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat


@cache
def weight_formats() -> Mapping[str, WeightFormat]:
    """Every weight format by its name, read-only."""
    import importlib
    import pkgutil

    files = sorted(each.name for each in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"ptxgen.weights.{name}") for name in files]
    return MappingProxyType({made.name: made for module in modules for made in getattr(module, "FORMATS", ())})


def weight_format(name: str) -> WeightFormat:
    """The format of a name. Raises `SpecError` with the nearest for another."""
    import difflib

    from ptxgen.errors import SpecError

    found = weight_formats().get(name)
    if found is None:
        close = difflib.get_close_matches(name, weight_formats(), 1)
        nearest = f"; nearest: {close[0]}" if close else ""
        raise SpecError(f"weights: must be one of {', '.join(weight_formats())} (got {name!r}{nearest})")
    return found


__all__ = ["weight_format", "weight_formats"]
