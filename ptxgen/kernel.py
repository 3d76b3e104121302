"""The base of every kernel type, and the registry. One kernel type is one Python file and one template.

A kernel type is a frozen dataclass; an instance is a *spec*: one specialisation, and the key of every cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ptxgen.dtypes import DType, dtype
from ptxgen.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import dataclass_transform

    from ptxgen.builder import Builder
    from ptxgen.launch import Launch, Param
    from ptxgen.targets import Target

    Arrays = dict[str, np.ndarray]
else:

    def dataclass_transform(**_):
        """Only type checkers read it (the standard library has it from Python 3.11)."""
        return lambda decorator: decorator



class KernelType:
    """Subclass with `@kernel_type`; give fields, rules, params, launch, build, given, reference and goldens."""

    kernel_name: ClassVar[str] = ""
    goldens: ClassVar[tuple[Mapping[str, object], ...]] = ()
    golden_targets: ClassVar[tuple[str, ...]] = ("sm_75", "sm_80", "sm_90")
    lowest_target: ClassVar[str] = "sm_75"

    # -- what a kernel type says about itself ---------------------------------------------------------------------

    def rules(self) -> Iterator[str]:
        """Every reason why these fields are not legal on any target."""
        yield from ()

    def target_rules(self, target: Target) -> Iterator[str]:
        """Every reason why this spec cannot be generated for `target`."""
        yield from ()

    def params(self) -> tuple[Param, ...]:
        """The parameters in order."""
        raise NotImplementedError

    def launch(self, target: Target) -> Launch:
        """Geometry from the spec, the target and capacities; never from current lengths."""
        raise NotImplementedError

    def template(self, target: Target) -> str:
        """The skeleton's file name without `.ptx.j2`; override where targets deserve different shapes."""
        return self.kernel_name

    def build(self, b: Builder) -> None:
        """Build every fragment that the template places."""
        raise NotImplementedError

    sizes: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """What an example is made of unless told: capacities that shapes name, lengths, positions."""

    def example(self, rng: np.random.Generator, **sizes: int) -> Arrays:
        """Arguments for a run: inputs random, outputs poisoned, workspaces left out; `sizes` override the class's."""
        from ptxgen.examples import arguments

        unknown = sizes.keys() - self.sizes.keys()
        if unknown:
            known = ", ".join(self.sizes)
            raise SpecError(f"{type(self).__name__}: sizes are {known} (got {', '.join(sorted(unknown))})")
        capacities = {**self.sizes, **sizes}
        return arguments(self.params(), rng, capacities, self.given(rng, capacities))

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Arguments of an example that are not random values: lengths, positions, pointer tables."""
        return {}

    def reference(self, **arguments: Any) -> Arrays:
        """What every out and inout buffer holds afterwards, in NumPy, float64 inside; `arguments` by parameter name."""
        raise NotImplementedError

    # -- shared behaviour ------------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, _coerce(type(self).__name__, field, value))
        reasons = tuple(self.rules())
        if reasons:
            raise spec_error(type(self).__name__, reasons)

    @property
    def slug(self) -> str:
        """File name of this spec: the fields that have no default, then those that differ from it."""
        values = ((f, getattr(self, f.name)) for f in dataclasses.fields(self))  # type: ignore[arg-type]
        words = [_slug_word(f.name, value) for f, value in values if value != f.default]
        return "_".join(words).replace(".", "p").replace("-", "m").replace("+", "").lower() or "default"


def spec_error(kernel: str, reasons: tuple[str, ...]) -> SpecError:
    """A `SpecError` with every reason, also as `.reasons`."""
    error = SpecError("\n".join(f"{kernel}.{reason}" for reason in reasons))
    error.reasons = reasons  # type: ignore[attr-defined]
    return error


_SHORT = {"max_len": "l", "head_dim": "d", "n_heads": "h", "n_kv_heads": "kv", "kv_dtype": "", "dtype": ""}


def _slug_word(name: str, value: object) -> str:
    """One field in a file name: `l64`, `f16`, `q_bf16`, `indirect`, `no_causal`, `layout_heads`."""
    name = _SHORT.get(name, name)
    if isinstance(value, bool):
        return name if value else f"no_{name}"
    if isinstance(value, (int, float)):
        return f"{name}{value:g}" if isinstance(value, float) else f"{name}{value}"
    if isinstance(value, tuple):
        return f"{name}_{hashlib.sha256(repr(value).encode()).hexdigest()[:8]}"
    return "_".join(filter(None, (name.removesuffix("_dtype"), str(value).lower())))


def _coerce(kernel: str, field: dataclasses.Field[Any], value: object) -> object:
    """Bring a field's value to the annotated type; `SpecError` when it does not fit."""
    kind = str(field.type).replace(" ", "")
    if value is None and kind.endswith("|None"):
        return None
    kind = kind.removesuffix("|None")
    if kind == "DType":
        try:
            return dtype(value)
        except SpecError as wrong:
            raise SpecError(f"{kernel}.{field.name}: {str(wrong).removeprefix('dtype: ')}") from None
    if kind == "tuple[float,...]":
        try:
            return tuple(float(item) for item in value)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            raise SpecError(f"{kernel}.{field.name}: must be a sequence of numbers (got {value!r})") from None
    wanted: dict[str, type] = {"int": int, "bool": bool, "float": float, "str": str}
    python = wanted.get(kind)
    if python is None:
        return value
    if hasattr(value, "item"):
        value = value.item()
    if python is float and type(value) is int:
        return float(value)
    if type(value) is not python:
        raise SpecError(f"{kernel}.{field.name}: must be {'an' if kind == 'int' else 'a'} {kind} (got {value!r})")
    return value


_REGISTRY: dict[str, type[KernelType]] = {}
K = TypeVar("K", bound=KernelType)


@dataclass_transform(frozen_default=True)
def kernel_type(cls: type[K]) -> type[K]:
    """Make a frozen dataclass of a `KernelType` subclass and register it under its snake-case name."""
    made = dataclasses.dataclass(frozen=True)(cls)
    made.kernel_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    _REGISTRY[made.kernel_name] = made
    return made


def kernel_types() -> Mapping[str, type[KernelType]]:
    """Every kernel type by its snake-case name, read-only."""
    from ptxgen.kernels import load_all

    load_all()
    return MappingProxyType(dict(sorted(_REGISTRY.items())))


def find_kernel_type(name: str) -> type[KernelType]:
    """The kernel type of a name (`incremental-attention`, `incremental_attention` or `IncrementalAttention`)."""
    import difflib
    import importlib

    from ptxgen.kernels import module_names

    key = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    if key not in _REGISTRY and key in module_names():
        importlib.import_module(f"ptxgen.kernels.{key}")
    if key not in _REGISTRY:
        known = sorted(kernel_types())
        close = difflib.get_close_matches(key, known, 1)
        hint = f"; nearest: {close[0]}" if close else ""
        raise SpecError(f"kernel type: must be one of {', '.join(known)} (got {name!r}{hint})")
    return _REGISTRY[key]


def make_spec(name: str, fields: Mapping[str, object]) -> KernelType:
    """A spec from a kernel type's name and fields; unknown or missing fields are a `SpecError` with the known ones."""
    import difflib

    cls = find_kernel_type(name)
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    reasons = []
    for name_given in fields.keys() - known.keys():
        close = difflib.get_close_matches(name_given, known, 1)
        nearest = f"; nearest: {close[0]}" if close else ""
        reasons.append(f"{name_given}: no such field{nearest} (fields: {', '.join(known)})")
    for field in known.values():
        if field.default is dataclasses.MISSING and field.name not in fields:
            reasons.append(f"{field.name}: is needed and has no default")
    if reasons:
        raise spec_error(cls.__name__, tuple(sorted(reasons)))
    return cls(**fields)


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
    if not isinstance(spec_fields, KernelType):
        fields = dict(spec_fields)
        name = str(fields.pop("kernel_type", ""))
        try:
            spec_fields = make_spec(name, fields)
        except SpecError as error:
            return Support(getattr(error, "reasons", (str(error),)))
    return Support(tuple(_target_reasons(spec_fields, where)))


def _target_reasons(spec: KernelType, where: Target) -> Iterator[str]:
    from ptxgen.targets import target as parse_target

    if not where.includes(parse_target(spec.lowest_target)):
        yield f"target: must be {spec.lowest_target} or later (got {where}; nearest: {spec.lowest_target})"
        return
    yield from spec.target_rules(where)


__all__ = ["DType", "KernelType", "Support", "find_kernel_type", "kernel_type", "kernel_types", "make_spec", "supports"]
