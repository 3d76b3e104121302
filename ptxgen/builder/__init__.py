"""Builds a kernel's straight-line code: named fragments of typed instructions, and the declarations they need.

Control flow is not here: a template places the fragments and owns every label, branch and barrier.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ptxgen.builder import declarations
from ptxgen.builder.declarations import Declarations, Spec
from ptxgen.builder.fragment import ABSENT, MARK, Fragment
from ptxgen.builder.operand import fault, kind_of, registers_of, text_of
from ptxgen.builder.values import SINK, Addr, Not, Reg, RegArray, Sink
from ptxgen.errors import IsaError
from ptxgen.isa import Slot, lookup, special_register, storage_type
from ptxgen.lines.sources import Site, places
from ptxgen.places import Origin

if TYPE_CHECKING:
    from ptxgen.targets import Target

# Control flow belongs to the templates; these words are refused in a fragment.
_SHAPE_WORDS = frozenset({"bra", "brx", "call", "ret", "exit", "bar", "barrier"})


class Builder(Declarations):
    """Passed as `b` to `KernelType.build`. One call of `op` is one instruction."""

    def __init__(self, spec: Spec, target: Target) -> None:
        super().__init__(spec, target)
        self.loops: dict[str, Fragment] = {}  # predicate, as printed -> a turn of the loop that asks it
        self._current: Fragment | None = None
        self._written: set[str] = set()
        self._read: dict[str, tuple[Fragment, int]] = {}  # register -> where it is used first: a line of a fragment
        self._driver = sys._getframe(1).f_code  # what calls `build`
        self._outermost: FrameType | None = None  # of `build`, while a fragment is open: it ends later
        self._emitter: CodeType | None = None  # the function that emitted the last line of the open fragment
        self._attempt: tuple[Any, ...] = ()  # the instruction that is being checked: guard, opcode, operands

    # -- fragments ----------------------------------------------------------------------------------------------

    @contextmanager
    def fragment(self, name: str, what: str = "") -> Iterator[Fragment]:
        """Instructions inside the `with` belong to the fragment of that name; the comment above them says `what`.

        Without it, a fragment of several lines is headed by its name and by what the docstring of the function says
        that most of its lines come from.
        """
        if self._current is not None:
            raise self._error(f"fragment {name!r} opened inside {self._current.name!r}; fragments do not nest")
        full = self._prefix + name
        if full in self.fragments:
            raise self._error(f"fragment {full!r} is built twice")
        if full in self.absent:
            raise self._error(f"fragment {full!r} is built, and declared to be absent")
        if what:
            self._check_note(what, f"fragment {full!r}: what it does")
        self._current = self.fragments[full] = Fragment(full, self._site(), what)
        self._tell(name, self._current)
        caller = sys._getframe(2)  # behind this generator and its context manager
        self._outermost = self._outer(caller)
        try:
            yield self._current
        finally:
            self._current = self._outermost = self._emitter = None

    def without(self, *names: str) -> None:
        """Declare fragments that this text lacks: a skeleton places nothing for them, and may ask `{% if name %}`."""
        for name in names:
            full = self._prefix + name
            if full in self.fragments:
                raise self._error(f"fragment {full!r} is built, and declared to be absent")
            self.absent[full] = ABSENT
            self._tell(name, ABSENT)

    @contextmanager
    def body(self, prefix: str) -> Iterator[None]:
        """What is declared inside is of one body of several in a text: its names begin with `prefix_`, and a skeleton
        that is placed by `body_of(template, prefix)` knows them without. Dynamic shared memory is the same for all."""
        if self._prefix or self._current is not None or prefix in self.bodies:
            raise self._error(f"body {prefix!r} opened twice, or inside another one or a fragment")
        self.bodies[prefix], self._prefix = {}, f"{prefix}_"
        try:
            yield
        finally:
            self._prefix = ""

    def turn(self, again: Reg) -> None:
        """The open fragment is a turn of a loop, and this predicate says whether there is another. A text is refused
        where no loop around the fragment asks the predicate, unless an instruction reads it."""
        if self._current is None:
            raise self._error(f"turn of a loop by {again}: outside of a fragment")
        fragment, predicate = (name.removeprefix(self._prefix) for name in (self._current.name, again.name))
        self._current.form = f'{{{{ {fragment} }}}} in {{% call loop("{fragment}", {predicate}) %}}'
        self.loops[str(again)] = self._current

    # -- instructions -------------------------------------------------------------------------------------------

    def op(self, opcode: str, *operands: Any, pred: Reg | Not | None = None, note: str = "") -> Any:
        """Append one instruction; returns its first destination (a register, or a tuple in braces), if any.

        `opcode` is the full PTX text (`"fma.rn.f32"`). Operands: `Reg`, `~pred`, `Addr` (`ptr[16]`), `Shared`, `int`,
        `float`, a sequence of registers (braces), `SINK`; a `str` as a destination declares a register of the
        slot's type under that name. Raises `IsaError` for an opcode or an operand that the instruction table refuses.
        """
        if self._current is None:
            raise self._error(f"{opcode}: outside of a fragment")
        site, self._attempt = self._site(), (pred, opcode, operands)
        if site[0] is not self._emitter:
            self._emitter = site[0]
            self._current.helpers.append((len(self._current.lines), self._helper(self._current.opened[0])))
        try:
            form = lookup(opcode)
        except IsaError as unknown:
            raise self._error(str(unknown)) from None
        if form.name in _SHAPE_WORDS and opcode != "bar.warp.sync":
            raise self._error(f"{opcode}: control flow and barriers belong to the template, not to a fragment")
        braced = [isinstance(each, (tuple, list, RegArray)) for each in operands] if form.also else ()
        slots = form.layout(len(operands), braced)
        if slots is None:
            most, least = len(form.operands), len(form.operands) - form.optional
            counts = f"{least} to {most}" if form.optional else f"{most}"
            raise self._error(f"{opcode}: takes {counts} operands (got {len(operands)})")
        if form.sm and not self.target.includes_any(form.sm):
            raise self._error(f"{opcode}: needs {' or '.join(form.sm)} ({form.because}); target is {self.target}")
        result: Any = None
        words: list[str] = []
        floats: list[str] = []
        for index, (slot, operand) in enumerate(zip(slots, operands, strict=True)):
            value = self._operand(opcode, index, slot, operand)
            if type(value) is Reg:
                words.append(str(value))
            else:
                if isinstance(value, float) and value not in (0.0, 1.0):
                    floats.append(f"{value:.6g}")
                try:
                    words.append(text_of(value, slot))
                except OverflowError:
                    raise self._error(f"{opcode}: operand {index + 1}: no .{slot.type} holds {value}") from None
            if slot.writes and result is None and not isinstance(value, Sink):
                result = value
        guard = ""
        if pred is not None:
            self._check_guard(opcode, pred.reg if isinstance(pred, Not) else pred)
            guard = f"@{pred} "
        line = f"    {guard}{opcode} {', '.join(words)};" if words else f"    {guard}{opcode};"
        if note:
            self._check_note(note)
        if note or floats:
            line = f"{line}  // {', '.join(filter(None, [note, *floats]))}"
        self._current.add(line, site)
        self._attempt = ()
        return result

    def note(self, text: str, *, after: int = 0) -> None:
        """Append a comment line; with `after` only where at least so many lines have come since the last comment, so
        that a long run of the same work has a heading now and then and a short one none."""
        if self._current is None:
            raise self._error("note: outside of a fragment")
        if after and not self._current.plain(after):
            return
        self._check_note(text)
        self._current.add(f"    // {text}", self._site())

    def special(self, name: str) -> Reg:
        """A special register, by its PTX name without `%` (`"tid.x"`)."""
        found = special_register(f"%{name}")
        if found is None:
            raise self._error(f"%{name}: no such special register")
        return Reg(name, found.type)

    def ld_param(self, name: str, into: str | Reg = "") -> Reg:
        """Load a parameter into the register of its name, or the one named `into`; a pointer becomes a global-space
        address."""
        param = self.param(name)
        value: Reg = self.op(f"ld.param.{param.ptx_type}", into or name, Addr(f"{name}_param"))
        if param.kind != "scalar":
            self.op("cvta.to.global.u64", value, value)
        return value

    # -- checks -------------------------------------------------------------------------------------------------

    def _operand(self, opcode: str, index: int, slot: Slot, operand: Any) -> Any:
        """The checked operand; declares a destination given by name."""
        if type(operand) is Reg and self._fits(operand, slot):  # most operands
            if slot.reads and operand.name not in self._read:
                self._note_read(operand)
            if slot.writes:
                self._written.add(operand.name)
            return operand
        if isinstance(operand, str):
            if not slot.writes or slot.vector:
                raise self._error(
                    f"{opcode}: operand {index + 1} is a source; a name (got {operand!r}) declares only "
                    "a scalar destination"
                )
            operand = self.reg(operand, storage_type(slot.type))
        elif isinstance(operand, RegArray):
            operand = operand.regs
        elif isinstance(operand, list):
            operand = tuple(operand)
        kind = kind_of(operand)
        registers = registers_of(operand)
        wrong = fault(self._types, opcode, slot, kind, operand, registers)
        if wrong:
            raise self._error(f"{opcode}: operand {index + 1}{wrong}")
        if not slot.writes or slot.reads or kind == "addr":
            for reg in registers:
                self._note_read(reg)
        if slot.writes and kind != "addr":
            self._written.update(reg.name for reg in registers)
        return operand

    def _fits(self, reg: Reg, slot: Slot) -> bool:
        """Whether a register is declared here, with the type it says, and that type fits."""
        return "reg" in slot.kinds and reg.type in slot.accepts and self._types.get(reg.name) == reg.type

    def _check_note(self, text: str, about: str = "note:") -> None:
        """A comment is one line of ASCII: ptxas refuses other characters, and another line would be code."""
        if not text.isascii() or "\n" in text:
            raise self._error(f"{about} must be one line of ASCII (got {text!r})")

    def _check_guard(self, opcode: str, reg: Reg) -> None:
        """A guard is a declared predicate."""
        if not isinstance(reg, Reg) or self._types.get(reg.name) != "pred" or reg.type != "pred":
            what = f"a .{reg.type} register" if isinstance(reg, Reg) and reg.type != "pred" else "not declared"
            raise self._error(f"{opcode}: a guard is a predicate register (got {reg}, {what})")
        self._note_read(reg)

    def _note_read(self, reg: Reg) -> None:
        if reg.name not in self._read and reg.name in self._types and self._current is not None:
            self._read[reg.name] = self._current, len(self._current.lines)

    def finish(self) -> None:
        """Refuse registers that are read but that no instruction writes: a line for each."""
        unwritten = {name: place for name, place in self._read.items() if name not in self._written}
        if unwritten:
            raise IsaError("\n".join(
                self._finding(f"register %{name} is read but no instruction writes it", fragment,
                              fragment.sites[line], fragment.lines[line])
                for name, (fragment, line) in unwritten.items()
            ))  # fmt: skip

    def _error(self, what: str) -> IsaError:
        """An IsaError that names the kernel, the fragment, the lines that called, and the instruction."""
        attempt, self._attempt = self._attempt, ()
        return IsaError(self._finding(what, self._current, self._site(), _shown(*attempt) if attempt else ""))

    def _finding(self, what: str, fragment: Fragment | None, site: Site, line: str) -> str:
        from ptxgen.lines.placement import placement

        name = fragment.name if fragment else ""
        template = placement(self.spec.template(self.target), name) if name else None
        source = Origin(name, *places(site), template)
        shown = f" | {line.strip()}" if line else ""
        return f"kernel {self.spec.kernel_name}, {source}: {what}{shown}"

    def _site(self) -> Site:
        """The line that calls the builder, and the line of the kernel type's `build` that it comes from."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename in _OWN_FILES and frame.f_back is not None:
            frame = frame.f_back
        outer = self._outermost or self._outer(frame) or frame
        return frame.f_code, frame.f_lasti, outer.f_code, outer.f_lasti

    def _helper(self, opener: CodeType) -> CodeType | None:
        """The function that a fragment's opener called and that calls the builder now."""
        frame: FrameType | None = sys._getframe(2)
        below = None
        while frame is not None and frame.f_code is not opener:
            if frame.f_code.co_filename not in _OWN_FILES:
                below = frame.f_code
            frame = frame.f_back
        return below if frame is not None else None

    def _outer(self, frame: FrameType) -> FrameType | None:
        """The frame of `build` that a frame belongs to; None where the builder is used without one."""
        outer, back = frame, frame.f_back
        while back is not None and back.f_code is not self._driver:
            outer, back = back, back.f_back
        return None if back is None else outer


def _shown(pred: Any, opcode: str, operands: tuple[Any, ...]) -> str:
    """An instruction that was refused, as far as it can be printed."""

    def word(operand: Any) -> str:
        if isinstance(operand, (tuple, list, RegArray)):
            return "{" + ", ".join(map(word, operand)) + "}"
        return f"%{operand}" if isinstance(operand, str) else str(operand)

    guard = "" if pred is None else f"@{pred} "
    return f"{guard}{opcode} {', '.join(map(word, operands))}".rstrip() + ";"


_OWN_FILES = frozenset({__file__, declarations.__file__, contextmanager.__code__.co_filename})


__all__ = ["MARK", "SINK", "Builder", "Fragment"]


def __dir__() -> list[str]:
    return list(__all__)
