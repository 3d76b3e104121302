"""The video instructions in plain integer arithmetic (PTX ISA 9.0, "Scalar Video Instructions", "SIMD Video …").

Numbers are computed in 64 bits, so that nothing is lost before saturation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TWO = ("add", "sub", "absdiff", "min", "max")
VIDEO = frozenset(
    [f"v{name}" for name in (*_TWO, "shl", "shr", "mad", "set")]
    + [f"v{name}{lanes}" for name in (*_TWO, "avrg", "set") for lanes in (2, 4)]
)
_SELECTED = re.compile(r"(%?[\w$]+)\.([bh])([0-7]+)")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(slots=True)
class _Text:
    """Statements being written, with registers of their own."""

    lines: list[str] = field(default_factory=list)
    wide: int = 0

    def __call__(self, opcode: str, *operands: str) -> str:
        """One instruction with a fresh 64-bit result."""
        self.wide += 1
        result = f"%$w{self.wide}"
        self.lines.append(f"{opcode} {', '.join((result, *operands))};")
        return result

    def compared(self, comparison: str, a: str, b: str) -> str:
        """1 where it holds, else 0."""
        self.lines.append(f"setp.{comparison}.s64 %$p, {a}, {b};")
        return self("selp.s64", "1", "0", "%$p")

    def done(self, guard: str, target: str, value: str) -> str:
        """The whole scope, which ends by writing the target."""
        head = f"{{ .reg .pred %$p; .reg .b32 %$n; .reg .b64 %$w<{self.wide + 1}>; "
        return f"{head}{' '.join(self.lines)} cvt.u32.u64 %$n, {value}; {guard}mov.b32 {target}, %$n; }}"


def video(words: list[str], operands: list[str], guard: str) -> str | None:
    """The text of one video instruction in others; None for a form that there is not."""
    name = words[0].rstrip("24")
    lanes = int(words[0][-1]) if words[0][-1] in "24" else 1
    try:
        if lanes > 1:
            return _lanes(name[1:], lanes, words[1:], operands, guard)
        return (
            _multiplied(words[1:], operands, guard) if name == "vmad" else _scalar(name[1:], words[1:], operands, guard)
        )
    except (LookupError, ValueError):
        return None


def _types(words: list[str], count: int) -> tuple[list[str], list[str]]:
    types = words[:count]
    if len(types) < count or any(kind not in ("s32", "u32") for kind in types):
        raise ValueError(words)
    return types, words[count:]


def _part(t: _Text, operand: str, kind: str) -> str:
    """An operand with its selector, extended by its type's sign."""
    found = _SELECTED.fullmatch(operand)
    if found is None:
        return t(f"cvt.{kind[0]}64.{kind}", operand)
    bits = 8 if found[2] == "b" else 16
    if int(found[3]) >= 32 // bits:
        raise ValueError(operand)
    wide = t("cvt.u64.u32", found[1])
    return t(f"bfe.{kind[0]}64", wide, str(bits * int(found[3])), str(bits))


def _computed(t: _Text, name: str, a: str, b: str) -> str:
    if name in ("add", "sub", "min", "max"):
        return t(f"{name}.s64", a, b)
    if name == "absdiff":
        return t("abs.s64", t("sub.s64", a, b))
    if name == "avrg":  # halves are rounded away from zero
        total = t("add.s64", a, b)
        up = t.compared("ge", total, "0")
        return t("shr.s64", t("add.s64", total, up), "1")
    raise ValueError(name)


def _saturated(t: _Text, value: str, kind: str, bits: int) -> str:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return t("min.s64", t("max.s64", value, str(low)), str(high))


def _signature(name: str, words: list[str]) -> tuple[str, str, str, str, list[str]]:
    """Types of the result, a and b, the comparison of a `set`, and the modifiers behind them."""
    if name != "set":
        (kind, a_type, b_type), rest = _types(words, 3)
        return kind, a_type, b_type, "", rest
    (a_type, b_type), (comparison, *rest) = _types(words, 2)
    if comparison not in _COMPARISONS:
        raise ValueError(comparison)
    return "u32", a_type, b_type, comparison, rest


def _scalar(name: str, words: list[str], operands: list[str], guard: str) -> str:
    t = _Text()
    kind, a_type, b_type, comparison, rest = _signature(name, words)
    saturate = rest[:1] == ["sat"]
    rest = rest[1:] if saturate else rest
    a, b = _part(t, operands[1], a_type), _part(t, operands[2], b_type)
    if comparison:
        value = t.compared(comparison, a, b)
    elif name in ("shl", "shr"):
        mode, *rest = rest
        if rest[:1] == ["sat"]:
            saturate, rest = True, rest[1:]
        by = t("and.b64", b, "31") if mode == "wrap" else t("min.u64", b, "32")
        amount = f"%$s{t.wide}"
        t.lines.append(f".reg .b32 {amount}; cvt.u32.u64 {amount}, {by};")
        value = t("shl.b64", a, amount) if name == "shl" else t("shr.s64", a, amount)
    else:
        value = _computed(t, name, a, b)
    merged = _SELECTED.fullmatch(operands[0])
    bits = 32 if merged is None else 8 if merged[2] == "b" else 16
    if saturate:
        value = _saturated(t, value, kind, bits)
    if rest:
        (second,) = rest
        if second not in ("add", "min", "max"):
            raise ValueError(second)
        value = t(f"{second}.s64", value, t(f"cvt.{kind[0]}64.{kind}", operands[3]))
    elif merged is not None:
        value = t("bfi.b64", value, t("cvt.u64.u32", operands[3]), str(bits * int(merged[3])), str(bits))
    return t.done(guard, merged[1] if merged else operands[0], value)


def _multiplied(words: list[str], operands: list[str], guard: str) -> str:
    """vmad: a·b + c; a product of 32-bit numbers and a sum fit 64 bits."""
    t = _Text()
    (kind, a_type, b_type), rest = _types(words, 3)
    signed = "s" if "s" in (a_type[0], b_type[0]) else "u"
    a, b = _part(t, operands[1], a_type), _part(t, operands[2], b_type)
    value = t(f"mad.lo.{signed}64", a, b, t(f"cvt.{kind[0]}64.{kind}", operands[3]))
    for word in rest:
        if word == "po":
            value = t("add.s64", value, "1")
        elif word in ("shr7", "shr15"):
            value = t(f"shr.{signed}64", value, word[3:])
    if "sat" in rest:
        value = _saturated(t, value, "s32", 32) if signed == "s" else t("min.u64", value, str((1 << 32) - 1))
    if set(rest) - {"po", "shr7", "shr15", "sat"}:
        raise ValueError(rest)
    return t.done(guard, operands[0], value)


def _lanes(name: str, lanes: int, words: list[str], operands: list[str], guard: str) -> str:
    """Two halves or four bytes at once; the lanes that the mask names go over c's, or are added to c."""
    t, bits, letter = _Text(), 32 // lanes, "h" if lanes == 2 else "b"
    kind, a_type, b_type, comparison, rest = _signature(name, words)
    saturate, add = "sat" in rest, "add" in rest
    if set(rest) - {"sat", "add"}:
        raise ValueError(words)
    (a_name, a_lanes), (b_name, b_lanes) = (
        _selection(operand, letter, lanes, lanes * n) for n, operand in enumerate(operands[1:3])
    )
    target, mask = _selection(operands[0], letter, lanes, 0)
    a, b = t("cvt.u64.u32", a_name), t("cvt.u64.u32", b_name)
    both = t("bfi.b64", b, a, "32", "32")
    result = t("cvt.u64.u32", operands[3])
    if add:
        result = t(f"cvt.{kind[0]}64.{kind}", operands[3])
    for lane in range(lanes):
        if lane not in mask:
            continue
        x = t(f"bfe.{a_type[0]}64", both, str(bits * a_lanes[lane]), str(bits))
        y = t(f"bfe.{b_type[0]}64", both, str(bits * b_lanes[lane]), str(bits))
        value = t.compared(comparison, x, y) if comparison else _computed(t, name, x, y)
        if saturate:
            value = _saturated(t, value, kind, bits)
        result = t("add.s64", result, value) if add else t("bfi.b64", value, result, str(bits * lane), str(bits))
    return t.done(guard, target, result)


def _selection(operand: str, letter: str, lanes: int, first: int) -> tuple[str, list[int]]:
    """A register and the lanes that its selector names, lowest first; by default all, from `first` on."""
    found = _SELECTED.fullmatch(operand)
    if found is None:
        return operand, list(range(first, first + lanes))
    if found[2] != letter:
        raise ValueError(operand)
    return found[1], [int(digit) for digit in reversed(found[3])]
