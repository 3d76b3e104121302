"""Rows of f32 into the bytes that DigitGemm reads, normalised on the way where that is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import bf16, f32, u8
from ptxgen.idioms import convert
from ptxgen.idioms.division import split
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.reduce import over_cta
from ptxgen.kernel import KernelType, Reading, field, kernel_type
from ptxgen.launch import Launch, Param, buffer
from ptxgen.products.digits_bf16 import layout as bf16_layout
from ptxgen.products.digits_bf16.digits import HalfDigits
from ptxgen.products.digits_s8 import layout
from ptxgen.products.digits_s8.digits import CHUNKS, LANES, OWN, UnitDigits
from ptxgen.products.problem.readings import EXACT
from ptxgen.products.problem.rows_given import n_rows_given, n_rows_param, rows_counted, rows_of

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg
    from ptxgen.targets import Target

MOST_THREADS = 256
FLIGHT = 4  # loads of a thread in a pass over a row, of four columns each


@kernel_type
class PackDigits(KernelType):
    """Pack the first n_rows rows of x f32 `[rows, dim]` as the units of signed bytes that DigitGemm reads.

    out `[ceil(rows / 8), units of 256 columns, bytes of a unit]` (`ptxgen.products.digits_s8.layout`). Rows of a tile
    from n_rows on are zero; tiles without a row are not written. A value becomes an integer of 23 bits in units of a
    power of two for its 256 columns; an infinity or NaN makes these columns NaN. n_rows is a scalar, or `[1]` in device
    memory when `indirect`. With `halves` a value becomes so many bf16 numbers instead, which add up to it (with three
    to f32), `[ceil(rows / 8), units of 64 columns, elements of a unit]` (`ptxgen.products.digits_bf16.layout`).

    `dim`: columns. `norm`: "" or "rms": x / sqrt(mean(x²) + eps) · (norm_offset + norm_weight) is packed. `eps`: added
    to the mean square. `norm_offset`: added to the norm's weights.
    """

    dim: int = field(doc="columns of x", draws=(256, 512, 2304, 576))
    norm: str = ""
    eps: float = field(default=1e-6, silent="beside squares about 1 it is less than a comparison tells")
    norm_offset: float = 0.0
    indirect: bool = field(default=False, doc="n_rows is read from device memory")
    programmatic: bool = False
    halves: int = field(default=0, draws=(0, 1, 3), later=True, doc="0: signed bytes; else so many bf16 digits")
    sums: bool = field(default=False, later=True, doc="sums of x go beside bf16 digits, for weights with mins")

    sizes = {"rows": 5, "n_rows": -1}  # -1: all
    golden_targets = ("sm_80", "sm_90")
    early = ("norm_weight",)
    goldens = (
        dict(dim=512),
        dict(dim=4608, norm="rms", norm_offset=1.0, indirect=True),
        dict(dim=768, norm="rms", programmatic=True),
        dict(dim=512, norm="rms", halves=3, indirect=True),
        dict(dim=256, halves=1),
        dict(dim=256, halves=3, sums=True),
        dict(dim=576, norm="rms", halves=3),
    )
    lowest_target = "sm_80"

    def rules(self) -> Iterator[str]:
        unit = bf16_layout.columns(sums=self.sums) if self.halves else layout.UNIT
        yield from rules.multiple_of("dim", self.dim, unit, unit, 1 << 17)
        yield from rules.one_of("norm", self.norm, ("", "rms"))
        yield from rules.one_of("halves", self.halves, (0, *sorted(bf16_layout.DIGITS.values())))
        if self.sums and not self.halves:
            yield "sums: units of bytes have them anyway (got sums=True, halves=0; nearest: sums=False)"
        yield from rules.between("eps", self.eps, 1e-12, 1.0)
        yield from rules.between("norm_offset", self.norm_offset, -16.0, 16.0)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)
        if not target.includes_any(("sm_80",)):
            yield f"pack_digits: needs sm_80 or later (got {target}; nearest: sm_80)"

    @property
    def lanes(self) -> int:
        """Threads that have columns of a row."""
        return self.dim // OWN

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return min(MOST_THREADS, -(-self.lanes // 32) * 32)

    @property
    def parts(self) -> int:
        """CTAs of a row."""
        return -(-self.lanes // self.threads)

    def params(self) -> tuple[Param, ...]:
        out = [buffer("x", f32, "rows", self.dim, align=16)]
        if self.norm:
            out.append(buffer("norm_weight", f32, self.dim, align=16))
        if self.halves:
            out.append(
                buffer("out", bf16, *bf16_layout.shape(self.dim, self.halves, sums=self.sums), access="out", align=16)
            )
        else:
            out.append(buffer("out", u8, *layout.shape(self.dim), access="out", align=16))
        out.append(n_rows_param(self.indirect))
        return tuple(out)

    def launch(self, target: Target) -> Launch:
        grid = f"ceil_div(rows, {layout.TOKENS}) * {layout.TOKENS}"
        return Launch((grid, self.parts, 1), (self.threads, 1, 1), programmatic=self.programmatic)

    @property
    def once(self) -> bool:
        """Whether a CTA has all of its row, which it then reads once."""
        return bool(self.norm) and self.parts == 1

    def build(self, b: Builder) -> None:
        with b.fragment("locate", "a row's units, 16 columns a thread; rows past the last, in the last tile, are zero"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            row = b.op("mov.u32", "row", b.special("ctaid.x"))
            place = b.op("mov.u32", "row_thread", thread)
            if self.parts > 1:
                part = b.op("mov.u32", "row_part", b.special("ctaid.y"))
                b.op("mad.lo.u32", place, part, self.threads, thread)
            tile, token = split(b, "tile", "token", row, layout.TOKENS)
        digits = HalfDigits(b, self.halves, sums=self.sums) if self.halves else UnitDigits(b)
        with b.fragment("begin", "where the thread reads and writes"):
            unit, of_unit = split(b, "unit", "place_of_unit", place, LANES)
            pair, quad = split(b, "pair_of_unit", "quad", of_unit, 4)
            has_unit = b.op("setp.lt.u32", "unit_exists", place, self.lanes)
            source = b.op("mad.wide.u32", "source", row, 4 * self.dim, b.ld_param("x"))
            column = b.op("mul.lo.u32", "own_column", unit, layout.UNIT)
            b.op("mad.lo.u32", column, pair, layout.PAIR, column)
            b.op("mad.lo.u32", column, quad, 4, column)
            to = b.op("mad.wide.u32", "unit_to", tile, self.dim * digits.unit_bytes // layout.UNIT, b.ld_param("out"))
            b.op("mad.wide.u32", to, unit, digits.unit_bytes, to)
            digits.begin(pair, quad, token, to)
        gains: tuple[Reg, ...] = ()
        if self.norm:
            gains = self._gains(b, column, has_unit)
        else:
            b.without("load_gains")
        wait_for_producer(b, self.programmatic)
        with b.fragment("count", "how many rows there are, and whether this is one"):
            count = rows_counted(b, self.indirect)
            exists = b.op("setp.lt.u32", "row_exists", row, count)
            first = b.op("sub.u32", "first_row", row, token)
            b.op("setp.lt.u32", "in_a_tile", first, count)
        values = b.array("value", "f32", OWN).regs
        with b.fragment("load_unit", "the thread's columns"):
            reads = b.op("and.pred", "reads_unit", exists, has_unit)
            at = b.op("mad.wide.u32", "own_source", column, 4, source)
            self._load(b, values, at, reads)
        root = None
        if self.norm:
            root = self._squares(b, thread, source, exists, values)
        else:
            b.without("begin_squares", "squares_pass", "root")
        with b.fragment("pack_unit", "the thread's columns into their unit"):
            for value, gain in zip(values, gains, strict=False):
                if self.norm_offset:
                    b.op("add.f32", gain, gain, self.norm_offset)
                b.op("mul.f32", value, value, root)
                b.op("mul.f32", value, value, gain)
            digits.keep(values)

    def _load(self, b: Builder, values: tuple[Reg, ...], at: Reg, pred: Reg, space: str = "global") -> None:
        """16 columns, zeros where there are none."""
        convert.clear(b, values)
        for chunk in range(CHUNKS):
            convert.load_words(b, values[4 * chunk : 4 * chunk + 4], at, 64 * chunk, space=space, pred=pred)

    def _gains(self, b: Builder, column: Reg, has_unit: Reg) -> tuple[Reg, ...]:
        """The norm's weights, which are constant: they are loaded before x is waited for."""
        gains: tuple[Reg, ...] = b.array("gain", "f32", OWN).regs
        with b.fragment("load_gains", "the norm's weights are constant: they are loaded before x is waited for"):
            at = b.op("mad.wide.u32", "own_gains", column, 4, b.ld_param("norm_weight"))
            self._load(b, gains, at, has_unit, "global.nc")
        return gains

    def _squares(self, b: Builder, thread: Reg, source: Reg, exists: Reg, own: tuple[Reg, ...]) -> Reg:
        """1 over the root of the row's mean square, which every CTA of the row finds."""
        reach = 4 * self.threads
        loads = min(FLIGHT, -(-self.dim // reach))
        with b.fragment("begin_squares"):
            total = b.op("mov.f32", "square_sum", 0.0)
            column = None if self.once else b.op("mul.lo.u32", "square_column", thread, 4)
        with b.fragment("squares_pass", "add up the squares of a pass"):
            values: tuple[Reg, ...] = own
            if column is not None:
                values, inside = b.array("squared", "f32", 4 * loads).regs, b.reg("square_inside", "pred")
                at = b.op("mad.wide.u32", "square_at", column, 4, source)
                convert.clear(b, values)
                for i in range(loads):
                    b.op("setp.lt.and.u32", inside, column, max(0, self.dim - i * reach), exists)
                    convert.load_words(b, values[4 * i : 4 * i + 4], at, 4 * i * reach, pred=inside)
            for value in values:
                b.op("fma.rn.f32", total, value, value, total)
            if column is not None:
                b.op("add.u32", column, column, loads * reach)
                b.op("setp.lt.u32", "more_squares", column, self.dim)
        over_cta(b, "squares", "add.f32", [total], thread, self.threads // 32)
        with b.fragment("root", "1 / sqrt(mean + eps)"):
            root: Reg = b.op("fma.rn.f32", "root_of_row", total, 1 / self.dim, self.eps)
            b.op("sqrt.rn.f32", root, root)
            b.op("rcp.rn.f32", root, root)
        b.expose(repeats=self.dim > loads * reach)
        return root

    def readings(self, output: str, values: np.ndarray) -> Iterator[Reading]:
        """The reference rounds as the kernel does, but for the order in which a row's squares are added.

        Without a norm digits are exact on every device: x is given, `cvt.rn` is one rounding to nearest even, and
        what a digit leaves of an f32 is an f32.
        """
        if output == "out" and self.halves and not (self.norm or self.sums):
            yield Reading(output, values, 0.0)
        elif output == "out" and self.halves:
            yield from bf16_layout.readings(output, values, self.halves, EXACT, one=EXACT, sums=self.sums)
        else:
            yield Reading(output, values)

    # -- example and reference -----------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), "n_rows": (0, sizes["rows"])}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        """With a norm x of a few bits, so that its sums of squares are the same in any order."""
        import numpy as np

        given: dict[str, Any] = {"n_rows": n_rows_given(sizes, self.indirect)}
        if self.norm:
            given["x"] = rng.integers(-24, 25, (sizes["rows"], self.dim)).astype(np.float32) / 8
        return given

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        """As the kernel rounds it, so that the bytes are the same."""
        import numpy as np

        count = rows_of(a)
        x = a["x"][:count]
        if self.halves:  # rows past the last, whose zeros have the sign of the norm's weights
            x = np.pad(x, ((0, -count % layout.TOKENS), (0, 0)))
        if self.norm:
            total = np.sum(x.astype(np.float64) ** 2, 1, keepdims=True).astype(np.float32)
            mean = total.astype(np.float64) * np.float32(1 / self.dim) + np.float32(self.eps)
            x = x * (np.float32(1) / np.sqrt(mean.astype(np.float32)))
            x = x * (a["norm_weight"] + np.float32(self.norm_offset))
        out = np.array(a["out"])
        tiles = -(-count // layout.TOKENS)
        out[:tiles] = bf16_layout.pack(x, self.halves, sums=self.sums) if self.halves else layout.pack(x)
        return {"out": out}
