"""The steps of a prompt: how many rows each has, and which positions it takes. Knows no kernel and no device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ptxgen.models.files.modelfile import is_vector
from ptxgen.models.step.row_forms import HALVES

FLAT = 64  # rows of a step up to which sizes are powers of two
SIZES = 16  # others are multiples of FLAT, and of so many parts of the power of two above
# Powers of two from which a few positions more have a step of their own, by precision: before weights of 16 bits, and
# before others, which take less time to read. More rows in one step took longer on an H200 from there on.
APART_FROM = {"exact": (128, 32), "fast": (1 << 30, 128), "e4m3": (1 << 30, 128)}
# A few positions are a quarter of the power of two at most, of 64 a half: 96 rows took longer than 64 and 32.
QUARTER, FEW_MORE = 4, {64: 32}


def apart_from(precision: str, formats: Mapping[str, str]) -> int:
    """The power of two from which a few positions more have a step of their own, with weights in these formats, by the
    names of a file."""
    halves, others = APART_FROM[precision]
    return halves if all(format in HALVES for name, format in formats.items() if not is_vector(name)) else others


def steps_of(count: int, most: int, apart: int) -> Iterator[tuple[int, int, int]]:
    """`count` positions in steps of up to `most` rows: the rows of a step, its first position, and how many positions
    it takes, which are the last of its rows. `apart`: what `apart_from` says."""
    at = 0
    while at < count:
        left = count - at
        whole = min(most, 1 << (left.bit_length() - 1))
        parts = whole == most or (whole >= apart and 0 < left - whole <= FEW_MORE.get(whole, whole // QUARTER))
        taken = whole if parts else left
        yield min(most, step_rows(taken)), at, taken
        at += taken


def step_rows(count: int) -> int:
    """The rows of a step for `count` positions: one of few sizes, as each is bound, and may be compiled, when it is
    first needed."""
    if count <= FLAT:
        return 1 << (count - 1).bit_length()
    unit = max(FLAT, (1 << (count - 1).bit_length()) // SIZES)
    return -(-count // unit) * unit
