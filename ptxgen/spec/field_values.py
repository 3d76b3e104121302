"""The value of one field of a spec: brought to its annotated type, and as a word of a file name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

from ptxgen.dtypes import DType, dtype
from ptxgen.errors import SpecError, brief


def coerce(field: dataclasses.Field[Any], value: object) -> tuple[object, str]:
    """The value in the field's type, and the reason why it does not fit (empty when it does).

    A name that is no dtype comes back as a dtype of that name, so that the kernel type's own rule can name its choices.
    """
    kind, may_be_none = _kind(str(field.type))
    bring = _KINDS.get(kind)
    if bring is None or (value is None and may_be_none):
        return value, ""
    if getattr(value, "shape", None) == () and kind in _SCALARS:  # NumPy's scalars
        value = value.item()  # type: ignore[attr-defined]
    found, rule = bring(value)
    return found, f"{field.name}: {rule} (got {brief(value)})" if rule else ""


@cache
def _kind(annotation: str) -> tuple[str, bool]:
    plain = annotation.replace(" ", "")
    return plain.removesuffix("|None"), plain.endswith("|None")


def _int(value: object) -> tuple[object, str]:
    return value, "" if type(value) is int else "must be an int"


def _bool(value: object) -> tuple[object, str]:
    return value, "" if type(value) is bool else "must be a bool"


def _str(value: object) -> tuple[object, str]:
    return value, "" if type(value) is str else "must be a str"


def _float(value: object) -> tuple[object, str]:
    """0.0 for -0.0: equal specs are one text."""
    if type(value) not in (int, float):
        return value, "must be a float"
    try:
        return float(value) + 0.0, ""  # type: ignore[arg-type]
    except OverflowError:
        return value, "must be a float"


def _floats(value: object) -> tuple[object, str]:
    try:
        return tuple(float(item) + 0.0 for item in value), ""  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError):
        return value, "must be a sequence of numbers"


def _dtype(value: object) -> tuple[object, str]:
    try:
        return dtype(value), ""
    except SpecError as wrong:
        return DType(str(value), 32, "float32"), str(wrong).removeprefix("dtype: ").partition(" (got ")[0]


_SCALARS = frozenset({"int", "bool", "float", "str"})
_KINDS: dict[str, Callable[[object], tuple[object, str]]] = {
    "int": _int, "bool": _bool, "float": _float, "str": _str, "tuple[float,...]": _floats, "DType": _dtype,
}  # fmt: skip


def slug_word(name: str, value: object) -> str:
    """One field in a file name: `l64`, `f16`, `q_bf16`, `indirect`, `no_causal`, `layout_heads`; `name` as it is
    there."""
    if isinstance(value, bool):
        return name if value else f"no_{name}"
    if isinstance(value, float):
        short = f"{value:g}"
        return f"{name}{short if float(short) == value else repr(value)}"
    if isinstance(value, int):
        return f"{name}{value}"
    if isinstance(value, tuple):
        import hashlib  # loads OpenSSL, which no other spec needs

        return f"{name}_{hashlib.sha256(repr(value).encode()).hexdigest()[:8]}"
    return "_".join(filter(None, (name.removesuffix("_dtype"), str(value).lower())))
