"""How a token is drawn: the settings of a sequence, and their arrays on the device. Kernel type Sample draws."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from ptxgen import rules
from ptxgen.dtypes import f32, s32, u64
from ptxgen.errors import SpecError, brief
from ptxgen.integers import as_index

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.memory.buffer import Buffer
    from ptxgen.runtime.core.stream import Stream

_DTYPES = {"temperature": f32, "top_k": s32, "top_p": f32, "min_p": f32, "seed": u64, "penalty": f32}


@dataclass(frozen=True)
class Sampling:
    """How a sequence's tokens are drawn, in this order.

    `penalty`, 0.001 … 1000: logits of tokens that the sequence has are divided by it, those below zero multiplied (1:
    off). `temperature`, 0 … 10⁶: the logits' divisor; 0 takes the likeliest. `top_k`: so many likeliest stay (0: off).
    `top_p`, 0 … 1: of these the fewest whose weights reach this part of the sum (1: off). `min_p`, 0 … 1: of these
    those of at least this part of the likeliest's weight (0: off). `seed`, 64 bits: the same one gives the same tokens
    on every device. Raises `SpecError`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in _DTYPES.items():
            value = getattr(self, name)
            if kind == f32 and (not isinstance(value, Real) or isinstance(value, bool)):
                raise SpecError(f"Sampling.{name}: must be a number (got {brief(value)})")
            if kind != f32 and as_index(value) is None:
                raise SpecError(f"Sampling.{name}: must be an integer (got {brief(value)})")
        for reason in (
            *rules.between("temperature", self.temperature, 0.0, 1e6),
            *rules.between("top_k", self.top_k, 0, 1 << 30),
            *rules.between("top_p", self.top_p, 0.0, 1.0),
            *rules.between("min_p", self.min_p, 0.0, 1.0),
            *rules.between("penalty", self.penalty, 1e-3, 1e3),
            *rules.between("seed", self.seed, 0, (1 << 64) - 1),
        ):
            raise SpecError(f"Sampling.{reason}")

    @property
    def penalises(self) -> bool:
        """Whether the sequence's own tokens matter."""
        return self.penalty != 1.0


GREEDY = Sampling(temperature=0.0)


def checked(sampling: object) -> Sampling | None:
    """Settings as they are given, None for the likeliest token; `SpecError` for anything else."""
    if sampling is None or isinstance(sampling, Sampling):
        return sampling
    raise SpecError(f"sampling: must be a Sampling or None (got {brief(sampling)})")


class Settings:
    """The settings of `rows` sequences on the device: `buffers` by the names that a Program gives them."""

    def __init__(self, device: Device, rows: int, history: int) -> None:
        self.buffers: dict[str, Buffer] = {
            f"sampling.{name}": device.zeros(rows, kind) for name, kind in _DTYPES.items()
        }
        self.buffers["history"] = device.zeros((rows, history), s32)
        self._now: list[Sampling | None] = [None] * rows

    def put(self, sampling: Sampling, row: int, stream: Stream) -> None:
        """Let a row have these settings from the next step on."""
        if sampling == self._now[row]:
            return
        for name, kind in _DTYPES.items():
            value = np.array([getattr(sampling, name)], kind.numpy)
            self.buffers[f"sampling.{name}"][row : row + 1].copy_from(value, stream)
        self._now[row] = sampling

    def remember(self, tokens: np.ndarray, stream: Stream, row: int = 0) -> None:
        """The tokens of a row, from its first position on, as many as there is room for."""
        history = self.buffers["history"]
        kept = tokens[: history.shape[1]]
        history[row, : len(kept)].copy_from(kept, stream)
