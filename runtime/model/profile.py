"""What a step costs, op by op: time, bytes, share of the read. Owns no clock: `Step.times` measures."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.models.program import Op, Program
from ptxgen.runtime.kv.layers import within

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.stream import Stream
    from ptxgen.runtime.model.sequenced import Sequenced

COPIED = {"cuda": 256 << 20, "cpu": 16 << 20}  # bytes: more than caches hold
_CACHES = ("k_cache", "v_cache", "k_scales", "v_scales")
_ATTENDS = ("attention", "step")  # roles of ops that read a cache; others write a row of it


@dataclass(frozen=True)
class Cost:
    """An op: microseconds, its part of the step's time, the bytes that it has to move, and the share of the read: the
    time in which the device moves as many bytes when it does nothing else, over the op's."""

    op: str
    kernel: str
    us: float
    part: float
    bytes: int
    share: float


@dataclass(frozen=True)
class Profile:
    """A step of one token over `length` positions; `gbs`: what the device moves in GB/s, reading and writing a copy."""

    device: str
    length: int
    gbs: float
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
        sums = []
        for (role, kernel), of in found.items():
            us, part, nbytes = sum(c.us for c in of), sum(c.part for c in of), sum(c.bytes for c in of)
            sums.append(Cost(role, kernel, us, part, nbytes, self._share(us, nbytes)))
        return tuple(sorted(sums, key=lambda cost: -cost.us))

    def table(self) -> str:
        """Plain text, a line for what the ops of all layers do together."""
        rows = [("op", "kernel", "µs", "of the step", "MB", "of the read")]
        for one in self.by_role():
            numbers = (f"{one.us:.1f}", f"{one.part:.1%}", f"{one.bytes / 1e6:.2f}", f"{one.share:.1%}")
            rows.append((one.op, one.kernel, *numbers))
        total = sum(cost.bytes for cost in self.costs)
        numbers = (f"{self.us:.1f}", "", f"{total / 1e6:.2f}", f"{self._share(self.us, total):.1%}")
        rows.append((f"all, at {self.length}", "", *numbers))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = []
        for row in rows:
            cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _share(self, us: float, nbytes: int) -> float:
        return nbytes / (1e3 * self.gbs * us)

    def json(self) -> str:
        """Every op as a JSON object."""
        return json.dumps({**asdict(self), "us": self.us}, indent=2)

    def chrome_trace(self) -> str:
        """Events for chrome://tracing and Perfetto, one after the other."""
        events: list[dict[str, Any]] = []
        at = 0.0
        for cost in self.costs:
            events.append({"name": cost.op, "cat": cost.kernel, "ph": "X", "pid": 0, "tid": 0, "ts": at,
                           "dur": cost.us, "args": {"bytes": cost.bytes, "share": cost.share}})  # fmt: skip
            at += cost.us
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def role_of(op: str) -> str:
    """`layers.3.q_proj` → `q_proj`."""
    return op.split(".", 2)[2] if op.startswith("layers.") else op


def op_bytes(program: Program, op: Op, length: int) -> int:
    """What an op reads and writes at least: of a cache the positions that are seen, of a table the rows that are
    asked for, of all else everything."""
    total = 0
    for param, ref in op.buffers():
        tensor = program.tensors[ref.tensor]
        nbytes = param.nbytes(op.sizes)
        name = ref.tensor.rpartition(".")[2]
        if name in _CACHES:
            max_len = tensor.shape[-2]
            seen = min(length, getattr(op.spec, "window", 0) or length)
            nbytes = nbytes // max_len * (seen if op.role in _ATTENDS else 1)
        elif param.name == "table":
            nbytes = nbytes // max(1, tensor.parts[0].rows)
        elif param.access == "workspace":
            nbytes = 0
        total += nbytes * (2 if param.access == "inout" and name not in _CACHES else 1)
    return total


def profile(model: Sequenced, token: int, position: int | None, repeats: int) -> Profile:
    """The median time of every op over `repeats` steps at the end of the sequence."""
    within("Model.profile: repeats", repeats, 1, 1 << 20)
    place = model.length if position is None else position
    step, found = model.steps.decode, []
    token, place = model._check(token, place)
    # a step writes the row of its position, which in a ring is another's, too
    held = model.snapshot() if place < model.length or model.steps.rings else None
    for _ in range(repeats + 1):
        model._known = None
        model._place(token, place)
        found.append(step.times(model.stream))
    model._known = None
    if held is not None:
        changes = model._changes
        model.restore(held)
        model._changes = changes  # the sequence is what it was
    us = np.median(np.array(found[1:]), axis=0)
    gbs, costs = moved(model.device, model.stream), []
    for op, one in zip(step.program.ops, us, strict=True):
        nbytes = op_bytes(step.program, op, place + 1)
        share = nbytes / (1e3 * gbs * float(one))
        costs.append(Cost(op.name, op.spec.kernel_name, float(one), float(one / us.sum()), nbytes, share))
    return Profile(model.device.name, place + 1, gbs, tuple(costs))


def moved(device: Device, stream: Stream) -> float:
    """GB/s that a device moves when it copies its own memory: bytes read and bytes written."""
    nbytes = COPIED[device.kind]
    source, target = device.zeros(nbytes, "u8"), device.zeros(nbytes, "u8")
    times = []
    for _ in range(5):
        before = stream.record()
        target.copy_from(source, stream)
        after = stream.record()
        stream.synchronize()
        times.append(after.elapsed_us(before))
    return 2e-3 * nbytes / min(times)
