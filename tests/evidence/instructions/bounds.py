"""What approximations may differ by: the bounds that the PTX ISA states, and the true values to measure against.

ISA 9.7.3 (f32, f64), 9.7.4.11 and .12 (half precision), 9.7.14 (mma leaves the order and width of its sums open).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.evidence.instructions.form import Form
from tests.evidence.instructions.runner import float_view


@dataclass(frozen=True)
class Bound:
    """`relative` to the true value, `absolute`, or in `ulp` of the result's format: the largest of them holds.

    Beyond `near` in magnitude of the argument, `far` is the absolute bound.
    """

    true: Callable[..., np.ndarray]
    relative: float = 0.0
    absolute: float = 0.0
    ulp: float = 0.0
    near: float = np.inf
    far: float = 0.0


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a / b


# The instruction without .ftz; a half-precision form where it has its own bound.
BOUNDS: dict[str, Bound] = {
    "rcp.approx.f32": Bound(lambda x: 1 / x, ulp=1), "rsqrt.approx.f32": Bound(lambda x: 1 / np.sqrt(x), 2.0**-22.9),
    "sqrt.approx.f32": Bound(np.sqrt, 2.0**-23 * 1.5), "lg2.approx.f32": Bound(np.log2, 2.0**-22, 2.0**-22),
    "sin.approx.f32": Bound(np.sin, absolute=2.0**-20.5, near=2 * np.pi, far=2.0**-14.7),
    "cos.approx.f32": Bound(np.cos, absolute=2.0**-20.5, near=2 * np.pi, far=2.0**-14.7),
    "ex2.approx.f32": Bound(np.exp2, ulp=2), "tanh.approx.f32": Bound(np.tanh, 2.0**-10.98, 2.0**-24),
    "div.approx.f32": Bound(_divide, ulp=2), "div.full.f32": Bound(_divide, ulp=2),
    "ex2.approx.f16": Bound(np.exp2, 2.0**-9.9, 2.0**-25), "ex2.approx.f16x2": Bound(np.exp2, 2.0**-9.9, 2.0**-25),
    "ex2.approx.bf16": Bound(np.exp2, 2.0**-7, 2.0**-130), "ex2.approx.bf16x2": Bound(np.exp2, 2.0**-7, 2.0**-130),
    "tanh.approx.f16": Bound(np.tanh, absolute=2.0**-10.9), "tanh.approx.f16x2": Bound(np.tanh, absolute=2.0**-10.9),
    "tanh.approx.bf16": Bound(np.tanh, absolute=2.0**-7.9), "tanh.approx.bf16x2": Bound(np.tanh, absolute=2.0**-7.9),
    "rcp.approx.f64": Bound(lambda x: 1 / x, 2.0**-19), "rsqrt.approx.f64": Bound(lambda x: 1 / np.sqrt(x), 2.0**-19),
}  # fmt: skip
# mma on spread values: how far sums of magnitude 16 may be apart, by (A's type, accumulator). A GPU aligns its products
# before it adds them and drops bits.
SUMS = {("f16", "f16"): 2.0**-7, ("f16", "f32"): 2.0**-18, ("bf16", "f32"): 2.0**-18, ("tf32", "f32"): 2.0**-18,
        ("f64", "f64"): 2.0**-48, ("e4m3", "f32"): 2.0**-18, ("e5m2", "f32"): 2.0**-18}  # fmt: skip
FRACTION = {"f16": (10, -14), "bf16": (7, -126), "f32": (23, -126), "f64": (52, -1022)}


def ulp_of(value: np.ndarray, type_: str) -> np.ndarray:
    """The distance of neighbours in a format at `value`."""
    fraction, least = FRACTION[type_.removesuffix("x2")]
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.floor(np.log2(np.abs(value)))
    exponent = np.where(np.isfinite(exponent), exponent, least)
    return 2.0 ** (np.maximum(exponent, least) - fraction)


def stem(form: Form) -> str:
    """The key of `BOUNDS`."""
    return form.name.removesuffix(" edges").replace(".ftz", "")


@dataclass(frozen=True)
class Errors:
    """Errors of one approximation against the true value: the largest in ulp, and the share of the bound it uses."""

    ulp: float
    share: float
    special: int


def errors(form: Form, row: np.ndarray, recorded: np.ndarray | None = None) -> Errors:
    """Errors where the true value is an ordinary number; `special` counts zeros, infinities and NaN that differ.

    With `recorded`, the recorded results say what is special; otherwise the true value, flushed as the form flushes.
    """
    with np.errstate(all="ignore"):
        return _errors(form, BOUNDS[stem(form)], row, recorded)


def _errors(form: Form, bound: Bound, row: np.ndarray, recorded: np.ndarray | None) -> Errors:
    type_ = form.results[0]
    got = float_view(row, type_)
    inputs = [float_view(v, k) for v, k in zip(_narrow_inputs(form), _types(form), strict=True)]
    if "ftz" in form.name:
        inputs = [np.where(np.abs(v) < _least(type_), np.multiply(v, 0), v) for v in inputs]
    true = bound.true(*inputs)
    least = _least(type_)
    model = float_view(recorded, type_) if recorded is not None else _flushed(true, type_, "ftz" in form.name)
    ordinary = np.isfinite(model) & (model != 0) & np.isfinite(true) & (np.abs(true) >= least)
    special = ~ordinary & ~(np.isfinite(model) & (model != 0))
    special &= ~((np.abs(true) < 2 * _smallest(type_)) & (np.abs(got) <= _smallest(type_)))
    agree = (got == model) & (np.signbit(got) == np.signbit(model)) | (np.isnan(got) & np.isnan(model))
    distance = np.abs(np.where(ordinary, got - true, 0.0))
    absolute = np.where(np.abs(inputs[0]) > bound.near, bound.far, bound.absolute)
    limit = np.maximum.reduce([bound.relative * np.abs(true), absolute, bound.ulp * ulp_of(true, type_)])
    share = np.where(ordinary, distance / np.where(ordinary, limit, 1.0), 0.0)
    in_ulp = np.where(ordinary, distance / ulp_of(np.where(ordinary, true, 1.0), type_), 0.0)
    largest = float(np.nan_to_num(share, nan=np.inf).max())
    return Errors(float(np.nanmax(in_ulp)), largest, int((special & ~agree).sum()))


def _smallest(type_: str) -> float:
    fraction, least = FRACTION[type_.removesuffix("x2")]
    return 2.0 ** (least - fraction)


def _least(type_: str) -> float:
    return 2.0 ** FRACTION[type_.removesuffix("x2")][1]


def _flushed(true: np.ndarray, type_: str, flush: bool) -> np.ndarray:
    largest = {"f16": 65504.0, "bf16": 3.39e38, "f32": 3.4028235e38}.get(type_.removesuffix("x2"), np.inf)
    out = np.where(np.abs(true) > largest, np.copysign(np.inf, true), true)
    return np.where(np.abs(out) < _least(type_), np.copysign(0.0, out), out) if flush else out


def _types(form: Form) -> list[str]:
    from tests.evidence.instructions.inputs import register_type

    return [register_type(k) for k in form.sources]


def _narrow_inputs(form: Form) -> list[np.ndarray]:
    from tests.evidence.instructions.form import narrowed

    return [narrowed(v, t) for v, t in zip(form.inputs(), _types(form), strict=True)]


def sum_bound(form: Form) -> float:
    """How far an mma on spread values may be from the recorded result."""
    words = form.name.split()[0].split(".")
    return SUMS[words[-3], words[-1]]
