"""Rules for ptxgen's own text, beyond what PTX demands: loop form, 64-bit addresses, no 32-bit products in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ptxgen.nodes import Address, Immediate, Instruction, Label, Operand, Register, Symbol

Finding = tuple[int, str]

_UNKNOWN = (1 << 32) - 1
_LIMIT = 1 << 31
# Largest values (PTX ISA, "Special Registers"; CUDA programming guide, technical specifications).
_LARGEST = {
    "%laneid": 31, "%tid.x": 1023, "%tid.y": 1023, "%tid.z": 63, "%ntid.x": 1024, "%ntid.y": 1024, "%ntid.z": 64,
    "%warpid": 63, "%nwarpid": 64, "%ctaid.y": 65534, "%ctaid.z": 65534, "%nctaid.y": 65535, "%nctaid.z": 65535,
    "%cluster_ctarank": 31, "%cluster_nctarank": 32, "%cluster_ctaid.x": 31, "%cluster_nctaid.x": 32,
}  # fmt: skip
_GLOBAL_WORDS = frozenset({"ld", "st", "atom", "red", "cp", "prefetch", "prefetchu"})


def backward_branches(items: list[Instruction | Label]) -> Iterator[Finding]:
    """A loop ends in a predicated branch back; an unpredicated one is refused."""
    seen: set[str] = set()
    for item in items:
        if isinstance(item, Label):
            seen.add(item.name)
        elif item.guard is None and item.opcode in ("bra", "bra.uni") and isinstance(item.operands[0], Symbol):
            target = item.operands[0].name
            if target in seen:
                yield item.line, f"branch back to {target} is not predicated; a loop is a guarded do-while"


def narrow_addresses(items: list[Instruction | Label], limits: Mapping[str, int]) -> Iterator[Finding]:
    """No 32-bit product that may pass 2³¹ is widened into a global address.

    A register's largest value is followed through mov, add, and, shr, shl, min, rem, mul.lo and mad.lo where it is
    written once; loaded values count as 2³²−1. A product of 2³¹ or more marks its register; cvt, mul.wide, mad.wide
    and 64-bit additions carry the mark; a global access through a marked register is the finding. `mul.wide` and
    `mad.wide` of the factors themselves are the remedy. `limits` adds largest values of special registers.
    """
    values = _Values(items, limits)
    for item in items:
        if isinstance(item, Instruction):
            marked = values.address(item)
            if marked is not None:
                yield item.line, f"the address holds line {marked}'s 32-bit product; multiply in 64 bits (mul.wide)"
            values.follow(item)


class _Values:
    """Largest values of 32-bit registers, and which registers carry an unsafe product (by the product's line)."""

    def __init__(self, items: list[Instruction | Label], limits: Mapping[str, int]) -> None:
        self.largest = {**_LARGEST, **limits}
        self.marks: dict[str, int] = {}
        self.written: dict[str, int] = {}
        for item in items:
            if isinstance(item, Instruction) and item.operands:
                first = item.operands[0]
                if isinstance(first, Register):
                    self.written[first.name] = self.written.get(first.name, 0) + 1

    def bound(self, operand: Operand) -> int:
        if isinstance(operand, Immediate):
            value = operand.value
            return int(value) if isinstance(value, int) and value >= 0 else _UNKNOWN
        if isinstance(operand, Register):
            return self.largest.get(operand.name, _UNKNOWN)
        return _UNKNOWN

    def address(self, item: Instruction) -> int | None:
        """The line of the product inside a global address of this instruction."""
        if not self.marks:
            return None
        words = item.opcode.split(".")
        if words[0] not in _GLOBAL_WORDS or "global" not in words:
            return None
        spaces = [word for word in words if word.partition("::")[0] in ("global", "shared")]
        addresses = [operand for operand in item.operands if isinstance(operand, Address)]
        for space, operand in zip(spaces, addresses, strict=False):  # a copy names its spaces in the operands' order
            if space == "global" and isinstance(operand.base, Register) and operand.base.name in self.marks:
                return self.marks[operand.base.name]
        return None

    def follow(self, item: Instruction) -> None:
        """Take an instruction's result into account."""
        operands = item.operands
        if not operands or not isinstance(operands[0], Register):
            return
        name, sources = operands[0].name, operands[1:]
        mark = next((self.marks[s.name] for s in sources if isinstance(s, Register) and s.name in self.marks), None)
        word = item.opcode
        result = self._result(word, sources)
        product = word in ("mul.lo.s32", "mul.lo.u32", "mad.lo.s32", "mad.lo.u32")
        if product and result is None:
            mark = mark or item.line
        elif not word.startswith(("add.", "sub.", "mov.", "cvt.", "mul.", "mad.", "shl.", "cvta.")):
            mark = None
        if mark is not None:
            self.marks[name] = mark
        elif self.written.get(name, 0) == 1:
            self.marks.pop(name, None)
        if result is not None and self.written.get(name, 0) == 1:
            self.largest[name] = result

    def _result(self, word: str, sources: tuple[Operand, ...]) -> int | None:
        """The largest value of a 32-bit result; None when it may pass 2³¹ or is not followed."""
        rule = _RULES.get(word)
        if rule is None:
            return None
        value = rule([self.bound(source) for source in sources])
        return value if value < _LIMIT else None


_RULES = {
    **dict.fromkeys(("mov.u32", "mov.s32", "mov.b32"), lambda b: b[0]),
    **dict.fromkeys(("add.u32", "add.s32"), lambda b: b[0] + b[1]),
    **dict.fromkeys(("mul.lo.u32", "mul.lo.s32"), lambda b: b[0] * b[1]),
    **dict.fromkeys(("mad.lo.u32", "mad.lo.s32"), lambda b: b[0] * b[1] + b[2]),
    **dict.fromkeys(("and.b32", "min.u32"), lambda b: min(b[0], b[1])),
    **dict.fromkeys(("shr.u32", "shr.b32"), lambda b: b[0] >> min(b[1], 32)),
    "shl.b32": lambda b: b[0] << min(b[1], 32),
    "rem.u32": lambda b: max(b[1] - 1, 0),
    "div.u32": lambda b: b[0],
}
