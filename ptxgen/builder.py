"""Builds a kernel's straight-line code: named fragments of typed instructions, and the declarations they need.

Control flow is not here: a template places the fragments and owns every label, branch and barrier.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ptxgen.errors import IsaError
from ptxgen.isa import Slot, lookup, slot_accepts, special_register, storage_type, type_bits
from ptxgen.values import SINK, Addr, Not, Or, Reg, RegArray, Shared, Sink, Table, immediate

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType
    from ptxgen.launch import Param
    from ptxgen.targets import Target

# Control flow belongs to the templates; these words are refused in a fragment.
_SHAPE_WORDS = frozenset({"bra", "brx", "call", "ret", "exit", "bar", "barrier"})
_ADDRESS_TYPES = frozenset({"u64", "s64", "b64", "u32", "s32", "b32"})


class Fragment:
    """A named list of instructions. Printing it is placing it, and is counted."""

    __slots__ = ("built_at", "lines", "name", "placed")

    def __init__(self, name: str, built_at: str) -> None:
        self.name = name
        self.built_at = built_at  # file:line
        self.lines: list[str] = []
        self.placed = 0

    def __str__(self) -> str:
        self.placed += 1
        return "\n".join(self.lines)


class Builder:
    """Passed as `b` to `KernelType.build`. One call of `op` is one instruction."""

    def __init__(self, spec: KernelType, target: Target) -> None:
        self.spec = spec
        self.target = target
        self.params: dict[str, Param] = {p.name: p for p in spec.params()}
        self.fragments: dict[str, Fragment] = {}
        self.registers: dict[str, Reg] = {}
        self.arrays: dict[str, RegArray] = {}
        self.shared_variables: dict[str, Shared] = {}
        self.tables: dict[str, Table] = {}
        self.exposed: dict[str, object] = {}
        self._types: dict[str, str] = {}  # of every declared register, those of arrays included
        self._current: Fragment | None = None
        self._written: set[str] = set()
        self._read: dict[str, tuple[str, str]] = {}  # register -> fragment and source line of its first use

    # -- declarations -------------------------------------------------------------------------------------------

    @contextmanager
    def fragment(self, name: str) -> Iterator[Fragment]:
        """Instructions inside the `with` belong to the fragment of that name."""
        if self._current is not None:
            raise self._error(f"fragment {name!r} opened inside {self._current.name!r}; fragments do not nest")
        if name in self.fragments:
            raise self._error(f"fragment {name!r} is built twice")
        self._current = self.fragments[name] = Fragment(name, self._where()[1])
        try:
            yield self._current
        finally:
            self._current = None

    def reg(self, name: str, type: str) -> Reg:
        """Declare one register; `name` without the `%`."""
        if name in self._types or name in self.arrays:
            raise self._error(f"register %{name} is already declared; pass the register itself to write it again")
        if special_register(f"%{name}") or special_register(f"%{name}.x"):
            raise self._error(f"register %{name}: PTX has a special register of that name; choose another")
        self.registers[name] = Reg(name, type)
        self._types[name] = type
        return self.registers[name]

    def array(self, name: str, type: str, count: int) -> RegArray:
        """Declare `%name<count>`."""
        made = RegArray(name, type, count)
        taken = [n for n in (name, *(reg.name for reg in made)) if n in self._types or n in self.arrays]
        if taken:
            raise self._error(f"register %{taken[0]} is already declared")
        self.arrays[name] = made
        self._types.update((reg.name, type) for reg in made)
        return made

    def shared(self, name: str, nbytes: int, align: int = 16, *, dynamic: bool = False) -> Shared:
        """Declare a shared-memory variable of `nbytes`; the one dynamic variable takes its size from the launch."""
        if name in self.shared_variables:
            raise self._error(f"shared variable {name} is already declared")
        self.shared_variables[name] = Shared(name, nbytes, align, dynamic)
        return self.shared_variables[name]

    def table(self, name: str, type: str, values: Iterable[int | float]) -> Table:
        """Declare constants in global memory, aligned to 16 bytes; the name is prefixed with the entry's."""
        if name in self.tables:
            raise self._error(f"table {name} is already declared")
        self.tables[name] = Table(f"{self.spec.kernel_name}_{name}", type, tuple(values))
        return self.tables[name]

    def expose(self, **values: object) -> None:
        """Give the template values under these names (unroll counts to print, names of variants)."""
        self.exposed.update(values)

    # -- instructions -------------------------------------------------------------------------------------------

    def op(self, opcode: str, *operands: Any, pred: Reg | Not | None = None, note: str = "") -> Any:
        """Append one instruction; returns its first destination (a register, or a tuple in braces), if any.

        `opcode` is the full PTX text (`"fma.rn.f32"`). Operands: `Reg`, `~pred`, `Addr` (`ptr[16]`), `Shared`, `int`,
        `float`, a sequence of registers (braces), `SINK`; a `str` as a destination declares a register of the
        slot's type under that name. Raises `IsaError` for an opcode or an operand that the instruction table refuses.
        """
        if self._current is None:
            raise self._error(f"{opcode}: outside of a fragment")
        try:
            form = lookup(opcode)
        except IsaError as unknown:
            raise self._error(str(unknown)) from None
        if form.name in _SHAPE_WORDS and opcode != "bar.warp.sync":
            raise self._error(f"{opcode}: control flow and barriers belong to the template, not to a fragment")
        slots = form.layout(len(operands))
        if slots is None:
            most, least = len(form.operands), len(form.operands) - form.optional
            counts = f"{least} to {most}" if form.optional else f"{most}"
            raise self._error(f"{opcode}: takes {counts} operands (got {len(operands)})")
        if not self.target.includes_any(form.sm):
            raise self._error(f"{opcode}: needs {' or '.join(form.sm)} ({form.because}); target is {self.target}")
        result: Any = None
        words: list[str] = []
        floats: list[str] = []
        for index, (slot, operand) in enumerate(zip(slots, operands, strict=True)):
            value = self._operand(opcode, index, slot, operand)
            if isinstance(value, float) and value not in (0.0, 1.0):
                floats.append(f"{value:.6g}")
            words.append(_text(value, slot))
            if slot.writes and result is None and not isinstance(value, Sink):
                result = value
        guard = ""
        if pred is not None:
            self._check_guard(opcode, pred.reg if isinstance(pred, Not) else pred)
            guard = f"@{pred} "
        line = f"    {guard}{opcode} {', '.join(words)};" if words else f"    {guard}{opcode};"
        comment = ", ".join(filter(None, [note, *floats]))
        self._current.lines.append(f"{line}  // {comment}" if comment else line)
        return result

    def note(self, text: str) -> None:
        """Append a comment line."""
        if self._current is None:
            raise self._error("note: outside of a fragment")
        self._current.lines.append(f"    // {text}")

    def special(self, name: str) -> Reg:
        """A special register, by its PTX name without `%` (`"tid.x"`)."""
        found = special_register(f"%{name}")
        if found is None:
            raise self._error(f"%{name}: no such special register")
        return Reg(name, found.type)

    def ld_param(self, name: str) -> Reg:
        """Load a parameter into the register of its name; a pointer becomes a global-space address."""
        if name not in self.params:
            raise self._error(f"parameter {name!r} is not declared; there are {', '.join(self.params)}")
        param = self.params[name]
        value: Reg = self.op(f"ld.param.{param.ptx_type}", name, Addr(f"{name}_param"))
        if param.kind != "scalar":
            self.op("cvta.to.global.u64", value, value)
        return value

    # -- checks -------------------------------------------------------------------------------------------------

    def _operand(self, opcode: str, index: int, slot: Slot, operand: Any) -> Any:
        """The checked operand; declares a destination given by name."""
        if isinstance(operand, str):
            if not slot.writes or slot.vector:
                raise self._error(f"{opcode}: operand {index + 1} is a source; a name (got {operand!r}) declares only "
                                  "a scalar destination")
            operand = self.reg(operand, storage_type(slot.type))
        elif isinstance(operand, RegArray):
            operand = operand.regs
        elif isinstance(operand, list):
            operand = tuple(operand)
        kind = _kind(operand)
        if kind not in slot.kinds:
            raise self._error(f"{opcode}: operand {index + 1} must be {slot} (got {kind} {_show(operand)})")
        for reg in _registers(operand):
            self._check_type(opcode, index, slot, kind, operand, reg)
            reads = not slot.writes or slot.reads or kind == "addr"
            self._note_use(reg, writes=slot.writes and kind != "addr", reads=reads)
        if kind == "vec":
            self._check_vector(opcode, index, slot, operand)
        return operand

    def _check_type(self, opcode: str, index: int, slot: Slot, kind: str, operand: Any, reg: Reg) -> None:
        """One register of an operand: declared here, and of a type that fits."""
        declared = self._types.get(reg.name)
        if declared is None:
            if special_register(f"%{reg.name}") is None:
                raise self._error(f"{opcode}: operand {index + 1}: register {reg} is not declared")
            if opcode.split(".")[0] not in ("mov", "cvt"):
                raise self._error(f"{opcode}: operand {index + 1}: only mov and cvt read special registers (got {reg})")
        elif declared != reg.type:
            raise self._error(f"{opcode}: operand {index + 1}: {reg} is declared .{declared} (got a .{reg.type})")
        if kind == "addr":
            if reg.type not in _ADDRESS_TYPES:
                what = f"{opcode}: an address is a 32- or 64-bit integer"
                raise self._error(f"{what} (got {reg}, a .{reg.type} register)")
            return
        packs = kind == "vec" and not slot.vector  # braces that pack a scalar: sizes are checked together
        second = kind == "pair" and reg is operand.second
        wanted_ok = reg.type == "pred" if second else packs or slot_accepts(slot, reg.type)
        if not wanted_ok:
            wanted = "pred" if second else slot.type
            raise self._error(f"{opcode}: operand {index + 1} is .{wanted} (got {reg}, a .{reg.type} register)")

    def _check_guard(self, opcode: str, reg: Reg) -> None:
        """A guard is a declared predicate."""
        if not isinstance(reg, Reg) or self._types.get(reg.name) != "pred" or reg.type != "pred":
            what = f"a .{reg.type} register" if isinstance(reg, Reg) and reg.type != "pred" else "not declared"
            raise self._error(f"{opcode}: a guard is a predicate register (got {reg}, {what})")
        self._note_read(reg)

    def _check_vector(self, opcode: str, index: int, slot: Slot, items: tuple[Any, ...]) -> None:
        """A vector has as many elements as the instruction moves; packing braces hold a scalar in equal parts."""
        if slot.vector:
            if len(items) != slot.vector:
                raise self._error(f"{opcode}: operand {index + 1} takes {slot.vector} elements (got {len(items)})")
            return
        parts = [type_bits(item.type) for item in items if isinstance(item, Reg)]
        whole = type_bits(slot.type)
        if any(part * len(items) != whole for part in parts):
            sizes = " + ".join(map(str, parts))
            raise self._error(f"{opcode}: operand {index + 1} packs {whole} bits in equal parts "
                              f"(got {_show(items)}: {sizes} bits)")

    def _note_use(self, reg: Reg, *, writes: bool, reads: bool) -> None:
        if reads:
            self._note_read(reg)
        if writes:
            self._written.add(reg.name)

    def _note_read(self, reg: Reg) -> None:
        if reg.name not in self._read and reg.name in self._types:
            self._read[reg.name] = self._where()

    def finish(self) -> None:
        """Refuse registers that are read but that no instruction writes."""
        for name, where in self._read.items():
            if name not in self._written:
                what = f"register %{name} is read but no instruction writes it"
                raise IsaError(f"{self.spec.kernel_name}{where[0]}: {what} ({where[1]})")

    def _error(self, what: str) -> IsaError:
        """An IsaError that names the kernel, the fragment and the line of the kernel type's own source."""
        fragment, line = self._where()
        return IsaError(f"{self.spec.kernel_name}{fragment}: {what} ({line})")

    def _where(self) -> tuple[str, str]:
        """The open fragment, and the line of source that called the builder."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in _OWN_FILES:
            frame = frame.f_back
        fragment = f", fragment {self._current.name!r}" if self._current else ""
        return fragment, f"{frame.f_code.co_filename}:{frame.f_lineno}"


_OWN_FILES = frozenset({__file__, contextmanager.__code__.co_filename})


def _kind(operand: Any) -> str:
    if isinstance(operand, Reg):
        return "reg"
    if isinstance(operand, tuple):
        return "vec"
    if isinstance(operand, Addr):
        return "addr"
    if isinstance(operand, (int, float)):
        return "imm"
    if isinstance(operand, (Shared, Table)):
        return "sym"
    if isinstance(operand, Not):
        return "pred"
    if isinstance(operand, Or):
        return "pair"
    return "sink" if isinstance(operand, Sink) else type(operand).__name__


def _show(operand: Any) -> str:
    return "{" + ", ".join(map(str, operand)) + "}" if isinstance(operand, tuple) else str(operand)


def _text(operand: Any, slot: Slot) -> str:
    if isinstance(operand, (int, float)):
        return immediate(operand, slot.type)
    if isinstance(operand, tuple):
        return "{" + ", ".join(_text(item, slot) for item in operand) + "}"
    return str(operand)


def _registers(operand: Any) -> Iterable[Reg]:
    if isinstance(operand, Reg):
        return (operand,)
    if isinstance(operand, tuple):
        return tuple(reg for item in operand for reg in _registers(item))
    if isinstance(operand, Addr):
        own = (operand.base,) if isinstance(operand.base, Reg) else ()
        return own + tuple(c for c in operand.coordinates if isinstance(c, Reg))
    if isinstance(operand, Not):
        return (operand.reg,)
    if isinstance(operand, Or):
        return (operand.first, operand.second)
    return ()


__all__ = ["SINK", "Builder", "Fragment"]
