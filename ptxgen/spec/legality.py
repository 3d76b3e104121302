"""Every reason why a spec cannot be had, at whatever stage: its fields' names, their types, the rules, a target.

A later stage needs values that earlier ones let pass. Where a field has none, legal values stand in for it, one after
the other, and only what is wrong whichever of them stands there is a reason: a bound that comes from a stand-in is no
bound of the spec. Reasons that mention the field are left out too: it has been named already.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError, brief, nearest
from ptxgen.rules import Bounds, OneOf
from ptxgen.spec.field_values import coerce

if TYPE_CHECKING:
    from ptxgen.targets import Target


class Ruled(Protocol):
    """What is asked of a kernel type here: its rules, and goldens, which are legal."""

    goldens: ClassVar[tuple[Mapping[str, object], ...]]
    lowest_target: ClassVar[str]

    def rules(self) -> Iterator[str]:
        """Reasons against the fields, whatever the target."""

    def target_rules(self, target: Target) -> Iterator[str]:
        """Reasons against a target."""


R = TypeVar("R", bound=Ruled)
_TURNS = 3  # stand-ins that a field without a value gets, where there are so many


def settle(spec: Ruled, given: Mapping[str, object]) -> tuple[str, ...]:
    """Set every field of a new spec, in its type; returns the reasons against types and by the spec's rules."""
    wrong: dict[str, str] = {}  # field -> why it has no value of its type
    foreign: set[str] = set()  # those of them that hold a dtype which does not exist, for the rules to judge
    for field in _fields(type(spec)):
        name = field.name
        if name in given or not _needed(field):
            value, reason = coerce(field, given[name] if name in given else _stand_in(type(spec), field))
        else:
            value, reason = None, f"{name}: is needed and has no default"
        if reason:
            wrong[name] = reason
            if isinstance(value, DType):
                foreign.add(name)
            else:
                value = coerce(field, _stand_in(type(spec), field))[0]
        object.__setattr__(spec, name, value)
    if not wrong:
        return _by_rules(spec)
    others = []
    for reason in _whatever_stands_in(spec, wrong.keys() - foreign) if type(spec).goldens else ():
        field_name = reason.partition(":")[0]
        if field_name in foreign:  # the rule knows which dtypes this kernel takes
            wrong[field_name] = reason
        elif not mentions(reason, wrong):
            others.append(reason)
    return (*wrong.values(), *others)


def _by_rules(spec: Ruled) -> tuple[str, ...]:
    """The reasons of `rules()`. Raises `SpecError` where it yields none of them: for a `return`, or a call of
    `ptxgen.rules`, in place of `yield from`."""
    found: object = spec.rules()
    if not isinstance(found, Iterable) or isinstance(found, str):
        raise SpecError(f"{type(spec).__name__}.rules: must yield every reason, by `yield from` (got {brief(found)})")
    reasons = tuple(found)
    if strange := [reason for reason in reasons if not isinstance(reason, str)]:
        raise SpecError(f"{type(spec).__name__}.rules: must yield reasons, by `yield from` (got {brief(strange[0])})")
    return reasons


def _whatever_stands_in(spec: Ruled, without: Iterable[str]) -> list[str]:
    """The reasons by the rules that hold with every stand-in for the fields that are `without` a value."""
    fields = [field for field in _fields(type(spec)) if field.name in without]
    runs = [_by_rules(spec)]
    for turn in range(1, _TURNS if fields else 1):
        other = object.__new__(type(spec))
        vars(other).update({field.name: getattr(spec, field.name) for field in _fields(type(spec))})
        vars(other).update({field.name: coerce(field, _stand_in(type(spec), field, turn))[0] for field in fields})
        runs.append(_by_rules(other))
    return _common(runs)


def _common(runs: Sequence[Sequence[str]]) -> list[str]:
    """What is in each of the runs, in the order of the first."""
    return [reason for reason in runs[0] if all(reason in run for run in runs[1:])] if runs else []


def draft(cls: type[R], given: Mapping[str, object]) -> tuple[R, tuple[str, ...]]:
    """A spec of these fields, legal or not, and every reason against it; unknown fields are among them."""
    spec = object.__new__(cls)
    known = [field.name for field in _fields(cls)]
    unknown = []
    for name in sorted(given.keys() - set(known)):
        unknown.append(f"{name}: no such field{nearest(name, known)} (fields: {', '.join(known)})")
    return spec, (*unknown, *settle(spec, given))


def target_reasons(spec: Ruled, reasons: Iterable[str], where: Target) -> Iterator[str]:
    """Why a spec, against which there may be `reasons` already, cannot be had for a target."""
    from ptxgen.targets import target as parse_target

    if not where.includes(parse_target(spec.lowest_target)):
        yield f"target: must be {spec.lowest_target} or later (got {where}; nearest: {spec.lowest_target})"
        return
    reasons = tuple(reasons)
    runs = []
    for turn in range(_TURNS if reasons else 1):
        repaired, replaced = _repaired(spec, reasons, turn)
        if repaired is not None:
            runs.append([reason for reason in repaired.target_rules(where) if not mentions(reason, replaced)])
    yield from _common(runs)


def _repaired(spec: R, reasons: tuple[str, ...], turn: int) -> tuple[R | None, frozenset[str]]:
    """A legal spec near an illegal one, with a turn's stand-ins, and the fields that it has not got from there."""
    names = {field.name for field in _fields(type(spec))}
    replaced: frozenset[str] = frozenset()
    while against := [reason for reason in reasons if reason.partition(":")[0] in names]:
        more = frozenset(name for name in names if any(mentions(reason, (name,)) for reason in against)) - replaced
        if not more:
            return None, replaced
        replaced |= more
        changes = {f.name: _stand_in(type(spec), f, turn) for f in _fields(type(spec)) if f.name in replaced}
        spec, reasons = draft(type(spec), {**vars(spec), **changes})
    return spec, replaced


def choices(cls: type[Ruled], name: str) -> tuple[str, ...]:
    """What a field may be, where its rule lists it (dtypes, styles): the answer to a value that nothing takes."""
    _, reasons = draft(cls, {**(cls.goldens[0] if cls.goldens else {}), name: "?"})
    listed = (reason.choices for reason in reasons if isinstance(reason, OneOf) and reason.startswith(f"{name}:"))
    return next(listed, ())


def numbers(cls: type[Ruled], name: str) -> tuple[str, ...]:
    """What a number may be, where its rule lists it."""
    listed = (r.choices for r in _against_a_number(cls, name) if isinstance(r, OneOf))
    return next(listed, ())


def bounds(cls: type[Ruled], name: str) -> tuple[float, float, int] | None:
    """The least and the largest value of a number, and their step, where its rule bounds it; None where none does."""
    found = (r for r in _against_a_number(cls, name) if isinstance(r, Bounds))
    return next(((r.low, r.high, r.step) for r in found), None)


def _against_a_number(cls: type[Ruled], name: str) -> list[str]:
    """The reasons that a field's rules give against a number that nothing takes."""
    _, reasons = draft(cls, {**(cls.goldens[0] if cls.goldens else {}), name: -(1 << 62)})
    return [reason for reason in reasons if reason.startswith(f"{name}:")]


def mentions(reason: str, fields: Iterable[str]) -> bool:
    """Whether a reason speaks of one of the fields."""
    return any(re.search(rf"\b{name}\b", reason) for name in fields)


def _fields(cls: type[Ruled]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)  # type: ignore[arg-type]


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _stand_in(cls: type[Ruled], field: dataclasses.Field[Any], turn: int = 0) -> object:
    """A legal value: the default, or that of the first golden; another in another turn. None where there is none."""
    values = stand_ins(cls, field)
    return values[turn % len(values)] if values else None


def stand_ins(cls: type[Ruled], field: dataclasses.Field[Any]) -> tuple[object, ...]:
    """Different values of a field: its default, those in goldens, and for a size twice the first golden's.

    Goldens are legal, and twice the sizes of one are so too, or break rules that mention these very fields.
    """
    stated = [golden[field.name] for golden in cls.goldens if field.name in golden]
    if field.default is not dataclasses.MISSING:
        stated.insert(0, field.default)
    elif field.default_factory is not dataclasses.MISSING:
        stated.insert(0, field.default_factory())
    elif stated and type(stated[0]) is int:
        stated.append(2 * stated[0])
    return tuple(value for at, value in enumerate(stated) if value not in stated[:at])
