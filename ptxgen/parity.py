"""The one verdict on whether a result matches its reference, and its thresholds. Nothing else decides parity."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.dtypes import DType

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.kernel import KernelType

# Largest ‖got − want‖ / ‖want‖ over a buffer, by the coarsest element type that takes part: a few units of the type's
# rounding (2⁻²⁴, 2⁻¹¹, 2⁻⁸), since operands and probabilities are rounded to it once. e4m3 and int8 values are exact in
# f16, where the arithmetic happens.
LIMITS = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2, "e4m3": 2e-3, "e5m2": 2e-3, "s8": 2e-3}
# No single element may be off by more than this many times the limit, relative to the largest magnitude wanted.
ELEMENT_FACTOR = 8.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome for one buffer: `error` is ‖got − want‖ / ‖want‖; `worst` the index of the largest difference."""

    name: str
    ok: bool
    error: float
    limit: float
    worst: tuple[int, ...]
    why: str = ""

    def __str__(self) -> str:
        text = f"{self.name}: error {self.error:.3g}, limit {self.limit:.3g}"
        return text if self.ok else f"{text}: {self.why}"


def limit_of(spec: KernelType) -> float:
    """The limit for a spec: its kernel type's own, else that of the coarsest element type among its fields."""
    return limit_of_types(spec) if spec.error_limit is None else spec.error_limit


def limit_of_types(spec: KernelType) -> float:
    """The limit of the coarsest element type among a spec's fields."""
    types = [v for f in dataclasses.fields(spec) if isinstance(v := getattr(spec, f.name), DType)]  # type: ignore[arg-type]
    return max((LIMITS[t.name] for t in types if t.name in LIMITS), default=LIMITS["f32"])


def judge(
    spec: KernelType, got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], limit: float | None = None
) -> list[Verdict]:
    """A verdict for each reading of every buffer that is wanted; `limit` in place of theirs, but where that is 0."""
    import numpy as np

    verdicts = []
    for name, wanted in want.items():
        if got[name].shape != wanted.shape:
            verdicts.append(compare(name, got[name], wanted, 0.0))
            continue
        pairs = zip(spec.readings(name, got[name]), spec.readings(name, wanted), strict=True)
        for found, reference in pairs:
            own = limit_of(spec) if found.limit is None else found.limit
            allowed = own if limit is None or own == 0 else limit
            values = np.minimum(found.values, reference.values) if found.at_least else found.values
            verdicts.append(compare(found.name, values, reference.values, allowed))
    return verdicts


def compare(name: str, got: np.ndarray, want: np.ndarray, limit: float) -> Verdict:
    """Judge one buffer. Integers must be equal; infinities and NaN must stand where the reference has them."""
    import numpy as np

    if got.shape != want.shape:
        return Verdict(name, False, float("inf"), limit, (), f"shape {got.shape}, wanted {want.shape}")
    if got.size == 0:
        return Verdict(name, True, 0.0, limit, ())
    if np.issubdtype(want.dtype, np.integer):
        return _compare_integers(name, got, want)
    g, w = got.astype(np.float64), want.astype(np.float64)
    odd = ~np.isfinite(g) | ~np.isfinite(w)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    if not same[odd].all():
        worst = tuple(int(i) for i in np.argwhere(odd & ~same)[0])
        return Verdict(name, False, float("inf"), limit, worst, f"{g[worst]} at {list(worst)}, wanted {w[worst]}")
    difference = np.abs(np.where(odd, 0.0, g) - np.where(odd, 0.0, w))
    scale = float(np.sqrt(np.sum(np.where(odd, 0.0, w) ** 2)))
    error = float(np.sqrt(np.sum(difference**2))) / scale if scale else float(difference.max())
    worst = tuple(int(i) for i in np.unravel_index(int(difference.argmax()), difference.shape))
    largest = float(np.abs(np.where(odd, 0.0, w)).max()) or 1.0
    ok = error <= limit and float(difference.max()) <= ELEMENT_FACTOR * limit * largest
    why = "" if ok else f"{g[worst]:.8g} at {list(worst)}, wanted {w[worst]:.8g}"
    return Verdict(name, ok, error, limit, worst, why)


def _compare_integers(name: str, got: np.ndarray, want: np.ndarray) -> Verdict:
    import numpy as np

    differs = got != want
    if not differs.any():
        return Verdict(name, True, 0.0, 0.0, ())
    worst = tuple(int(i) for i in np.argwhere(differs)[0])
    count = int(differs.sum())
    why = f"{got[worst]} at {list(worst)}, wanted {want[worst]} ({count} of {got.size} differ)"
    return Verdict(name, False, count / got.size, 0.0, worst, why)
