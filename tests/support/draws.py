"""Specs of a kernel type drawn from what its file says of its fields: at random, or by hypothesis."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from ptxgen import SpecError, supports
from ptxgen.kernel import KernelType
from ptxgen.places import shown_path
from ptxgen.spec.fields import Domain, domain

ILLEGAL = 25  # one draw of so many, where a field has values that no spec has
OPTIONS = 4  # of a spec in the mean, where a kernel type has many: of more, hardly any go together


def domains(cls: type[KernelType]) -> dict[str, Domain]:
    """What is known of each field, those first whose values do not depend on others."""
    every = {field.name: domain(cls, field.name) for field in dataclasses.fields(cls)}
    return dict(sorted(every.items(), key=lambda item: callable(item[1].draws)))


def beside(cls: type[KernelType], name: str) -> str:
    """Where a field stands, for a failing test to name: `ptxgen/kernels/rope.py: Rope.head_dim`."""
    return f"{shown_path(inspect.getsourcefile(cls) or cls.__module__)}: {cls.__name__}.{name}"


def needed(cls: type[KernelType]) -> list[str]:
    """The fields that have no default."""
    return [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]


@st.composite
def fields_of(draw: st.DrawFn, cls: type[KernelType]) -> dict[str, Any]:
    """Fields of a spec, some of them illegal; options are mostly left alone, so that many draws are legal."""
    drawn: dict[str, Any] = {}
    optional = len(dataclasses.fields(cls)) - len(needed(cls))
    chance = min(30, 100 * OPTIONS // max(1, optional))  # of a hundred
    kinds = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    for name, known in domains(cls).items():
        if name not in needed(cls) and draw(st.integers(0, 99)) >= (80 if kinds[name] == "DType" else chance):
            continue
        illegal = known.refuses and draw(st.integers(1, ILLEGAL)) == 1
        values = known.refuses if illegal else known.values(drawn)
        if values:
            drawn[name] = draw(st.sampled_from(list(values)))
    return drawn


def small(cls: type[KernelType], **fields: Any) -> KernelType:
    """The first golden's spec with other fields."""
    return cls(**{**cls.goldens[0], **fields})


def trials(spec: KernelType) -> Iterator[dict[str, int]]:
    """The sizes that a spec is tried with, as far as they are within its ranges."""
    for sizes in spec.trials:
        ranges = spec.ranges({**spec.sizes, **sizes})
        yield {name: min(n, ranges[name][1]) if name in ranges else n for name, n in sizes.items()}


def with_options(cls: type[KernelType], where: str, rng: random.Random, **fixed: Any) -> KernelType:
    """A spec with these fields, and each option that goes with the others on this target, or not: half of them."""
    base = {name: value for name, value in cls.goldens[0].items() if name in needed(cls)}
    fields = {**base, **fixed}
    known = domains(cls)
    for name in [name for name in known if name not in fixed] * 2:  # what another made possible comes the second time
        if not (values := known[name].values(fields)) or rng.random() < 0.5:
            continue
        more = {**fields, name: rng.choice(list(values))}
        try:
            fields = more if supports(cls(**more), where) else fields
        except SpecError:
            continue
    return cls(**fields)


def swept(cls: type[KernelType]) -> Iterator[tuple[str, Any]]:
    """The fields of which tests try every value, and these values; legal ones beside the first golden's others."""
    for name, known in domains(cls).items():
        if known.every:
            yield from ((name, value) for value in known.values(cls.goldens[0]) if _legal(cls, name, value))


def _legal(cls: type[KernelType], name: str, value: object) -> bool:
    return bool(supports({"kernel_type": cls.kernel_name, **cls.goldens[0], name: value}, cls.golden_targets[0]))
