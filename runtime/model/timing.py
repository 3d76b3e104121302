"""How long a step took, part by part: a record of each step, and a line of the log. `Step.times` measures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ptxgen.models.program import Program
from ptxgen.models.spec import Block

LOG = logging.getLogger("ptxgen.model")
_OUTSIDE = {"embed_tokens": "embedding", "step": "step"}  # of ops outside of the layers; all others choose the token


@dataclass(frozen=True)
class StepTime:
    """A step of `rows` positions from `position` on: microseconds on the device of its parts "embedding", "attention",
    "mlp" and "head", each over all layers, launches one after the other (of a persistent step: "step"). A step of a
    prompt that another follows has no "head", and of its last layer the keys and values alone."""

    position: int
    rows: int
    parts: Mapping[str, float]

    @property
    def us(self) -> float:
        """Microseconds of the whole step."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {us:.1f}" for name, us in self.parts.items())
        at = (
            f"position {self.position}"
            if self.rows == 1
            else f"positions {self.position} to {self.position + self.rows - 1}"
        )
        return f"{at}: {self.us:.1f} µs ({parts}), {1e6 * self.rows / self.us:.0f} tokens/s"


def step_time(program: Program, block: Block, us: list[float], position: int, rows: int) -> StepTime:
    """The record of a step whose ops took so long; it is logged, too."""
    parts: dict[str, float] = {}
    for part, one in zip(_parts(program, block), us, strict=True):
        parts[part] = parts.get(part, 0.0) + one
    found = StepTime(position, rows, parts)
    LOG.info("%s", found)
    return found


def _parts(program: Program, block: Block) -> list[str]:
    """Which part each op belongs to. In a layer the feed-forward part begins with its norm or its first product."""
    found, layer, part = [], -1, ""
    for op in program.ops:
        if op.layer != layer:
            layer, part = op.layer, "attention"
        if op.layer < 0:
            part = _OUTSIDE.get(op.role, "head")
        elif op.role.startswith("gate_up") or op.role == block.mlp_norm:
            part = "mlp"
        found.append(part)
    return found
