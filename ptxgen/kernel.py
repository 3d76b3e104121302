"""The base of every kernel type, and the registry. One kernel type is one Python file and one template.

A kernel type is a frozen dataclass; an instance is a *spec*: one specialisation, and the key of every cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError, brief, nearest
from ptxgen.lengths import MOST, Past
from ptxgen.packages import (
    GROUP,
    OURS,
    admit,
    check_named,
    failures,
    load_every_own,
    load_own,
    load_packages,
    own_modules,
    package_of,
    snake_case,
)
from ptxgen.spec.field_values import slug_word
from ptxgen.spec.fields import field
from ptxgen.spec.legality import draft, settle, target_reasons

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import dataclass_transform

    from ptxgen.builder import Builder
    from ptxgen.launch import Launch, Param
    from ptxgen.targets import Target

    Arrays = dict[str, np.ndarray]
    """Arguments by the names of their parameters; for annotations (`if TYPE_CHECKING:`)."""
else:

    def dataclass_transform(**_):
        """Only type checkers read it (the standard library has it from Python 3.11)."""
        return lambda decorator: decorator


class Reading(NamedTuple):
    """What is compared of an output, and the largest relative error; None: the spec's limit, 0: it is exact.

    `at_least`: results may be larger than the reference's.
    """

    name: str
    values: np.ndarray
    limit: float | None = None
    at_least: bool = False


class KernelType:
    """Subclass with `@kernel_type`; give fields, rules, params, launch, build, given, reference and goldens."""

    __slots__ = ("_hash",)  # beside the fields: no part of equality, of repr, of a pickle
    _hash: int

    kernel_name: ClassVar[str] = ""
    goldens: ClassVar[tuple[Mapping[str, object], ...]] = ()
    golden_targets: ClassVar[tuple[str, ...]] = ("sm_75", "sm_80", "sm_90")
    golden_lines: ClassVar[int] = 900
    """Lines of a golden at most, headings not counted: people read them. A kernel type whose smallest text is longer
    says so."""
    lowest_target: ClassVar[str] = "sm_75"
    bundled_as: ClassVar[str] = ""
    """Its name in a model's bundle, whatever its role there."""

    # -- what a kernel type says about itself ---------------------------------------------------------------------

    def rules(self) -> Iterator[str]:
        """Every reason why these fields are not legal on any target."""
        yield from ()

    def target_rules(self, target: Target) -> Iterator[str]:
        """Every reason why this spec cannot be generated for `target`."""
        yield from ()

    def params(self) -> tuple[Param, ...]:
        """The parameters in order."""
        raise NotImplementedError(f"{type(self).__name__}.params: the kernel type has none")

    def launch(self, target: Target) -> Launch:
        """Geometry from the spec, the target and capacities; never from current lengths."""
        raise NotImplementedError(f"{type(self).__name__}.launch: the kernel type has none")

    def template(self, target: Target) -> str:
        """The skeleton's file name without `.ptx.j2`: the name of the kernel type that has this `build` first. Override
        where targets deserve different shapes."""
        own = type(self)
        named = (cls.__dict__.get("kernel_name") for cls in reversed(own.__mro__) if _build(cls) is _build(own))
        return next(filter(None, named), self.kernel_name)

    def bundle_name(self, role: str) -> str:
        """What it is called in a model's bundle, where it does what `role` says: `bundled_as`, else the role where that
        is a name."""
        return self.bundled_as or (role if role.isidentifier() else self.kernel_name)

    def build(self, b: Builder) -> None:
        """Build every fragment that the template places."""
        raise NotImplementedError(f"{type(self).__name__}.build: the kernel type has none")

    sizes: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """What an example is made of unless told: capacities that shapes name, lengths, positions; -1: `given` chooses."""

    def example(self, rng: np.random.Generator, **sizes: int) -> Arrays:
        """Arguments for a run: inputs random, outputs poisoned, workspaces left out; `sizes` override the class's."""
        from ptxgen.spec.examples import arguments, known_sizes

        capacities = {**self.sizes, **known_sizes(self, sizes)}
        return arguments(self.params(), rng, capacities, self.given(rng, capacities))

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Arguments of an example that are not random values: lengths, positions, pointer tables."""
        return {}

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """The least and the largest of every size, and of lengths and positions among the arguments, by their names.

        Inside them a run does what it was told; capacities come first. Unless overridden, sizes are from 1 on.
        """
        return dict.fromkeys(sizes, (1, MOST))

    def reference(self, **arguments: Any) -> Arrays:
        """What every out and inout buffer holds afterwards, in NumPy, float64 inside; `arguments` by parameter name."""
        raise NotImplementedError(f"{type(self).__name__}.reference: the kernel type has none")

    may_alias: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Outputs that may be bound to the memory of an input, all of it, by the input's name; what else overlaps what a
    kernel writes is refused."""

    error_limit: ClassVar[float | None] = None
    """The largest relative error (2-norm, over a buffer) of a result; None: what the coarsest element type among the
    fields gives (`ptxgen.parity`)."""

    def readings(self, output: str, values: np.ndarray) -> Iterator[Reading]:
        """What is compared of an output, of results and reference alike: the buffer as it is, unless one limit does
        not fit all outputs, or numbers lie in parts (`ptxgen.products.problem.readings`)."""
        yield Reading(output, values)

    # -- what tests know besides, of no weight for a text -------------------------------------------------------------

    trials: ClassVar[tuple[Mapping[str, int], ...]] = (MappingProxyType({}),)
    """Sizes to try it with (the class's own where they name none): every branch is taken in one of them, and every
    index is above zero somewhere."""

    early: ClassVar[tuple[str, ...]] = ()
    """Inputs that a programmatic launch may read before it waits for the kernel ahead: weights, and what that kernel
    does not write. Trials in check mode let a launch write all others just before."""

    unreported: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Faults put into its goldens that the executor's check mode does not report (regular expressions over what
    `tests/tools/mutations.py` calls them), and why. Where a fault changes no result, the reason begins with
    "does not matter: "."""

    def past(self, arguments: Arrays) -> Past:
        """Of an example's arrays those parts, as (array, index), on which no result depends: what lies past lengths."""
        yield from ()

    # -- shared behaviour ------------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        reasons = settle(self, vars(self).copy())
        if reasons:
            raise spec_error(type(self).__name__, reasons)
        hash(self)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or vars(self) == vars(other)

    def __hash__(self) -> int:
        """Of all fields, computed once: a spec is looked up at every load."""
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((type(self), *(getattr(self, name) for name in sorted(vars(self))))))
            return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: strings hash differently in every process."""
        return vars(self)

    def __repr__(self) -> str:
        """The fields in order; those that came later only where they are not at their defaults."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        shown = ((f, getattr(self, f.name)) for f in fields)
        said = (f"{f.name}={value!r}" for f, value in shown if not (f.metadata.get("later") and value == f.default))
        return f"{type(self).__qualname__}({', '.join(said)})"

    @property
    def slug(self) -> str:
        """File name of this spec: the fields that have no default, then those that differ from it."""
        from ptxgen.spec.fields import short_of

        values = ((f, getattr(self, f.name)) for f in dataclasses.fields(self))  # type: ignore[arg-type]
        words = [slug_word(short_of(f), value) for f, value in values if value != f.default]
        return "_".join(words).replace(".", "p").replace("-", "m").replace("+", "").lower() or "default"


def spec_error(kernel: str, reasons: tuple[str, ...]) -> SpecError:
    """A `SpecError` with every reason, also as `.reasons`."""
    error = SpecError("\n".join(f"{kernel}.{reason}" for reason in reasons))
    error.reasons = reasons  # type: ignore[attr-defined]
    return error


_REGISTRY: dict[str, type[KernelType]] = {}
K = TypeVar("K", bound=KernelType)


class Spread(NamedTuple):
    """In a kernel type's body, `name: ClassVar[Spread] = Spread(Group)`: the fields of the dataclass stand here.

    `defaults` replaces defaults of the group; a default of None admits None.
    """

    group: type
    defaults: Mapping[str, object] = MappingProxyType({})


def _spread(cls: type) -> None:
    """Put the fields of groups in the places of their `Spread`."""
    annotations: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(cls).items():
        marked = cls.__dict__.get(name)
        if not isinstance(marked, Spread):
            annotations[name] = annotation
            continue
        delattr(cls, name)
        for each in dataclasses.fields(marked.group):
            default = marked.defaults.get(each.name, each.default)
            annotations[each.name] = f"{each.type} | None" if default is None else each.type
            setattr(cls, each.name, dataclasses.field(default=default, metadata=each.metadata))
    cls.__annotations__ = annotations


def _build(cls: type) -> object:
    return getattr(cls, "build", None)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def kernel_base(cls: type[K]) -> type[K]:
    """Make a frozen dataclass of the fields of a kernel type whose parts are typed by them; it is not registered."""
    _spread(cls)
    return dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)


def _named(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that says of fields which are not there, or are missing, what `make_spec` says."""

    @functools.wraps(init)
    def init_named(spec: KernelType, *args: object, **fields: object) -> None:
        try:
            init(spec, *args, **fields)
        except TypeError:
            names = [each.name for each in dataclasses.fields(spec)]  # type: ignore[arg-type]
            first = dict(zip(names, args, strict=False))
            if len(args) > len(names) or first.keys() & fields.keys():  # Python's own words are plain there
                raise
            reasons: tuple[str, ...] = ()
            with contextlib.suppress(TypeError):  # of rules that compare what is missing
                reasons = draft(type(spec), first | fields)[1]
            if not reasons:
                raise
            raise spec_error(type(spec).__name__, reasons) from None

    return init_named


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def kernel_type(cls: type[K]) -> type[K]:
    """Make a frozen dataclass of a `KernelType` subclass and register it under its snake-case name.

    Raises `SpecError` where another package's kernel type, or one of ours, has the name, or that of a template; where
    a module of ours has another name than its class; where goldens or other members are not what they must be.
    """
    if cls.__module__.startswith(f"{GROUP}."):
        check_named(cls)
    _check_members(cls)
    made = kernel_base(cls)  # equality and hash are the base's
    made.__init__ = _named(made.__init__)  # type: ignore[method-assign]
    made.__repr__ = KernelType.__repr__  # type: ignore[method-assign]  # not that of a dataclass between them
    for each in dataclasses.fields(made):  # type: ignore[arg-type]
        if not isinstance(each.type, str):  # a module that does not postpone its annotations
            each.type = each.type.__name__ if type(each.type) is type else str(each.type)
    made.kernel_name = snake_case(cls.__name__)
    if package_of(made) != OURS:
        admit(made, made.kernel_name, _REGISTRY.get(made.kernel_name))
    _REGISTRY[made.kernel_name] = made
    return made


def _check_members(cls: type[KernelType]) -> None:
    """Members of which an author forgets a comma or braces."""
    rule: dict[str, tuple[type, str]] = {
        "goldens": (Mapping, "a tuple of dicts, such as (dict(dim=64),)"),
        "trials": (Mapping, "a tuple of dicts, such as ({}, dict(rows=3))"),
        "golden_targets": (str, 'a tuple of targets, such as ("sm_90",)'),
        "early": (str, 'a tuple of inputs, such as ("weight",)'),
    }
    for name, (kind, must) in rule.items():
        value = getattr(cls, name)
        if not isinstance(value, (tuple, list)) or not all(isinstance(each, kind) for each in value):
            raise SpecError(f"{cls.__name__}.{name}: must be {must} (got {brief(value)})")
    for name in ("sizes", "unreported"):
        value = getattr(cls, name)
        if not isinstance(value, Mapping):
            raise SpecError(f"{cls.__name__}.{name}: must be a dict (got {brief(value)})")


def registered() -> Mapping[str, type[KernelType]]:
    """The kernel types that are imported already, by snake-case name."""
    return MappingProxyType(_REGISTRY)


def kernel_types() -> Mapping[str, type[KernelType]]:
    """Every kernel type by its snake-case name, those of other packages included (`ptxgen.packages`); read-only."""
    load_every_own(_REGISTRY)
    load_packages(_REGISTRY)
    return MappingProxyType(dict(sorted(_REGISTRY.items())))


def find_kernel_type(name: str) -> type[KernelType]:
    """The kernel type of a name (`incremental-attention`, `incremental_attention` or `IncrementalAttention`).

    Raises `SpecError` with the nearest where there is none, or with the reason why it cannot be had.
    """
    key = snake_case(name).replace("-", "_")
    if key not in _REGISTRY and key in own_modules():
        load_own(key, _REGISTRY)
    if key not in _REGISTRY:
        load_packages(_REGISTRY)
    if key not in _REGISTRY:
        known = sorted(kernel_types())
        unknown = f"kernel type: must be one of {', '.join(known)} (got {name!r}{nearest(key, known)})"
        raise SpecError("\n".join([unknown, *failures()]))
    return _REGISTRY[key]


def make_spec(name: str, fields: Mapping[str, object], targets: Iterable[str | Target] = ()) -> KernelType:
    """A spec from a kernel type's name and fields, which all of `targets` support.

    Raises `SpecError` with every reason: unknown, missing and illegal fields, and what a target lacks.
    """
    from ptxgen.targets import target as parse_target

    cls = find_kernel_type(name)
    where = [parse_target(each) for each in targets]
    spec, reasons = draft(cls, fields)
    reasons += tuple(dict.fromkeys(reason for each in where for reason in target_reasons(spec, reasons, each)))
    if reasons:
        raise spec_error(cls.__name__, reasons)
    hash(spec)
    return spec


@dataclasses.dataclass(frozen=True)
class Support:
    """Answer of `supports`: true when there is no reason against."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "ok" if self else "\n".join(self.reasons)


def supports(spec_fields: KernelType | Mapping[str, object], target: str | Target) -> Support:
    """Whether a spec, or a mapping of fields with its `kernel_type`, can be had for `target`; else every reason."""
    from ptxgen.targets import target as parse_target

    where = parse_target(target)
    if isinstance(spec_fields, KernelType):
        return Support(tuple(target_reasons(spec_fields, (), where)))
    if not isinstance(spec_fields, Mapping):
        raise SpecError(f"supports: must be a spec, or a mapping of its fields (got {brief(spec_fields)})")
    fields = dict(spec_fields)
    try:
        cls = find_kernel_type(str(fields.pop("kernel_type", "")))
    except SpecError as unknown:
        return Support((str(unknown),))
    spec, reasons = draft(cls, fields)
    return Support((*reasons, *target_reasons(spec, reasons, where)))


__all__ = [
    "DType",
    "KernelType",
    "Support",
    "field",
    "find_kernel_type",
    "kernel_type",
    "kernel_types",
    "make_spec",
    "supports",
]
