"""Rotary position embedding: frequencies, exact reduction of the angle, sine and cosine, the rotation of a chunk.

The angle of pair i at position p is p · f(i). A table has f(i) / 2π as a 64-bit fraction of a turn, so one integer
product gives the angle modulo a turn, within |p| · 2⁻⁶⁵ + 2⁻³² turns; a product in f32 is off by 0.004 rad at 131071.
Then sine and cosine: by the hardware's approximation (absolute error 2⁻²⁰), or `precise`, by polynomials on an eighth
of a turn (2⁻²³).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray, Table
from ptxgen.dtypes import DType
from ptxgen.idioms import convert
from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.idioms.threads import CHUNK

if TYPE_CHECKING:
    import numpy as np

_AND_XOR = 0x6A  # lop3: (a & b) ^ c
STYLES = ("norm", "neox")
SCALINGS = ("default", "linear", "llama3")
_TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021")
_RADIANS = 6.283185307179586 / 2**32  # of a unit of the 32-bit phase

# sin x = x + x³·S(x²) and cos x = 1 - x²/2 + x⁴·C(x²) on [-π/4, π/4]: minimax fits in f32, highest power first, within
# 2e-9 and 2e-10.
_SIN = (-1.9496136519592255e-4, 8.331983350217342e-3, -1.6666650772094727e-1)
_COS = (2.4430661142105237e-5, -1.38873013202101e-3, 4.166664555668831e-2)


@dataclass(frozen=True)
class Rotation:
    """What rotates, and by which angles. `style` "norm": pairs (2i, 2i + 1); "neox": (i, i + rotary_dim / 2).

    f(i) = theta^(-2i / rotary_dim), divided by `factor` ("linear"), or where the wavelength is long ("llama3": above
    original_max_len / low_freq_factor all of it, below original_max_len / high_freq_factor nothing, between them
    linearly in 1 / wavelength), or by `freq_factors[i]`. `attention_factor` scales sine and cosine.
    """

    head_dim: int
    style: str
    precise: bool
    settings: RopeSettings

    @classmethod
    def of(cls, spec: Any) -> Rotation:
        """The rotation that a kernel type's fields of these names describe; no `rotary_dim`: the whole head."""
        values = {field.name: getattr(spec, field.name) for field in fields(RopeSettings)}
        settings = RopeSettings(**{**values, "rotary_dim": values["rotary_dim"] or spec.head_dim})
        return cls(spec.head_dim, spec.style, spec.precise, settings)

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that rotate."""
        return self.settings.rotary_dim

    def rules(self) -> Iterator[str]:
        """Reasons against these fields."""
        at = self.settings
        yield from rules.one_of("style", self.style, STYLES)
        if self.rotary_dim != self.head_dim:
            yield from rules.multiple_of("rotary_dim", self.rotary_dim, 8, 8, max(8, self.head_dim // 8 * 8))
        yield from rules.one_of("scaling", at.scaling, SCALINGS)
        yield from rules.between("theta", at.theta, 1.0, 1e12)
        yield from rules.between("factor", at.factor, 1e-3, 1e6)
        yield from rules.between("attention_factor", at.attention_factor, 1e-3, 1e3)
        if at.scaling == "llama3":
            yield from rules.between("low_freq_factor", at.low_freq_factor, 1e-3, 1e6)
            yield from rules.between("original_max_len", at.original_max_len, 1, 1 << 30)
            outside = list(rules.between("high_freq_factor", at.high_freq_factor, 1e-3, 1e9))
            yield from outside
            if not outside and at.high_freq_factor <= at.low_freq_factor:
                yield (f"high_freq_factor: must be above low_freq_factor={at.low_freq_factor} "
                       f"(got {at.high_freq_factor})")  # fmt: skip
        elif at.scaling == "default" and at.factor != 1.0:
            yield f"factor: must be 1 with scaling default (got {at.factor}; nearest: scaling linear)"
        if at.freq_factors and len(at.freq_factors) != self.rotary_dim // 2:
            yield f"freq_factors: must be {self.rotary_dim // 2} divisors, one a pair (got {len(at.freq_factors)})"
        if at.freq_factors and at.scaling != "default":
            yield f"freq_factors: must be empty with scaling {at.scaling} (got {len(at.freq_factors)})"
        if any(not 1e-6 <= f <= 1e6 for f in at.freq_factors):
            extremes = f"{min(at.freq_factors)} … {max(at.freq_factors)}"
            yield f"freq_factors: each must be from 1e-6 to 1e6 (got {extremes})"

    @property
    def half(self) -> int:
        """Pairs of a head."""
        return self.rotary_dim // 2

    @property
    def unit(self) -> int:
        """Elements of a chunk that pair with consecutive elements in the other half (neox)."""
        return 8 if self.half % 8 == 0 else 4

    def frequencies(self) -> np.ndarray:
        """f(i) in radians a position, float64 `[rotary_dim / 2]`."""
        import numpy as np

        return np.array([float(f) for f in _frequencies(self)])


@lru_cache(maxsize=64)
def _frequencies(r: Rotation) -> tuple[Decimal, ...]:
    """In decimal arithmetic, which is the same on every platform: the text must be, too."""
    with localcontext() as context:
        context.prec = 40
        ratio = (Decimal(r.settings.theta).ln() * -2 / r.rotary_dim).exp()
        plain = [Decimal(1)]
        while len(plain) < r.half:
            plain.append(plain[-1] * ratio)
        factor = Decimal(r.settings.factor)
        if r.settings.freq_factors:
            return tuple(f / Decimal(divisor) for f, divisor in zip(plain, r.settings.freq_factors, strict=True))
        if r.settings.scaling == "llama3":
            low, high = Decimal(r.settings.low_freq_factor), Decimal(r.settings.high_freq_factor)
            # How many wavelengths the original context holds, from low (all of the factor) to high (none of it).
            kept = [(r.settings.original_max_len * f / _TWO_PI - low) / (high - low) for f in plain]
            kept = [min(max(k, Decimal(0)), Decimal(1)) for k in kept]
            return tuple(f * (k + (1 - k) / factor) for f, k in zip(plain, kept, strict=True))
        return tuple(f / factor for f in plain) if r.settings.scaling == "linear" else tuple(plain)


def turns_table(b: Builder, r: Rotation) -> Table:
    """f(i) / 2π as 64-bit fractions of a turn."""
    with localcontext() as context:
        context.prec = 40
        turns = [int((f / _TWO_PI * (1 << 64)).to_integral_value()) % (1 << 64) for f in _frequencies(r)]
    return b.table("turns", "b64", turns)


@dataclass(frozen=True)
class Rotor:
    """Registers of a thread that rotates one chunk of 8 elements."""

    rotation: Rotation
    turns: RegArray  # b64, one a pair
    partners: RegArray  # f32: the other elements of the pairs (neox), or scratch (norm)
    words: RegArray  # what they are loaded into
    upper: tuple[Reg, ...]  # neox, for each unit: the chunk's elements are the second ones of their pairs


def load_turns(b: Builder, r: Rotation, chunk: Reg, rotates: Reg, dtype: DType, elements: int = CHUNK) -> Rotor:
    """Load the frequencies of this chunk's pairs; they are constants, so nothing need be waited for. `elements` of a
    chunk: 8, or with style "norm" 4."""
    table = b.op("mov.u64", "turns_row", turns_table(b, r))
    if r.style == "norm":
        turns, partners = b.array("turn", "b64", elements // 2), b.array("cross", "f32", 2)
        b.op("mad.wide.u32", table, chunk, 8 * elements // 2, table)
        _load_pairs(b, turns.regs, table, rotates)
        return Rotor(r, turns, partners, partners, ())
    turns, partners = b.array("turn", "b64", CHUNK), b.array("partner", "f32", CHUNK)
    upper = []
    for part in range(CHUNK // r.unit):
        suffix = f"_{part}" if r.unit < CHUNK else ""
        unit = b.reg(f"unit{suffix}", "u32")
        if suffix:
            b.op("mad.lo.u32", unit, chunk, CHUNK // r.unit, part)
        else:
            b.op("mov.u32", unit, chunk)
        is_upper = b.op("setp.ge.u32", f"upper{suffix}", unit, r.half // r.unit)
        b.op("sub.u32", unit, unit, r.half // r.unit, pred=is_upper)
        row = b.op("mad.wide.u32", f"pairs_row{suffix}", unit, 8 * r.unit, table)
        _load_pairs(b, turns[part * r.unit : (part + 1) * r.unit], row, rotates)
        upper.append(is_upper)
    return Rotor(r, turns, partners, convert.word_array(b, "partner_word", partners, dtype), tuple(upper))


def _load_pairs(b: Builder, turns: tuple[Reg, ...], row: Reg, rotates: Reg) -> None:
    for first in range(0, len(turns), 2):
        b.op("ld.global.nc.v2.b64", turns[first : first + 2], row[8 * first], pred=rotates)


def load_partners(b: Builder, rotor: Rotor, source: Reg, dtype: DType, rotates: Reg) -> None:
    """Load the elements that this chunk's pair with; `source` is the chunk's address. Nothing for norm style."""
    r = rotor.rotation
    per_unit = convert.words_of(dtype, r.unit)
    distance = r.half * dtype.bytes
    for part, is_upper in enumerate(rotor.upper):
        suffix = f"_{part}" if len(rotor.upper) > 1 else ""
        partner = b.op("add.s64", f"partner_source{suffix}", source, distance)
        b.op("sub.s64", partner, source, distance, pred=is_upper)
        words = rotor.words[part * per_unit : (part + 1) * per_unit]
        convert.load_words(b, words, partner, 4 * per_unit * part, pred=rotates)


def rotate(
    b: Builder, rotor: Rotor, values: Sequence[Reg], position: Reg, dtype: DType, rotates: Reg | None = None
) -> None:
    """Rotate the chunk in `values` by the angles of its pairs at an s32 position; with style "norm" where it
    `rotates`."""
    r = rotor.rotation
    wide = b.op("cvt.s64.s32", convert.again(b, "wide_position"), position)
    if r.style == "norm":
        for pair, turn in enumerate(rotor.turns):
            b.note(f"pair {pair} of the chunk", after=convert.RUN)
            cos, sin = cos_sin(b, r, wide, turn)
            first, second = values[2 * pair], values[2 * pair + 1]
            b.op("mul.f32", rotor.partners[0], second, sin)
            b.op("mul.f32", rotor.partners[1], first, sin)
            b.op("neg.f32", rotor.partners[0], rotor.partners[0])
            b.op("fma.rn.f32", first, first, cos, rotor.partners[0], pred=rotates)
            b.op("fma.rn.f32", second, second, cos, rotor.partners[1], pred=rotates)
        return
    convert.unpack(b, rotor.partners, rotor.words, dtype)
    back = b.op("neg.s64", "minus_position", wide)
    for part, is_upper in enumerate(rotor.upper):
        # The first of a pair takes -sin: the sine of the opposite angle.
        suffix = f"_{part}" if len(rotor.upper) > 1 else ""
        signed = b.op("selp.b64", f"signed_position{suffix}", wide, back, is_upper)
        for index in range(part * r.unit, (part + 1) * r.unit):
            b.note(f"element {index} of the chunk", after=convert.RUN)
            cos, sin = cos_sin(b, r, signed, rotor.turns[index])
            b.op("mul.f32", rotor.partners[index], rotor.partners[index], sin)
            b.op("fma.rn.f32", values[index], values[index], cos, rotor.partners[index])


def cos_sin(b: Builder, r: Rotation, position: Reg, turn: Reg) -> tuple[Reg, Reg]:
    """Cosine and sine of a pair's angle at an s64 position, in scratch registers."""
    scratch = convert.scratch
    phase, low, high = scratch(b, "phase", "b64"), scratch(b, "phase_lo", "b32"), scratch(b, "phase_hi", "b32")
    angle, cos, sin = scratch(b, "angle", "f32"), scratch(b, "cos", "f32"), scratch(b, "sin", "f32")
    b.op("mul.lo.s64", phase, position, turn)
    b.op("mov.b64", (low, high), phase)
    if r.precise:
        _polynomials(b, cos, sin, angle, high)
    else:
        b.op("cvt.rn.f32.s32", angle, high)
        b.op("mul.f32", angle, angle, _RADIANS)
        b.op("cos.approx.f32", cos, angle)
        b.op("sin.approx.f32", sin, angle)
    if r.settings.attention_factor != 1.0:
        b.op("mul.f32", cos, cos, r.settings.attention_factor)
        b.op("mul.f32", sin, sin, r.settings.attention_factor)
    return cos, sin


def _polynomials(b: Builder, cos: Reg, sin: Reg, angle: Reg, phase: Reg) -> None:
    """Cosine and sine of a signed 32-bit phase: the nearest quarter turn, and polynomials on what is left of it."""
    scratch = convert.scratch
    quarters, rest, odd = scratch(b, "quarters", "b32"), scratch(b, "rest", "b32"), scratch(b, "odd_quarter", "pred")
    square, near_cos, near_sin = (scratch(b, name, "f32") for name in ("square", "near_cos", "near_sin"))
    b.op("add.s32", quarters, phase, 1 << 29)
    b.op("and.b32", quarters, quarters, 0xC0000000)
    b.op("sub.s32", rest, phase, quarters)
    b.op("cvt.rn.f32.s32", angle, rest)
    b.op("mul.f32", angle, angle, _RADIANS)
    b.op("mul.f32", square, angle, angle)
    _horner(b, near_sin, square, _SIN)
    b.op("mul.f32", near_sin, near_sin, square)
    b.op("fma.rn.f32", near_sin, near_sin, angle, angle)
    _horner(b, near_cos, square, (*_COS, -0.5, 1.0))
    # An odd quarter swaps the two; quarters 2 and 3 negate the sine, 1 and 2 the cosine.
    b.op("and.b32", rest, quarters, 0x40000000)
    b.op("setp.ne.u32", odd, rest, 0)
    b.op("selp.f32", cos, near_sin, near_cos, odd)
    b.op("selp.f32", sin, near_cos, near_sin, odd)
    b.op("lop3.b32", sin, quarters, 0x80000000, sin, _AND_XOR)
    b.op("add.u32", quarters, quarters, 0x40000000)
    b.op("lop3.b32", cos, quarters, 0x80000000, cos, _AND_XOR)


def _horner(b: Builder, result: Reg, x: Reg, coefficients: tuple[float, ...]) -> None:
    first, second, *others = coefficients
    b.op("fma.rn.f32", result, x, first, second)
    for coefficient in others:
        b.op("fma.rn.f32", result, result, x, coefficient)


# -- in NumPy --------------------------------------------------------------------------------------------------------


def rotate_rows(r: Rotation, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rows `[rows, heads, head_dim]` rotated to their positions, float64."""
    import numpy as np

    angles = np.asarray(positions, np.float64)[:, None, None] * r.frequencies()
    cos, sin = np.cos(angles) * r.settings.attention_factor, np.sin(angles) * r.settings.attention_factor
    out = rows.astype(np.float64)
    first, second = (slice(0, r.rotary_dim, 2), slice(1, r.rotary_dim, 2))
    if r.style == "neox":
        first, second = slice(0, r.half), slice(r.half, r.rotary_dim)
    x, y = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = x * cos - y * sin, y * cos + x * sin
    return out
