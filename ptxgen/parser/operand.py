"""Operand texts to nodes: registers, immediates, constant expressions, addresses, vectors; of any opcode."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from ptxgen.errors import IsaError, brief
from ptxgen.gc_pause import GcPause
from ptxgen.nodes import Address, Group, Immediate, Negated, Operand, Pair, Register, Symbol, Vector
from ptxgen.parser.limits import MOST_NESTED

_REGISTER = re.compile(r"%[\w$]+(?:\.[\w:]+)?|_|[A-Za-z_$][\w$]*\.[xyzwrgba]")
_NUMBER = re.compile(r"-?\s*(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)")
_LONGEST = 80  # a sign, 0b and 64 bits, with room for blanks
_NOT_OCTAL = re.compile(r"-?\s*0\d*[89]\d*U?")
_DECIMAL = re.compile(r"[-+]?\s*(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?")
_WARP_SIZE = re.compile(r"\bWARP_SZ\b")
_NAME = re.compile(r"[A-Za-z_$][\w$]*|%[A-Za-z_$][\w$]*")
_OFFSET = re.compile(r"(.+?) ?([-+]) ?(-? ?(?:0[xX][0-9a-fA-F]+|\d+)U?)")  # between single blanks
_WRAPPED = re.compile(r"(?:generic|mask|0[xX][fF0]+)\s*\(.*\)(?:\s*\+\s*\d+)?", re.DOTALL)
# What compilers fill large tables with: a list of literals of which each is well-formed
_LITERAL = (
    r"(?:-?[1-9]\d{0,19}|0|0[xX][0-9a-fA-F]{1,16}|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}"
    r"|-?\d{1,20}\.\d{0,20}(?:[eE][-+]?\d{1,3})?)"
)
_TABLE = re.compile(rf"\s*{_LITERAL}\s*(?:,\s*{_LITERAL}\s*)*")
_LARGE = 1000  # characters
_EXPRESSION = re.compile(r"(?:(?:0[xX][0-9a-fA-F]+|\d+)[uU]?(?!\w)|[\s()+\-*/%&|^~<>!=?:])+")


@lru_cache(maxsize=1 << 16)
def parse_operand(text: str) -> Operand:
    """The node of one operand's text, stripped. Equal texts give the same node. Raises `IsaError` with the text."""
    if _REGISTER.fullmatch(text):
        return Register(text)
    if _NUMBER.fullmatch(text):
        if len(text) > _LONGEST:
            raise IsaError(f"a literal has 64 bits at most (got {text[:20]}…, {len(text)} characters)")
        if _NOT_OCTAL.fullmatch(text):
            raise IsaError(f"a number that begins with 0 has digits up to 7 (got {text})")
        return Immediate("".join(text.split()))
    first = text[:1]
    if first == "[":
        return _address(text)
    if first == "{":
        return Vector(_items(_inside(text, "{", "}")))
    if first == "(" and text.find(")") == len(text) - 1:
        return Group(tuple(map(parse_operand, split_operands(_inside(text, "(", ")")))))
    if first == "!":
        name = text[1:].strip()
        if _REGISTER.fullmatch(name) or _NAME.fullmatch(name):
            return Negated(Register(name))
    return _rest(text)


def _items(inner: str) -> tuple[Operand, ...]:
    if len(inner) > _LARGE and _TABLE.fullmatch(inner):
        return _literals(inner)
    return tuple(map(parse_operand, split_operands(inner)))


def _literals(inner: str) -> tuple[Operand, ...]:
    """The literals of a table, of which there may be a million."""
    with GcPause():
        return tuple(map(Immediate, "".join(inner.split()).split(",")))


def _rest(text: str) -> Operand:
    text = " ".join(text.split())
    if _DECIMAL.fullmatch(text):
        return Immediate("".join(text.split()))
    if _WARP_SIZE.search(text):
        return parse_operand(_WARP_SIZE.sub("32", text))
    if _NAME.fullmatch(text):
        return Symbol(text)
    if "|" in text and not _EXPRESSION.fullmatch(text):
        first, _, second = text.partition("|")
        return Pair(Register(first.strip()), Register(second.strip()))
    offset = _OFFSET.fullmatch(text)
    if offset and _NAME.fullmatch(offset[1]):
        return Symbol(offset[1], _offset(offset))
    if _WRAPPED.fullmatch(text):
        return Symbol(" ".join(text.split()))
    if text and _EXPRESSION.fullmatch(text):
        return Immediate(str(evaluate(text)))
    raise IsaError(f"not an operand: {brief(text)}")


def _offset(match: re.Match[str]) -> int:
    if len(match[3]) > _LONGEST:
        raise IsaError(f"an offset has 64 bits at most (got {match[3][:20]}…, {len(match[3])} characters)")
    if _NOT_OCTAL.fullmatch(match[3]):
        raise IsaError(f"a number that begins with 0 has digits up to 7 (got {match[3]})")
    value = int(Immediate("".join(match[3].split())).value)
    return -value if match[2] == "-" else value


def _inside(text: str, opening: str, closing: str) -> str:
    if text[0] != opening or text[-1] != closing:
        raise IsaError(f"{opening} without {closing}: {brief(text)}")
    return text[1:-1]


def _address(text: str) -> Address:
    unified = text.endswith(".unified")
    inner, *coordinates = split_operands(_inside(text.removesuffix(".unified").rstrip(), "[", "]")) or [""]
    if not inner or len(coordinates) > 1:
        raise IsaError(f"not an address: {brief(text)}")
    inner = " ".join(inner.split())
    at = _OFFSET.fullmatch(inner)
    offset = 0
    if at and not _EXPRESSION.fullmatch(at[1]):
        inner, offset = at[1], _offset(at)
    base = parse_operand(inner)
    if isinstance(base, Symbol):
        base, offset = Symbol(base.name), base.offset + offset
    if not isinstance(base, (Register, Symbol, Immediate)):
        raise IsaError(f"not an address: {brief(text)}")
    vector = parse_operand(coordinates[0]) if coordinates else None
    if vector is not None and not isinstance(vector, Vector):
        raise IsaError(f"coordinates of an address stand in braces: {brief(text)}")
    return Address(base, offset, vector, unified)


# An operand with brackets side by side, as most have them
_FLAT = re.compile(r"(?:[^][{}(),]+|\{[^][{}()]*\}|\[[^][{}()]*\]|\([^][{}()]*\))*")
_BRACKET, _BRACKET_OR_COMMA = re.compile(r"[][{}()]"), re.compile(r"[][{}(),]")


def split_operands(text: str) -> list[str]:
    """The parts between top-level commas, stripped. An empty text has none."""
    if "{" not in text and "[" not in text and "(" not in text:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    return _side_by_side(text) or _nested(text)


def _side_by_side(text: str) -> list[str]:
    """The parts, where no bracket stands in another; else none."""
    parts, at = [], 0
    while True:
        end = _FLAT.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        parts.append(text[at:end].strip())
        if end == len(text):
            return parts
        if text[end] != ",":
            return []
        at = end + 1


def _nested(text: str) -> list[str]:
    parts, depth, deepest, start = [], 0, 0, 0
    at = _BRACKET_OR_COMMA.search(text)
    while at is not None:
        char = at[0]
        if char == ",":
            parts.append(text[start : at.start()].strip())
            start = at.end()
        elif char in "{[(":
            depth += 1
            deepest = max(deepest, depth)
        elif depth:
            depth -= 1
        else:
            raise IsaError(f"unbalanced brackets: {brief(text.strip())}")
        at = (_BRACKET if depth else _BRACKET_OR_COMMA).search(text, at.end())
    if deepest > MOST_NESTED:
        raise IsaError(f"brackets: at most {MOST_NESTED} nest (got {deepest:,})")
    if depth:
        raise IsaError(f"unbalanced brackets: {brief(text.strip())}")
    parts.append(text[start:].strip())
    return parts


_TERM = re.compile(r"\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~<>!?:()])[uU]?")
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
           ("*", "/", "%"))  # fmt: skip
_PRECEDENCE = {operator: level for level, operators in enumerate(_LEVELS) for operator in operators}
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)), "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b), "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b), ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << min(b, 64) if b >= 0 else _shifted(),
    ">>": lambda a, b: a >> b if b >= 0 else _shifted(), "+": lambda a, b: a + b, "-": lambda a, b: a - b,
    "*": lambda a, b: a * b, "/": lambda a, b: _divided(a, b), "%": lambda a, b: a - b * _divided(a, b),
}  # fmt: skip


def _shifted() -> int:
    raise IsaError("a shift by less than 0 in a constant expression")


def _divided(a: int, b: int) -> int:
    """The quotient, towards zero."""
    if not b:
        raise IsaError("division by zero in a constant expression")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def evaluate(text: str) -> int:
    """The value of an integer constant expression, C's operators and precedence (PTX ISA, "Constant Expressions")."""
    words = _TERM.findall(text)
    if "".join(words) != re.sub(r"\s|(?<=[0-9a-fA-F])[uU]", "", text):
        raise IsaError(f"not an operand: {brief(text)}")
    reader = _Expression(words)
    value = reader.conditional()
    if reader.word():
        raise IsaError(f"not an operand: {brief(text)}")
    return value


class _Expression:
    """The words of a constant expression, and how far they are read."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.at, self.depth = words, 0, 0

    def word(self) -> str:
        """The next word, or nothing."""
        return self.words[self.at] if self.at < len(self.words) else ""

    def conditional(self) -> int:
        """`a ? b : c`, or what binds closer."""
        chosen: int | None = None  # of a chain a ? b : c ? d : e, the first whose condition holds
        while True:
            value = self.binary(0)
            if self.word() != "?":
                return value if chosen is None else chosen
            self.at += 1
            yes = self.inner()
            if self.word() != ":":
                raise IsaError("? without : in a constant expression")
            self.at += 1
            if value and chosen is None:
                chosen = yes

    def inner(self) -> int:
        """An expression within another."""
        if self.depth == MOST_NESTED:
            raise IsaError(f"a constant expression: at most {MOST_NESTED} nest (got one more)")
        self.depth += 1
        value = self.conditional()
        self.depth -= 1
        return value

    def binary(self, lowest: int) -> int:
        """Operators of this precedence and higher ones, from the left."""
        value = self.unary()
        while (level := _PRECEDENCE.get(self.word(), -1)) >= lowest:
            operator = _OPERATORS[self.word()]
            self.at += 1
            value = _in_64_bits(operator(value, self.binary(level + 1)))
        return value

    def unary(self) -> int:
        """A number or an expression in brackets, behind any number of signs."""
        first = self.at
        while self.word() and self.word() in "-+~!":
            self.at += 1
        signs = self.words[first : self.at]
        value = self.primary()
        for sign in reversed(signs):
            value = {"-": -value, "+": value, "~": ~value, "!": int(not value)}[sign]
        return value

    def primary(self) -> int:
        """A number or an expression in brackets."""
        word = self.word()
        self.at += 1
        if not word:
            raise IsaError("a constant expression breaks off")
        if word == "(":
            value = self.inner()
            if self.word() != ")":
                raise IsaError("( without ) in a constant expression")
            self.at += 1
            return value
        if not word[0].isdigit():
            raise IsaError(f"not a number in a constant expression: {word!r}")
        if len(word) > _LONGEST:
            raise IsaError(f"a literal has 64 bits at most (got {word[:20]}…, {len(word)} characters)")
        octal = len(word) > 1 and word[0] == "0" and word.isdigit()
        if octal and _NOT_OCTAL.fullmatch(word):
            raise IsaError(f"a number that begins with 0 has digits up to 7 (got {word})")
        return _in_64_bits(int(word, 8 if octal else 0))


def _in_64_bits(value: int) -> int:
    if value.bit_length() > 64:
        raise IsaError("a constant expression of more than 64 bits")
    return value
