"""What says by which angles heads rotate: stated once, for the kernel types' fields and for models' layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ptxgen.spec.fields import Said, field


@dataclass(frozen=True)
class RopeSettings:
    """Rotary embedding of the first `rotary_dim` elements of a head, at frequencies of base `theta`.

    `scaling` is "default", "linear" or "llama3"; other ways of scaling become a divisor of each frequency
    (`freq_factors`, empty for none) and a factor of sine and cosine (`attention_factor`).
    """

    theta: float = dataclasses.field(
        metadata=Said(draws=(10000.0, 500000.0), doc="base of the RoPE frequencies"),
    )
    rotary_dim: int = dataclasses.field(
        metadata=Said(
            draws=(None, 8, 16, 32, 48), refuses=(4,), doc="elements of a head that are rotated, from its start"
        ),
    )
    scaling: str = field(default="default", doc="of the RoPE frequencies for long contexts: default, linear or llama3")
    factor: float = field(
        default=1.0, draws=(1.0, 8.0), doc="how much longer the context becomes, with scaling linear or llama3"
    )
    low_freq_factor: float = field(
        default=1.0, doc="llama3: wavelengths above original_max_len / it are scaled by the whole factor"
    )
    high_freq_factor: float = field(default=4.0, doc="llama3: wavelengths below original_max_len / it are not scaled")
    original_max_len: int = field(
        default=8192, draws=(8192,), doc="llama3: the context that the model was first trained for"
    )
    freq_factors: tuple[float, ...] = field(
        default=(), doc="a divisor of each RoPE frequency, separated by commas; none by default"
    )
    attention_factor: float = field(default=1.0, doc="factor of sine and cosine (YaRN, LongRoPE)")
