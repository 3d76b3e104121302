"""Weight formats: a file each. How a matrix lies in memory, in NumPy and as one lane of a warp reads it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

__all__ = ["WeightFormat", "weight_format", "weight_formats"]


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
    from ptxgen.errors import SpecError, nearest

    found = weight_formats().get(name)
    if found is None:
        raise SpecError(
            f"weights: must be one of {', '.join(weight_formats())} (got {name!r}{nearest(name, weight_formats())})"
        )
    return found


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """`WeightFormat`, whose module needs numpy, when it is first used."""
    if name == "WeightFormat":
        from ptxgen.weights.format import WeightFormat

        return WeightFormat
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
