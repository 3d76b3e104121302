"""What is known of a spec's fields beyond their rules: values to try, values to refuse, what they mean.

It stands beside the field, by `field(…)`; else it follows from the field's rules and type. For the few names that mean
the same in every kernel type, `SHARED` has more than rules tell, unless these say otherwise. Tests and help texts read
it, texts do not. Owns no rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

from ptxgen.dtypes import DTYPES, dtype
from ptxgen.spec.legality import Ruled, bounds, choices, draft, numbers

Values = Sequence[object] | Callable[[Mapping[str, Any]], Sequence[object]]
MOST_DRAWN = 1 << 18  # of a size whose rule sets no closer bound
_UNLIKELY = -12345  # a number that no rule lists


class Domain(NamedTuple):
    """What is known of a field."""

    draws: Values = ()
    """Values to try, or a function from the fields drawn before to such values. Without any the default is kept."""
    refuses: tuple[object, ...] = ()
    """Values that no spec has, whatever its other fields. Where `field(refuses=())` says that there are none, tests ask
    for no rule."""
    every: bool = False
    """Whether tests try every one of `draws`, not some."""
    local: bool = False
    """Whether another value changes only those lines of a text that hold it, where the launch's shape is the same."""
    silent: str = ""
    """Why the results of a run do not tell this field's value from its default; empty where they do."""
    later: bool = False
    """Whether the spec's repr, a text's first line, shows it only where it is not the default: texts from before the
    field stay as they were."""
    short: str | None = None
    """Its name in file names, before the value; None: its own. Empty for an element type that its value tells."""
    doc: str = ""
    """What it means: the help of the command line; without it, what the class's docstring says of the field."""

    def values(self, drawn: Mapping[str, Any]) -> Sequence[object]:
        """The values to try beside the fields that are drawn already."""
        return self.draws(drawn) if callable(self.draws) else self.draws


class Said(TypedDict, total=False):
    """Words of `field(…)`, stated once for fields of several kernel types: `field(default=0, like=WINDOW)`."""

    draws: Values
    refuses: Sequence[object]
    every: bool
    local: bool
    silent: str
    later: bool
    short: str
    doc: str


def field(
    *,
    default: Any = MISSING,
    like: Said | None = None,
    draws: Values | None = None,
    refuses: Sequence[object] | None = None,
    every: bool | None = None,
    local: bool | None = None,
    silent: str | None = None,
    later: bool | None = None,
    short: str | None = None,
    doc: str | None = None,
) -> Any:
    """A field of a kernel type, with what `Domain` says of each word; what is not given is as in `like`, or as without
    `field`.

    `n: int = field(draws=(1, 7, 4096))` has no default, `eps: float = field(default=1e-5, draws=(0.0, 1e-6))` has.
    """
    given = {"draws": draws, "refuses": refuses, "every": every, "local": local, "silent": silent, "later": later,
             "short": short, "doc": doc}  # fmt: skip
    said = {name: value for name, value in given.items() if value is not None}
    return dataclasses.field(default=default, metadata={**(like or {}), **said})


def domain(cls: type[Ruled], name: str) -> Domain:
    """What is known of a field of a kernel type."""
    found = {f.name: f for f in dataclasses.fields(cls)}[name]  # type: ignore[arg-type]
    known: dict[str, Any] = {**_shared(cls, name), **found.metadata}
    if not known.keys() >= {"draws", "refuses"}:
        known = {**_by_rules(cls, found), **known}
    if not callable(known["draws"]) and not str(found.type).replace(" ", "").endswith("|None"):
        known["draws"] = tuple(value for value in known["draws"] if value is not None)
    return Domain(**{**known, "refuses": tuple(known["refuses"])})


def short_of(found: dataclasses.Field[Any]) -> str:
    """A field's name in file names."""
    return str(found.metadata.get("short", SHARED.get(found.name, {}).get("short", found.name)))


def doc_beside(cls: type[Ruled], name: str) -> str:
    """What `field(doc=…)` says of a field; empty where it says nothing."""
    found = {f.name: f for f in dataclasses.fields(cls)}[name]  # type: ignore[arg-type]
    return str(found.metadata.get("doc", ""))


@lru_cache(maxsize=1024)
def _shared(cls: type[Ruled], name: str) -> Said:
    """What `SHARED` says of a name, without its values where the kernel type's rules or types say otherwise of one."""
    said = SHARED.get(name, {})
    draws = said.get("draws", ())
    taken = draws(cls.goldens[0] if cls.goldens else {}) if callable(draws) else draws
    if not any(_refused(cls, name, v) for v in taken) and all(_refused(cls, name, v) for v in said.get("refuses", ())):
        return said
    return {"doc": said.get("doc", "")}


def _refused(cls: type[Ruled], name: str, value: object) -> bool:
    """Whether a rule about this field is against a value, beside the first golden's others."""
    _, reasons = draft(cls, {**(cls.goldens[0] if cls.goldens else {}), name: value})
    return any(reason.startswith(f"{name}:") for reason in reasons)


def _by_rules(cls: type[Ruled], found: dataclasses.Field[Any]) -> dict[str, tuple[object, ...]]:
    """Values to draw and to refuse that follow from a field's type and rules."""
    kind = str(found.type).replace(" ", "").removesuffix("|None")
    if kind == "bool":
        return {"draws": (False, True), "refuses": ()}
    listed: tuple[object, ...] = choices(cls, found.name)
    if listed and kind == "DType":
        return {"draws": tuple(map(dtype, listed)), "refuses": tuple(t for t in DTYPES if t not in listed)[-1:]}
    if listed:
        return {"draws": listed, "refuses": ("?",)}
    if kind in ("int", "float") and (few := numbers(cls, found.name)):
        return {"draws": tuple(map(int if kind == "int" else float, few)), "refuses": (_UNLIKELY,)}
    within = bounds(cls, found.name) if kind in ("int", "float") else None
    if within is None:
        return {"draws": (), "refuses": ()}
    low, high, step = within
    draws = sizes(int(low), int(high), step) if kind == "int" else (low, high)
    return {"draws": draws, "refuses": (low - step,)}


def sizes(low: int, high: int, step: int = 1) -> tuple[int, ...]:
    """Numbers from `low` to `high` in steps: both ends, and those about powers of two."""
    near = {(1 << bits) + offset for bits in range(MOST_DRAWN.bit_length()) for offset in (-step, 0, step)}
    near |= {low, low + step, high - step, high}
    return tuple(sorted(n for n in near if low <= n <= high and (n - low) % step == 0))


def _query_heads(drawn: Mapping[str, Any]) -> Sequence[object]:
    return [group * max(1, drawn.get("n_kv_heads", 1)) for group in GROUPS]


GROUPS = (*range(1, 17), 24, 32, 64)  # query heads of a KV head

# Names that mean the same in every kernel type; what else a kernel type knows of them stands beside its field.
SHARED: Mapping[str, Said] = {
    "max_len": Said(
        short="l", doc="positions the cache holds for a sequence", draws=sizes(1, MOST_DRAWN), refuses=(-1,)
    ),
    "head_dim": Said(short="d", doc="elements of a head", draws=tuple(range(8, 513, 8)), refuses=(100,), every=True),
    "n_heads": Said(short="h", doc="query heads", draws=_query_heads, refuses=(0,), every=True),
    "n_kv_heads": Said(
        short="kv", doc="heads of K and V; n_heads is a multiple of it", draws=(1, 2, 3, 4, 8, 16), refuses=(-1,)
    ),
    "kv_dtype": Said(short="", doc="element type of the KV cache"),
    "q_dtype": Said(doc="element type of queries and outputs"),
    "dtype": Said(short="", doc="element type"),
    "programmatic": Said(
        doc="may start before the preceding kernel ends, and waits before it reads its results",
        silent="it changes when a kernel starts, not what it computes",
    ),
}
