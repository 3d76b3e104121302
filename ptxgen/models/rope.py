"""Rotary embedding settings of a `config.json`: theta, the part of a head that rotates, long-context scaling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ptxgen import rules
from ptxgen.errors import SpecError, brief
from ptxgen.idioms.rope_settings import RopeSettings
from ptxgen.jsonfields import Fields, is_number


@dataclass(frozen=True)
class _Asked:
    """What a way of scaling may look at: its own values, the whole config's, and what is known already."""

    scaling: Fields
    config: Fields
    theta: float
    rotary_dim: int
    max_len: int

    @property
    def original_max_len(self) -> int:
        """The context that the model was first trained for."""
        key = "original_max_position_embeddings"
        known = self.config.count(key, self.config.count("max_position_embeddings"), least=2)
        return self.scaling.count(key, known, least=2)


def rope_settings(
    read: Fields, head_dim: int, rotary: float, max_len: int, slides: bool, local_key: str
) -> RopeSettings:
    """RoPE of full or of sliding layers, from `rope_theta` and `rope_scaling`, or from the newer `rope_parameters`.

    `rotary` is the default part of a head that rotates. `local_key` names the base of layers that have one of their
    own and no scaling. Raises `SpecError` for a way of scaling that is not in the table.
    """
    given = read.table("rope_parameters")
    by_type = given.get("sliding_attention" if slides else "full_attention")
    parameters = Fields(by_type if isinstance(by_type, dict) else given, f"{read.source}: rope_parameters")
    key = "partial_rotary_factor"
    part = parameters.number(key, read.number(key, rotary, most=1.0), most=1.0)
    theta = parameters.number("rope_theta", read.number("rope_theta", 10000.0, above=1.0), above=1.0)
    rotary_dim = int(head_dim * part)
    for reason in rules.multiple_of("rotary_dim", rotary_dim, 8, 8, head_dim):
        raise SpecError(f"{read.source}: {key}={part:g} of head_dim={head_dim}: {reason}")
    if local_key and not isinstance(by_type, dict):
        return RopeSettings(read.number(local_key, theta, above=1.0), rotary_dim)
    scaling = Fields(parameters.values or read.table("rope_scaling"), f"{read.source}: rope_scaling")
    kind = str(scaling.values.get("rope_type") or scaling.values.get("type") or "default")
    if kind not in _SCALINGS:
        raise SpecError(f"{scaling.source}: type: must be one of {', '.join(_SCALINGS)} (got {brief(kind)})")
    return _SCALINGS[kind](_Asked(scaling, read, theta, rotary_dim, max_len))


def _default(a: _Asked) -> RopeSettings:
    return RopeSettings(a.theta, a.rotary_dim)


def _linear(a: _Asked) -> RopeSettings:
    return RopeSettings(a.theta, a.rotary_dim, "linear", a.scaling.number("factor"))


def _llama3(a: _Asked) -> RopeSettings:
    number = a.scaling.number
    low, high = number("low_freq_factor"), number("high_freq_factor")
    return RopeSettings(a.theta, a.rotary_dim, "llama3", number("factor"), low, high, a.original_max_len)


def _yarn(a: _Asked) -> RopeSettings:
    """Frequencies that turn often within the original context stay, slow ones are divided (arXiv 2309.00071, §3.2)."""
    factor, original = a.scaling.number("factor"), a.original_max_len
    fast, slow = a.scaling.number("beta_fast", 32.0), a.scaling.number("beta_slow", 1.0)

    def pair_that_turns(times: float) -> float:
        return a.rotary_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(a.theta))

    low, high = max(math.floor(pair_that_turns(fast)), 0), min(math.ceil(pair_that_turns(slow)), a.rotary_dim - 1)
    width = high - low if high != low else 0.001
    slowed = [min(max((i - low) / width, 0.0), 1.0) for i in range(a.rotary_dim // 2)]
    factors = tuple(1 / ((1 - s) + s / factor) for s in slowed)
    return RopeSettings(a.theta, a.rotary_dim, freq_factors=factors, attention_factor=_yarn_attention(a, factor))


def _yarn_attention(a: _Asked, factor: float) -> float:
    """Factor of the logits' temperature, as the config gives it or by the paper's fit."""

    def fit(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    one, all_dims = a.scaling.number("mscale", 0.0), a.scaling.number("mscale_all_dim", 0.0)
    return a.scaling.number("attention_factor", fit(one) / fit(all_dims) if one and all_dims else fit(1.0))


def _longrope(a: _Asked) -> RopeSettings:
    """A divisor per frequency: one list up to the original context, another for a cache that is longer than it."""
    original = a.original_max_len
    key = "long_factor" if a.max_len > original else "short_factor"
    factors = a.scaling.values.get(key)
    if not isinstance(factors, list) or len(factors) != a.rotary_dim // 2:
        raise SpecError(f"{a.scaling.source}: {key}: must be a list of {a.rotary_dim // 2} numbers, one a pair")
    if not all(map(is_number, factors)):
        raise SpecError(f"{a.scaling.source}: {key}: must be positive numbers (got {factors})")
    stretched = a.scaling.number("factor", a.config.count("max_position_embeddings") / original)
    fit = math.sqrt(1 + math.log(stretched) / math.log(original)) if stretched > 1 else 1.0
    attention = a.scaling.number("attention_factor", fit)
    return RopeSettings(a.theta, a.rotary_dim, freq_factors=tuple(map(float, factors)), attention_factor=attention)


_SCALINGS: dict[str, Callable[[_Asked], RopeSettings]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # its name in older files
}
