"""What says by which angles heads rotate: stated once, for the kernel types' fields and for models' layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeSettings:
    """Rotary embedding of the first `rotary_dim` elements of a head, at frequencies of base `theta`.

    `scaling` is "default", "linear" or "llama3"; other ways of scaling become a divisor of each frequency
    (`freq_factors`, empty for none) and a factor of sine and cosine (`attention_factor`).
    """

    theta: float
    rotary_dim: int
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192
    freq_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
