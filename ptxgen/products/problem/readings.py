"""How results are compared that are several digits each: by what they add up to, and by how they share it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ptxgen.dtypes import DType, bf16
from ptxgen.kernel import Reading

if TYPE_CHECKING:
    import numpy as np

# Of sums of f32 products: they are off by up to 5e-7. Three bf16 digits have the 24 bits of f32, two f16 ones 22, so
# they add up to as much; without the third of three it would be 2.4e-6, without the second 1.7e-3.
EXACT = 1e-6
RUN = 8  # numbers of 16 bits that are stored at once
FEWEST = 6  # of three bf16 digits of f32 the last is 0 by chance in one of 28: of six, in one of 5e8 times
ONE_DIGIT = 1e-3  # of one bf16 digit: a sum at a tie rounds to the one or the other, 2⁻⁸ of an element apart


def digit_readings(name: str, digits: np.ndarray, axis: int, limit: float, dtype: DType = bf16) -> Iterator[Reading]:
    """Of an array with an axis of digits: their sums, within `limit`, and exactly by how much each is not the nearest
    number to what those before it leave. One digit is compared as it is. A last digit that is lost in a small part of
    the array is less than `limit`: no run of last digits may be zeros where the reference's are not.

    Digits that nobody wrote are NaN, as are those of infinities: they must stand where the reference has them.
    """
    import numpy as np

    if digits.shape[axis] == 1:
        yield Reading(name, digits, limit)
        return
    each = np.moveaxis(digits, axis, 0).astype(np.float64)
    with np.errstate(invalid="ignore"):
        whole = left = each.sum(0)
        yield Reading(f"{name}, digits added up", whole, limit)
        excess = []
        for digit in each:
            nearest = np.abs(left - left.astype(np.float32).astype(dtype.numpy).astype(np.float64))
            excess.append(np.where(np.isfinite(whole), np.abs(left - digit) - nearest, digit))
            left = left - digit
    yield Reading(f"{name}, digit by digit", np.stack(excess), 0.0)
    yield Reading(f"{name}, last digits", _last_digits(each), 0.0, at_least=True)


def _last_digits(each: np.ndarray) -> np.ndarray:
    """Whether there are any in each run of numbers, of runs in which elements enough are not 0.

    Where the reference has none a result may have them: a value of few bits, off by a rounding.
    """
    there = each.reshape(len(each), -1, RUN) != 0
    found: np.ndarray = there[-1].any(-1) & (there[0].sum(-1) >= FEWEST)
    return found.astype("int8")
