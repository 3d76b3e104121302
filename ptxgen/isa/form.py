"""What a form of an instruction is: its operand slots, and which register types a slot takes. Owns no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ptxgen.targets import Target

IsaVersion = tuple[int, int]

_BITS = {
    "pred": 1, "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "b32": 32, "u32": 32, "s32": 32,
    "f32": 32, "f16x2": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64, "b128": 128,
}  # fmt: skip
REGISTER_TYPES: tuple[str, ...] = tuple(_BITS)

# Types that instructions name but registers cannot have: they travel in untyped registers of this size.
_PACKED = {
    "bf16": 16, "e4m3x2": 16, "e5m2x2": 16, "e2m3x2": 16, "e3m2x2": 16, "ue8m0x2": 16, "e2m1x2": 8, "e2m1x4": 16,
    "bf16x2": 32, "tf32": 32, "u16x2": 32, "s16x2": 32, "e4m3x4": 32, "e5m2x4": 32, "e2m3x4": 32, "e3m2x4": 32,
    "rbits": 32, "f32x2": 64,
}  # fmt: skip


def storage_type(type: str) -> str:
    """The type to declare a register with that holds a value of this instruction type (`bf16x2`: `b32`)."""
    return f"b{_PACKED[type]}" if type in _PACKED else type


def is_type(word: str) -> bool:
    """Whether a modifier names a type."""
    return word in _BITS or word in _PACKED


def type_bits(name: str) -> int:
    """Size in bits of a PTX type, of registers or of packed elements (`f16x2`: 32). `KeyError` when unknown."""
    return _BITS.get(name) or _PACKED[name]


@cache
def accepted_registers(type: str, relaxed: bool) -> frozenset[str]:
    """Register types that an operand of this instruction type takes.

    Untyped (`b`) operands take every type of the same size; integers take either sign and untyped; floats take
    themselves and untyped. `relaxed` (ld, st, cvt): registers may be wider, floats only in untyped ones.
    Source: PTX ISA 9.0, "Instruction Operands: Operand Size Exceeding Instruction-Type Size"; checked against ptxas.
    """
    if type in _PACKED:
        return frozenset({f"b{_PACKED[type]}"})
    bits, kind = _BITS[type], type[0]
    if type == "pred":
        return frozenset({"pred"})
    families = {"b": "busf", "f": "b"}.get(kind, "bus")
    sized = {name for name, size in _BITS.items() if name != "pred" and (size >= bits if relaxed else size == bits)}
    return frozenset({type} | {name for name in sized if name[0] in families})


_ADDRESS_REGISTERS = frozenset({"b32", "u32", "s32", "b64", "u64", "s64"})
_WIDE_ADDRESS_REGISTERS = frozenset({"b64", "u64", "s64"})


class Allowed(NamedTuple):
    """Which values a literal may have. `text` is the row's: `24..256/8` (a multiple of 8), `1..`, `4|8|16`."""

    text: str
    values: range | tuple[int, ...]

    def __str__(self) -> str:
        if isinstance(self.values, tuple):
            return " or ".join(map(str, self.values))
        low, last, step = self.values.start, self.values[-1], self.values.step
        what = f"a multiple of {step}" if step > 1 else "an integer"
        return f"{what} of at least {low}" if self.text.split("/")[0].endswith("..") else f"{what} from {low} to {last}"


@cache
def _allowed(text: str) -> Allowed:
    ends, _, step = text.partition("/")
    if ".." not in ends:
        return Allowed(text, tuple(map(int, ends.split("|"))))
    low, _, high = ends.partition("..")
    return Allowed(text, range(int(low), int(high or (1 << 32) - 1) + 1, int(step or 1)))


@dataclass(frozen=True, slots=True)
class Slot:
    """One operand position of a form.

    `kinds` holds what may stand there: "reg", "imm", "sym" (a variable's address), "addr" (`[…]`), "vec" (`{…}`),
    "pred" (a predicate, also negated), "pair" (`%d|%p`), "sink" (`_`), "label", "group" (`(…)`).
    `type` is the PTX type of one element; for "addr" that of the address, with the state space in `space` ("" is
    generic). `vector` is the number of elements in braces, or of tensor coordinates of an address; 0 with kind "vec"
    means that braces pack or unpack a scalar (`mov.b64 {%lo, %hi}, %wide`). `relaxed`: the register may be wider than
    the type. `accepts` are the register types that fit, `allowed` the literals where not all that fit the type do.
    """

    type: str
    kinds: frozenset[str]
    writes: bool = False
    reads: bool = True
    vector: int = 0
    relaxed: bool = False
    space: str = ""
    accepts: frozenset[str] = frozenset()
    allowed: Allowed | None = None

    def __str__(self) -> str:
        if "addr" in self.kinds:
            return f"[{self.space or 'generic'} address]"
        if self.vector:
            return "{" + f"{self.vector} × .{self.type}" + "}"
        if not self.type:
            return " or ".join(sorted(self.kinds))
        names = {"reg": "register", "imm": "immediate", "sym": "symbol", "vec": "packed {…}", "pair": "pair %d|%p"}
        return f".{self.type} " + " or ".join(names.get(k, k) for k in sorted(self.kinds, reverse=True) if k != "sink")


def slot_accepts(slot: Slot, register_type: str) -> bool:
    """Whether a register declared with this type fits the slot (an element of it, for vectors)."""
    return register_type in slot.accepts


@dataclass(frozen=True, slots=True)
class Form:
    """One instruction form: an opcode with all its modifiers.

    `operands` in order; the last `optional` of them may be absent. `also` holds the forms of the same opcode with other
    operands (a middle one left out, a descriptor in place of registers), each with its own demands. `earlier` holds
    (version, targets) where higher targets had the form before `ptx`; `ptx_on` minds them.
    `ptx` and `sm` are the lowest PTX ISA version and the alternatives for `Target.includes_any` (`()`: any target);
    `because` is the word of the opcode that forces the higher of them. `section` names the PTX ISA section.
    """

    opcode: str
    name: str
    operands: tuple[Slot, ...]
    optional: int
    ptx: IsaVersion
    sm: tuple[str, ...]
    because: str
    section: str
    also: tuple[Form, ...] = ()
    earlier: tuple[tuple[IsaVersion, tuple[str, ...]], ...] = ()

    def ptx_on(self, where: Target) -> IsaVersion:
        """The lowest PTX ISA version that has this form on a target."""
        return min([self.ptx, *(ptx for ptx, sm in self.earlier if where.includes_any(sm))])

    def takes(self, count: int) -> bool:
        """Whether this form (without `also`) can have so many operands."""
        return len(self.operands) - self.optional <= count <= len(self.operands)

    def layout(self, count: int, braced: Sequence[bool] = ()) -> tuple[Slot, ...] | None:
        """The operand slots for so many operands, those of `also` included; None when no form has that many.

        `braced`: which of them are registers in braces; it tells forms of equally many operands apart.
        """
        form = self.of_count(count)
        if form is None:
            return None
        if braced and self.also:
            same = [each for each in (self, *self.also) if each.takes(count) and each.braces(count) == tuple(braced)]
            form = same[0] if same else form
        return form.operands[:count]

    def braces(self, count: int) -> tuple[bool, ...]:
        """Which of the first operands are vectors."""
        return tuple(slot.vector > 0 for slot in self.operands[:count])

    def of_count(self, count: int) -> Form | None:
        """This form, or the first of `also`, that can have so many operands; None when none can."""
        return next((form for form in (self, *self.also) if form.takes(count)), None)


_KIND_LETTERS = {
    "r": "reg", "i": "imm", "s": "sym", "v": "vec", "p": "pair", "_": "sink", "n": "pred", "l": "label", "g": "group",
}  # fmt: skip
_BARE = {"label": "l", "sym": "s", "group": "g"}


@cache
def slot_of(token: str) -> Slot:
    """The slot that a token of a row's operand string describes (see `pattern.py` for the notation)."""
    writes = token[0] == "="
    body = token[1:] if writes else token
    if body[0] == "[":
        space, _, coordinates = body[1:].partition("]")
        dims = int(coordinates[1:] or 0)
        narrow = space.startswith(("shared", "local", "const", "param"))
        accepts = _ADDRESS_REGISTERS if narrow else _WIDE_ADDRESS_REGISTERS
        return Slot("u64", frozenset({"addr"}), vector=dims, space=space, accepts=accepts)
    relaxed = body[0] == "~"
    body, _, values = body.partition("@")
    body, _, count = body.lstrip("~").partition("*")
    type_name, _, letters = body.partition(":")
    if type_name in _BARE:
        return Slot("", frozenset({_KIND_LETTERS[c] for c in letters or _BARE[type_name]}))
    vector = int(count) if count else 0
    if not letters:
        letters = "r" if writes or vector else "ni" if type_name == "pred" else "ri"
    kinds = {_KIND_LETTERS[c] for c in letters}
    if vector:
        kinds = {"vec"} | (kinds & {"imm", "sink"})
    elif "pred" in kinds:
        kinds.add("reg")
    accepts = accepted_registers(type_name, relaxed)
    allowed = _allowed(values) if values else None
    return Slot(type_name, frozenset(kinds), writes, not writes, vector, relaxed, accepts=accepts, allowed=allowed)
