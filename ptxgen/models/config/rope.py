"""Rotary embedding settings of a `config.json`: theta, the part of a head that rotates, long-context scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ptxgen import rules
from ptxgen.errors import SpecError, brief
from ptxgen.files.jsonfields import Fields, is_number
from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.models.config.families import Family
from ptxgen.models.config.layers import FULL, SLIDING

TABLES = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class _Asked:
    """What a way of scaling may look at: its own values, the whole config's, and what is known already."""

    scaling: Fields
    config: Fields
    theta: float
    rotary_dim: int
    max_len: int

    @property
    def trained_max_len(self) -> int:
        """The longest context of the config, scaling included. `max_len`, how much of it is kept, stands for nothing
        here."""
        return self.config.count("max_position_embeddings")

    @property
    def original_max_len(self) -> int:
        """The context that the model was first trained for: what the config says comes before what the table says."""
        key = "original_max_position_embeddings"
        said = next((one for one in (self.config, self.scaling) if one.values.get(key) is not None), None)
        return self.trained_max_len if said is None else said.count(key, least=2)

    @property
    def stretch(self) -> float:
        """How many times as long as the original context the trained one is."""
        said = self.scaling.values.get("factor") is not None
        return self.scaling.number("factor", None if said else self.trained_max_len / self.original_max_len)


@dataclass(frozen=True)
class _Scaling:
    """A way of scaling, and the keys of its table beside those that all tables have."""

    of: Callable[[_Asked], RopeSettings]
    keys: tuple[str, ...] = ()


_PART = "partial_rotary_factor"
_COMMON = ("rope_type", "type", "rope_theta", _PART)


def rope_table(read: Fields, family: Family) -> dict[str, Any]:
    """The table of RoPE settings, under its older or its newer name. Raises `SpecError` where both are given and
    differ, and where transformers does not read what a table says."""
    older, newer = (read.table(name) for name in TABLES)
    if older and newer and older != newer:
        raise read.error("rope_scaling", "must be absent where rope_parameters says otherwise")
    if family.local_theta:
        _check_by_layer_type(read, older, newer)
    nothing = not older and read.values.get("rope_parameters") == {}  # which is not the same as saying nothing
    return older or newer or ({} if nothing else dict(family.default_rope))


def _check_by_layer_type(read: Fields, older: Mapping[str, Any], newer: Mapping[str, Any]) -> None:
    """Refuse what transformers leaves out where layer types have tables of their own, as other implementations do
    not: the newer name for one table, the older name for two, `type` in one, `truncate`, the context beside them."""
    if newer and not by_layer_type(newer):
        raise read.error("rope_parameters", f"must have a table for {FULL} here; one table is called rope_scaling")
    if by_layer_type(older):
        raise read.error("rope_scaling", "must be one table here; tables by layer type are called rope_parameters")
    original = "original_max_position_embeddings"
    if (older or newer) and read.values.get(original) is not None:
        raise read.error(original, "must be absent here, or stand in the table")
    if older.get("rope_type") is None and older.get("type", "default") not in (None, "default"):
        raise read.error("rope_scaling", "must call its type rope_type here")
    for table in (older, *(one for one in newer.values() if isinstance(one, dict))):
        if table.get("truncate") is False:
            raise read.error("rope_scaling" if table is older else "rope_parameters", "truncate must not be false here")


def by_layer_type(table: Mapping[str, Any]) -> bool:
    """Whether the table has a table for each type of layer."""
    return any(isinstance(table.get(kind), dict) for kind in (FULL, SLIDING))


def rope_settings(read: Fields, family: Family, head_dim: int, max_len: int, slides: bool) -> RopeSettings:
    """RoPE of full or of sliding layers, from `rope_theta` and `rope_scaling`, or from the newer `rope_parameters`.

    Raises `SpecError` for a way of scaling that is not in the table.
    """
    given = rope_table(read, family)
    local = slides and bool(family.local_theta)
    if by_layer_type(given):
        table = given.get(SLIDING if slides else FULL)
        if not family.local_theta or not isinstance(table, dict):
            raise read.error("rope_parameters", "must be one table for all layers, or for gemma3, gemma3n, olmo3 two")
        own, local = table, False
    else:
        own = {} if local else given
    scaling = Fields(own, f"{read.source}: {'rope_scaling' if read.table('rope_scaling') else 'rope_parameters'}")
    theta_key = family.local_theta if slides and family.local_theta else "rope_theta"
    if _is_null(read, theta_key) and scaling.values.get("rope_theta") is None:
        raise read.error(theta_key, "must be absent, or a number above 1")
    theta = scaling.number("rope_theta", read.number(theta_key, 10000.0, above=1.0), above=1.0)
    part = _part(read, scaling, family)
    rotary_dim = int(head_dim * part)
    for reason in rules.multiple_of("rotary_dim", rotary_dim, 8, 8, head_dim):
        named = read.names.get(_PART, _PART)
        raise SpecError(f"{read.source}: {named}={part:g} of head_dim={head_dim}: {reason}")
    if local:
        return RopeSettings(theta, rotary_dim)
    return SCALINGS[scaling_type(scaling, family)].of(_Asked(scaling, read, theta, rotary_dim, max_len))


def rotated_part(read: Fields, family: Family) -> float:
    """The part of a head that rotates: what the table of RoPE settings says, the config, or else the family."""
    return _part(read, Fields(rope_table(read, family), read.source), family) if family.rotary else 1.0


def _part(read: Fields, table: Fields, family: Family) -> float:
    if family.rotary is None:
        if table.values.get(_PART) not in (None, 1):
            raise table.error(_PART, "must be absent or 1: this family rotates whole heads")
        return 1.0
    if _is_null(read, _PART):
        raise read.error(_PART, f"must be absent for {family.rotary:g}, or a number")
    return table.number(_PART, read.number(_PART, family.rotary, most=1.0), most=1.0)


def _is_null(read: Fields, key: str) -> bool:
    """Whether a file says null where that is not the same as saying nothing."""
    return key in read.values and read.values[key] is None


def scaling_type(scaling: Fields, family: Family) -> str:
    """The type that a table names. Raises `SpecError` for one that the family does not have here."""
    named = "rope_type" if scaling.values.get("rope_type") is not None else "type"
    kind = "default" if scaling.values.get(named) is None else scaling.values[named]
    if "llama_4_scaling_beta" in scaling.values:
        raise scaling.error("llama_4_scaling_beta", "queries that grow with their position have no kernels here")
    if kind == "default" and "mrope" in family.scalings and "mrope_section" in scaling.values:
        return "mrope"  # newer files call it so
    known = family.scalings or tuple(name for name in SCALINGS if name != "mrope")
    if kind not in known:
        raise scaling.error(named, f"must be one of {', '.join(known)}")
    return str(kind)


def scaling_keys(kind: str) -> frozenset[str]:
    """The keys of a table of that type."""
    return frozenset((*_COMMON, *SCALINGS[kind].keys))


def _default(a: _Asked) -> RopeSettings:
    return RopeSettings(a.theta, a.rotary_dim)


def _linear(a: _Asked) -> RopeSettings:
    return RopeSettings(a.theta, a.rotary_dim, "linear", a.scaling.number("factor"))


def _dynamic(a: _Asked) -> RopeSettings:
    """Plain up to the longest context of the config; behind it the base grows with the length."""
    if a.max_len > a.trained_max_len:
        raise SpecError(
            f"{a.scaling.source}: type: dynamic frequencies change with every length behind "
            f"max_position_embeddings={a.trained_max_len}; --max-len {a.trained_max_len} would work "
            f"(got {a.max_len} positions)"
        )
    a.scaling.number("factor")  # as transformers asks for it
    return RopeSettings(a.theta, a.rotary_dim)


def _llama3(a: _Asked) -> RopeSettings:
    number = a.scaling.number
    low, high = number("low_freq_factor"), number("high_freq_factor")
    if high <= low:
        raise a.scaling.error("high_freq_factor", f"must be above low_freq_factor={low:g}")
    return RopeSettings(a.theta, a.rotary_dim, "llama3", number("factor"), low, high, a.original_max_len)


def _yarn(a: _Asked) -> RopeSettings:
    """Frequencies that turn often within the original context stay, slow ones are divided (arXiv 2309.00071, §3.2).
    The range between is of whole pairs, unless `truncate` is false."""
    original = a.original_max_len
    if "factor" not in a.scaling.values:  # null: what the original context gives
        raise a.scaling.error("factor", f"must be a number, or null for max_position_embeddings / {_ORIGINAL}")
    factor = a.stretch
    fast, slow = a.scaling.number("beta_fast", 32.0), a.scaling.number("beta_slow", 1.0)

    def pair_that_turns(times: float) -> float:
        return a.rotary_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(a.theta))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if "truncate" not in a.scaling.values or a.scaling.flag("truncate"):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, a.rotary_dim - 1)
    width = high - low if high != low else 0.001
    slowed = [min(max((i - low) / width, 0.0), 1.0) for i in range(a.rotary_dim // 2)]
    factors = tuple(1 / ((1 - s) + s / factor) for s in slowed)
    return RopeSettings(a.theta, a.rotary_dim, freq_factors=factors, attention_factor=_yarn_attention(a, factor))


def _yarn_attention(a: _Asked, factor: float) -> float:
    """Factor of the logits' temperature, as the config gives it or by the paper's fit."""

    def fit(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    one, all_dims = (0.0 if a.scaling.values.get(key) == 0 else a.scaling.number(key, 0.0)
                     for key in ("mscale", "mscale_all_dim"))  # fmt: skip
    return a.scaling.number("attention_factor", fit(one) / fit(all_dims) if one and all_dims else fit(1.0))


def _longrope(a: _Asked) -> RopeSettings:
    """A divisor per frequency: one list up to the original context, another for a cache that is longer than it."""
    original = a.original_max_len
    long = a.max_len > original
    used = "long_factor" if long else "short_factor"
    factors = a.scaling.values.get(used)
    for key in ("short_factor", "long_factor"):
        given = a.scaling.values.get(key)
        if given is None and key != used:
            continue
        if not isinstance(given, list) or len(given) != a.rotary_dim // 2:
            raise SpecError(f"{a.scaling.source}: {key}: must be a list of {a.rotary_dim // 2} numbers, one a pair")
        if not all(map(is_number, given)):
            raise SpecError(f"{a.scaling.source}: {key}: must be positive numbers (got {brief(given)})")
    found = tuple(map(float, factors or ()))
    stretch = a.stretch
    fit = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    attention = a.scaling.number("long_mscale" if long else "short_mscale", a.scaling.number("attention_factor", fit))
    return RopeSettings(a.theta, a.rotary_dim, freq_factors=found, attention_factor=attention)


_ORIGINAL = "original_max_position_embeddings"
_LONG = _Scaling(
    _longrope, ("factor", "short_factor", "long_factor", "attention_factor", _ORIGINAL, "short_mscale", "long_mscale")
)
SCALINGS: dict[str, _Scaling] = {
    "default": _Scaling(_default),
    "linear": _Scaling(_linear, ("factor",)),
    "llama3": _Scaling(_llama3, ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL)),
    "yarn": _Scaling(
        _yarn,
        ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", _ORIGINAL),
    ),
    "longrope": _LONG,
    "su": _LONG,  # its name in older files
    "dynamic": _Scaling(_dynamic, ("factor", _ORIGINAL)),
    "mrope": _Scaling(_default, ("mrope_section",)),
}
