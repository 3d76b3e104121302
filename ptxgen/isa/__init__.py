"""The instruction table: which forms PTX has, their operands, and the lowest PTX ISA version and target of each.

Rows live one file a family; a form is made from its row when it is first asked for.
Source: PTX ISA 9.0. Proven by tests/isa/test_isa_proof.py against the assembler.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module

from ptxgen.errors import IsaError
from ptxgen.isa.form import REGISTER_TYPES, Form, Slot, slot_accepts, storage_type, type_bits
from ptxgen.isa.pattern import Compiled, compile_row, in_row_order, make_form, match
from ptxgen.isa.registers import SPECIAL_REGISTERS, SpecialRegister, special_register

# Which opcodes each family's file has rows for: a family is imported when one of them is first asked for.
_FAMILIES: dict[str, str] = {
    "arith": "abs add addc bfe bfi bfind bmsk brev clz copysign cos div dp2a dp4a ex2 fma fns lg2 mad mad24 madc max "
    "min mul mul24 neg popc rcp rem rsqrt sad sin sqrt sub subc szext tanh testp",
    "logic": "and cnot lop3 mov not or prmt selp set setp shf shl shr slct xor",
    "convert": "cvt",
    "memory": "ld ldu st",
    "address": "alloca applypriority createpolicy cvta discard getctarank isspacep mapa prefetch prefetchu "
    "stackrestore stacksave",
    "atomics": "atom multimem red st",
    "async_copy": "cp tensormap",
    "warp": "activemask elect match redux shfl vote",
    "matrix": "ldmatrix mma movmatrix stmatrix",
    "wmma": "wmma",
    "wgmma": "wgmma",
    "barrier": "bar barrier cp fence mbarrier membar",
    "control": "bra brkpt brx call clusterlaunchcontrol exit griddepcontrol nanosleep pmevent ret setmaxnreg trap",
}  # fmt: skip


_LISTED = 6  # of what an error lists
_ENDINGS = 8  # of all that can follow a shape: wgmma has seven


def _by_name() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for family, words in _FAMILIES.items():
        for word in words.split():
            names[word] = (*names.get(word, ()), family)
    return names


_FAMILIES_OF = _by_name()


@cache
def rows(name: str) -> tuple[Compiled, ...]:
    """The rows of one opcode's first word, ready for matching; none for an unknown word."""
    sections = (import_module(f"ptxgen.isa.{family}").SECTIONS for family in _FAMILIES_OF.get(name, ()))
    found = ((row, section) for each in sections for section, listed in each.items() for row in listed)
    return tuple(compile_row(row, section) for row, section in found if row.pattern.split(" ", 1)[0] == name)


@cache
def lookup(opcode: str) -> Form:
    """The form of an opcode with all its modifiers (`ld.global.nc.L1::no_allocate.v4.b32`).

    Raises `IsaError` that names the unknown opcode or modifier and the nearest known forms.
    """
    found = _form(opcode)
    if found is None:
        raise IsaError(_unknown(opcode))
    return found


def _form(opcode: str) -> Form | None:
    name, *words = opcode.split(".")
    known = rows(name)
    for compiled in known:
        found, _ = match(compiled, words)
        if found is not None:
            return make_form(opcode, compiled, found, words)
    for compiled in known:
        if compiled.row.loose:
            found, _ = match(compiled, in_row_order(compiled, words))
            if found is not None:
                return make_form(opcode, compiled, found, words)
    return None


@lru_cache(maxsize=256)
def _unknown(opcode: str) -> str:
    from difflib import get_close_matches

    name, *words = opcode.split(".")
    known = rows(name)
    if not known:
        near = get_close_matches(name, _FAMILIES_OF, 3, 0.5)
        return f"{opcode}: unknown opcode {name!r}" + (f"; nearest: {', '.join(near)}" if near else "")
    reached = max(match(compiled, words)[1] for compiled in known)
    got = f"modifier .{words[reached]} is unknown or misplaced" if reached < len(words) else "a modifier is missing"
    here = ".".join([name, *words[:reached]])
    if said := _of_a_shape(name, words):
        return f"{opcode}: {said}"
    listed = _one_word_off(name, words, reached)
    if listed:
        tail = f"nearest: {', '.join(listed)}"
    elif wanted := _wanted(name, words[:reached]):
        some = ", among others" if len(wanted) > _LISTED else ""
        tail = f"after {here} the table knows{some} {', '.join('.' + word for word in wanted[:_LISTED])}"
    else:
        tail = f"nearest: {here}"
    return f"{opcode}: {got}; {tail}"


def _of_a_shape(name: str, words: list[str]) -> str:
    """What is wrong with the shape, or with the words behind it, where the words before it are right; else nothing."""
    from ptxgen.isa.shapes import is_shape, shapes_said

    at = next((place for place, word in enumerate(words) if is_shape(word)), None)
    if at is None:
        return ""
    before, behind, opcode = words[:at], words[at + 1 :], ".".join([name, *words[: at + 1]])
    others = [word for word in _follow(name, before) if is_shape(word)]
    said = []
    if fit := [word for word in others if _known(name, [[*before, word, *behind]])]:
        said.append(f"modifier .{words[at]}: with the other modifiers the shape must be {shapes_said(fit)}")
    if words[at] in others:
        endings = _endings(name, words[: at + 1])
        some = ", among others" if len(endings) > _ENDINGS else ""
        got = f"(got {''.join('.' + word for word in behind) or 'nothing'})"
        said.append(f"after {opcode} the table knows{some} {', '.join(endings[:_ENDINGS])} {got}")
    return "; ".join(said)


def _follow(name: str, words: list[str]) -> list[str]:
    """Every word that can follow these, of all rows that have them."""
    found = [compiled for compiled in rows(name) if match(compiled, words)[1] == len(words)]
    return list(dict.fromkeys(word for compiled in found for word in _expected(compiled, words)))


def _endings(name: str, words: list[str]) -> list[str]:
    """What stands behind these words in the rows that have them: `.f32.f16.f16`, `.s32.s8|u8.s8`."""
    found = [compiled for compiled in rows(name) if match(compiled, words)[1] == len(words)]
    return list(dict.fromkeys(_ending(compiled, words) for compiled in found))


def _ending(compiled: Compiled, words: list[str]) -> str:
    at, rest = 0, []
    for token in compiled.tokens:
        if at < len(words):
            at += words[at] in token.choices
        else:
            rest.append(f".{'|'.join(token.listed)}{'?' if token.optional else ''}")
    return "".join(rest)


def _one_word_off(name: str, words: list[str], at: int) -> list[str]:
    """Known opcodes with one word more than these, up to `at`; if there are none, those with another word at `at`, the
    most similar first, or without it."""
    from difflib import SequenceMatcher

    found = [
        [*words[:place], word, *words[place:]] for place in range(at, -1, -1) for word in _wanted(name, words[:place])
    ]
    if not (near := _known(name, found)) and at < len(words):
        similar = sorted(_wanted(name, words[:at]), key=lambda word: -SequenceMatcher(None, word, words[at]).ratio())
        found = [[*words[:at], word, *words[at + 1 :]] for word in similar]
        near = [*_known(name, found)[: _LISTED - 1], *_known(name, [[*words[:at], *words[at + 1 :]]])]
    return near[:_LISTED]


def _known(name: str, found: list[list[str]]) -> list[str]:
    return [opcode for words in found if _form(opcode := ".".join([name, *words])) is not None]


def _wanted(name: str, words: list[str]) -> list[str]:
    """What can follow these words, of the rows that have most of them."""
    known = rows(name)
    reached = max(match(compiled, words)[1] for compiled in known)
    best = [compiled for compiled in known if match(compiled, words)[1] == reached]
    return list(dict.fromkeys(word for compiled in best for word in _expected(compiled, words)))


def _expected(compiled: Compiled, words: list[str]) -> list[str]:
    """Words that could stand where the match of a row broke off."""
    at = 0
    open_words: list[str] = []
    for token in compiled.tokens:
        if at < len(words) and words[at] in token.choices:
            at += 1
            open_words = []
            continue
        open_words += token.listed
        if not token.optional:
            break
    return open_words


def opcodes() -> tuple[str, ...]:
    """Every first word of the table, sorted."""
    return tuple(sorted(_FAMILIES_OF))


__all__ = [
    "REGISTER_TYPES",
    "SPECIAL_REGISTERS",
    "Form",
    "IsaError",
    "Slot",
    "SpecialRegister",
    "lookup",
    "opcodes",
    "rows",
    "slot_accepts",
    "special_register",
    "storage_type",
    "type_bits",
]
