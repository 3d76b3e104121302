"""The notation of the table's rows, and how an opcode is matched against one. Owns no rows.

A row's pattern is the instruction's name and then its modifiers in the document's order, separated by spaces:
`sat` must stand, `sat?` may stand, `ca|cg` is a choice, `T=u32|s32` a choice kept under a name.
Its operand string has a token an operand: `=T` is written, `T` is read (a register or an immediate; in braces
registers), `T?` may be absent, `~T` may be in a wider register, `T*4`, `T*V` and `T*S/2` are in braces (`V=v2|v4`;
half of a shape's N), `(H)b64` stands only when `H` was matched, `[global]`, `[S]` and `[]` are addresses (`[]*2` with
coordinates), and letters after a colon name the kinds where the default does not hold: r register, i immediate, s
symbol, v packed vector, p pair with a predicate, _ sink, n negatable predicate, l label, g group. ` / ` separates
further operand lists of the same opcode; `{8.8,sm_100}` before one is its own demand. `u32@0..15`, `u32:i@24..256/8`,
`u32@32../32` and `s32:i@-1|1` say which literals may stand there: 0 to 15, multiples of 8, of 32 from 32 on, -1 or 1.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ptxgen.isa.form import Form, IsaVersion, Slot, is_type, slot_of
from ptxgen.targets import target

OLDEST: IsaVersion = (6, 0)  # what every supported target needs at least


class Demand(NamedTuple):
    """A lowest PTX ISA version and the alternatives of a lowest target (`()`: any)."""

    ptx: IsaVersion
    sm: tuple[str, ...]

    def __str__(self) -> str:
        """`PTX ISA 8.0, sm_90a or sm_100f`."""
        words = [f"PTX ISA {self.ptx[0]}.{self.ptx[1]}"] if self.ptx > OLDEST else []
        return ", ".join(words + ([" or ".join(self.sm)] if self.sm else []))


class Row(NamedTuple):
    """A row of the table. `since` is `"7.8 sm_90a|sm_100f"`; `raises` is `"v8=8.8,sm_100 b128=8.3"` by modifier.

    `since` may go on with ` / 7.8 sm_90`: from an earlier version already, but on a higher target.
    `loose`: modifiers are taken in any order, as ptxas does, because compilers and libraries write them so.
    """

    pattern: str
    operands: str
    since: str = ""
    raises: str = ""
    loose: bool = False


class Token(NamedTuple):
    """One modifier position of a compiled pattern."""

    name: str
    choices: frozenset[str]
    optional: bool
    listed: tuple[str, ...]


class Compiled(NamedTuple):
    """A row made ready for matching."""

    row: Row
    section: str
    tokens: tuple[Token, ...]
    since: tuple[Demand, ...]
    raises: dict[str, Demand]


# Words that always bring their demand with them, whatever instruction they stand in.
WORDS: dict[str, Demand] = {
    "cluster": Demand((7, 8), ("sm_90",)),
    "shared::cta": Demand((7, 8), ()),
    "shared::cluster": Demand((7, 8), ("sm_90",)),
    "L2::cache_hint": Demand((7, 4), ("sm_80",)),
    "b128": Demand((8, 3), ()),
}


@cache
def _demand(text: str) -> Demand:
    """`"7.8 sm_90a|sm_100f"` or `"7.8,sm_90"` as a demand."""
    version, _, names = text.replace(",", " ").partition(" ")
    major, _, minor = version.partition(".")
    ptx = (int(major), int(minor)) if version else OLDEST
    return Demand(ptx, tuple(names.split("|")) if names else ())


def compile_row(row: Row, section: str) -> Compiled:
    """Split a row's pattern and demands."""
    tokens = tuple(_token(text) for text in row.pattern.split()[1:])
    since = tuple(_demand(text.strip()) for text in row.since.split("/"))
    return Compiled(row, section, tokens, since, _raises(row.raises))


@cache
def _token(text: str) -> Token:
    name, equals, choices = text.rstrip("?").rpartition("=")
    listed = tuple(choices.split("|"))
    return Token(name if equals else choices, frozenset(listed), text.endswith("?"), listed)


@cache
def _raises(text: str) -> dict[str, Demand]:
    items = (item.partition("=") for item in text.split())
    return {word: _demand(demand) for word, _, demand in items}


def match(compiled: Compiled, words: list[str]) -> tuple[dict[str, str] | None, int]:
    """The named choices when the words fit, or None and how many words fitted."""
    found: dict[str, str] = {}
    at, count = 0, len(words)
    for token in compiled.tokens:
        if at < count and words[at] in token.choices:
            found[token.name] = words[at]
            at += 1
        elif not token.optional:
            return None, at
    return (found, at) if at == count else (None, at)


def in_row_order(compiled: Compiled, words: list[str]) -> list[str]:
    """The words sorted by the first position that takes each (for rows that are `loose`); types stay in their order."""

    def position(word: str) -> int:
        return next((i for i, token in enumerate(compiled.tokens) if word in token.choices), 99)

    in_order = sorted(words, key=position)
    types = [word for word in words if is_type(word)]
    return in_order if types == [word for word in in_order if is_type(word)] else words


def strongest(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """The alternatives that satisfy both demands; empty demands nothing."""
    if not first or not second:
        return first or second
    both = [a for a in first if target(a).includes_any(second)] + [b for b in second if target(b).includes_any(first)]
    return tuple(dict.fromkeys(both)) or first + second


def make_form(opcode: str, compiled: Compiled, found: dict[str, str], words: list[str]) -> Form:
    """The form of a matched opcode: slots filled in, demands combined."""
    raised = [(word, demand) for word in words if (demand := compiled.raises.get(word) or WORDS.get(word))]
    texts = compiled.row.operands.split(" / ")
    forms: list[Form] = []
    for text in reversed(texts):
        also = tuple(reversed(forms)) if len(forms) == len(texts) - 1 else ()
        forms.append(_form(opcode, compiled, text.strip(), found, raised, also))
    return forms[-1]


def _form(opcode: str, compiled: Compiled, text: str, found: dict[str, str], raised: list[tuple[str, Demand]],
          also: tuple[Form, ...]) -> Form:  # fmt: skip
    """One operand list's form."""
    name = opcode.partition(".")[0]
    own, braced, operands = text[1:].partition("}") if text[:1] == "{" else ("", "", text)
    extra = [(name, _demand(own))] if braced else []
    because, total = name, compiled.since[0]
    for word, demand in [*extra, *raised]:
        stronger = Demand(max(total.ptx, demand.ptx), strongest(total.sm, demand.sm))
        if stronger != total:
            because = name if word == name else f".{word}"
        total = stronger
    earlier = []
    for other in compiled.since[1:]:
        for _, demand in [*extra, *raised]:
            other = Demand(max(other.ptx, demand.ptx), strongest(other.sm, demand.sm))
        earlier.append((other.ptx, other.sm))
    slots, optional = _slots(operands, found)
    return Form(opcode, name, slots, optional, total.ptx, total.sm, because, compiled.section, also, tuple(earlier))


def _slots(text: str, found: dict[str, str]) -> tuple[tuple[Slot, ...], int]:
    slots: list[Slot] = []
    optional = 0
    for token in text.split():
        if token[0] == "(":
            condition, _, token = token[1:].partition(")")
            if condition not in found:
                continue
        if token[-1] == "?":
            optional += 1
            token = token[:-1]
        slots.append(slot_of(_substitute(token, found)))
    return tuple(slots), optional


def _substitute(token: str, found: dict[str, str]) -> str:
    """Put the matched choices in place of the names in an operand token."""
    head = token[: len(token) - len(token.lstrip("=~"))]
    body = token[len(head) :]
    if body[0] == "[":
        space, closing, coordinates = body[1:].partition("]")
        return f"{head}[{found.get(space, '' if space.isupper() else space)}{closing}{coordinates}"
    body, at, values = body.partition("@")
    body, star, count = body.partition("*")
    type_name, colon, letters = body.partition(":")
    type_name = found.get(type_name, type_name)
    if star:
        vector = _vector(count, found)
        star, count = ("*", vector) if vector else ("", "")
    return f"{head}{type_name}{colon}{letters}{star}{count}{at}{values}"


def _vector(count: str, found: dict[str, str]) -> str:
    """The number of elements: as written, of a matched `v4` or `x4`, or a part of the N of a shape (`S/2`)."""
    name, _, part = count.partition("/")
    if part:
        return str(int(found[name].partition("n")[2].partition("k")[0]) // int(part))
    return found.get(name, "" if name.isupper() else name).lstrip("vx")
