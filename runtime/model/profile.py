"""What a step costs, op by op: time, bytes, share. Owns no clock: `Step.times` measures."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.models.program import Op, Program

if TYPE_CHECKING:
    from ptxgen.runtime.model.model import Model

_CACHES = ("k_cache", "v_cache", "k_scales", "v_scales")


@dataclass(frozen=True)
class Cost:
    """An op: microseconds, the bytes that it has to move, and its share of the step's time."""

    op: str
    kernel: str
    us: float
    bytes: int
    share: float


@dataclass(frozen=True)
class Profile:
    """A step of one token over `length` positions."""

    device: str
    length: int
    costs: tuple[Cost, ...]

    @property
    def us(self) -> float:
        """Time of all ops, one after the other."""
        return sum(cost.us for cost in self.costs)

    def by_role(self) -> tuple[Cost, ...]:
        """The ops of all layers that do the same, together; the longest first."""
        found: dict[tuple[str, str], list[Cost]] = {}
        for cost in self.costs:
            found.setdefault((role_of(cost.op), cost.kernel), []).append(cost)
        sums = [
            Cost(role, kernel, sum(c.us for c in of), sum(c.bytes for c in of), sum(c.share for c in of))
            for (role, kernel), of in found.items()
        ]
        return tuple(sorted(sums, key=lambda cost: -cost.us))

    def table(self) -> str:
        """Plain text, a line for what the ops of all layers do together."""
        rows = [("op", "kernel", "µs", "MB", "share")]
        for cost in self.by_role():
            rows.append((cost.op, cost.kernel, f"{cost.us:.1f}", f"{cost.bytes / 1e6:.2f}", f"{cost.share:.1%}"))
        total = sum(cost.bytes for cost in self.costs) / 1e6
        rows.append((f"all, at {self.length}", "", f"{self.us:.1f}", f"{total:.2f}", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = []
        for row in rows:
            cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def json(self) -> str:
        """Every op as a JSON object."""
        return json.dumps({**asdict(self), "us": self.us}, indent=2)

    def chrome_trace(self) -> str:
        """Events for chrome://tracing and Perfetto, one after the other."""
        events: list[dict[str, Any]] = []
        at = 0.0
        for cost in self.costs:
            events.append({"name": cost.op, "cat": cost.kernel, "ph": "X", "pid": 0, "tid": 0, "ts": at,
                           "dur": cost.us, "args": {"bytes": cost.bytes}})  # fmt: skip
            at += cost.us
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def role_of(op: str) -> str:
    """`layers.3.q_proj` → `q_proj`."""
    return op.split(".", 2)[2] if op.startswith("layers.") else op


def op_bytes(program: Program, op: Op, length: int) -> int:
    """What an op reads and writes at least: of a cache the positions that are there, of a table the rows that are
    asked for, of all else everything."""
    total = 0
    for param, ref in op.buffers():
        tensor = program.tensors[ref.tensor]
        nbytes = param.nbytes(op.sizes)
        name = ref.tensor.rpartition(".")[2]
        if name in _CACHES:
            max_len = tensor.shape[-2]
            nbytes = nbytes // max_len * (length if op.role == "attention" else 1)
        elif param.name == "table":
            nbytes = nbytes // max(1, tensor.parts[0].rows)
        elif param.access == "workspace":
            nbytes = 0
        total += nbytes * (2 if param.access == "inout" and name not in _CACHES else 1)
    return total


def profile(model: Model, token: int, position: int | None, repeats: int) -> Profile:
    """The median time of every op over `repeats` steps at the end of the sequence."""
    place = model.length if position is None else position
    step, found = model.steps.decode, []
    for _ in range(repeats + 1):
        model._known = None
        model._place(*model._check(token, place))
        found.append(step.times(model.stream))
    model._known = None
    us = np.median(np.array(found[1:]), axis=0)
    costs = []
    for op, one in zip(step.program.ops, us, strict=True):
        nbytes = op_bytes(step.program, op, place + 1)
        costs.append(Cost(op.name, op.spec.kernel_name, float(one), nbytes, float(one / us.sum())))
    return Profile(model.device.name, place + 1, tuple(costs))
