"""One to sixteen consecutive elements of any type between memory and f32 registers.

`Elements` are the registers that move them: 32-bit words, or one half or byte; `convert` has the arithmetic of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg, RegArray
from ptxgen.dtypes import DType, bf16, f16, f32
from ptxgen.idioms import convert
from ptxgen.idioms.convert import Base, Guard, scratch


def widest(count: int, bytes: int) -> int:
    """Elements of an access of 16 bytes at most that divide `count`, so that every row of so many stays aligned."""
    return next(v for v in (16, 8, 4, 2, 1) if v * bytes <= 16 and count % v == 0)


@dataclass(frozen=True)
class Elements:
    """`count` consecutive elements of `dtype` in the registers that move them: for f32 the values themselves, else b32
    words, or where they fill less than a word one b16 register."""

    dtype: DType
    count: int
    regs: Sequence[Reg]

    @property
    def bytes(self) -> int:
        """What they fill in memory."""
        return self.count * self.dtype.bytes

    def load(self, b: Builder, base: Base, offset: int = 0, *, space: str = "global", pred: Guard = None) -> None:
        """Load them with the widest accesses; guarded, they are zero where the predicate does not hold."""
        if pred is not None:
            convert.clear(b, self.regs)
        if self.regs[0].type == "b16":
            b.op(f"ld.{space}.b{8 * self.bytes}", self.regs[0], Addr(base, offset), pred=pred)
        else:
            convert.load_words(b, self.regs, base, offset, space=space, pred=pred)

    def store(self, b: Builder, base: Base, offset: int = 0, *, space: str = "global", pred: Guard = None) -> None:
        """Store them with the widest accesses."""
        if self.regs[0].type == "b16":
            b.op(f"st.{space}.b{8 * self.bytes}", Addr(base, offset), self.regs[0], pred=pred)
        else:
            convert.store_words(b, base, self.regs, offset, space=space, pred=pred)

    def widen(self, b: Builder, values: Sequence[Reg]) -> None:
        """Convert to f32, exactly: a register an element."""
        if self.regs[0].type != "b16":
            convert.unpack(b, values, self.regs, self.dtype)
        elif self.dtype == f16:
            b.op("cvt.f32.f16", values[0], self.regs[0])
        elif self.dtype == bf16:  # a bf16 is the upper half of its f32
            zero = scratch(b, "zero", "b16")
            b.op("mov.b16", zero, 0)
            b.op("mov.b32", values[0], (zero, self.regs[0]))
        else:
            word = b.op("cvt.u32.u16", scratch(b, "narrow_word", "b32"), self.regs[0])
            rest = [scratch(b, f"beyond{i}", "f32") for i in range(4 - self.count)]
            convert.unpack(b, [*values, *rest], [word], self.dtype)

    def narrow(self, b: Builder, values: Sequence[Reg]) -> None:
        """Round f32 values to these elements, as `convert.pack` does."""
        if self.regs[0].type != "b16":
            convert.pack(b, self.regs, values, self.dtype)
        elif self.dtype == f16:
            b.op("cvt.rn.f16.f32", self.regs[0], values[0])
        else:
            word = scratch(b, "narrow_word", "b32")
            fill = [values[-1]] * (4 // self.dtype.bytes - self.count)
            convert.pack(b, [word], [*values, *fill], self.dtype)
            b.op("cvt.u16.u32", self.regs[0], word)


def pieces(b: Builder, name: str, dtype: DType, values: RegArray | Sequence[Reg], vector: int) -> tuple[Elements, ...]:
    """`values` as pieces of `vector` elements; what is not f32 moves through an array of that name."""
    count = len(values) // vector
    if dtype == f32:
        return tuple(Elements(dtype, vector, values[i * vector : (i + 1) * vector]) for i in range(count))
    size = vector * dtype.bytes
    words = b.array(name, "b32" if size >= 4 else "b16", count * max(1, size // 4))
    each = len(words) // count
    return tuple(Elements(dtype, vector, words[i * each : (i + 1) * each]) for i in range(count))


def widen(b: Builder, parts: Sequence[Elements], values: RegArray | Sequence[Reg]) -> None:
    """Convert `pieces` to f32, exactly: a register of `values` an element, in order."""
    first = 0
    for part in parts:
        part.widen(b, values[first : first + part.count])
        first += part.count
