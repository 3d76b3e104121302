"""Where the time of a step in one launch goes: when the CTAs have come where, op by op.

    python -m benchmarks.persistent_step --model llama-3.2-1b --depth 128

Nanoseconds after the last CTA has published the op before: median, 90 %, and last of the CTAs, on average over the
layers. `x`: what it multiplies is there; `units`: all weights are multiplied; `rows`: its rows are published; `taken`:
a head's queries, key and value are there; `rotated`, `scored`, `heads`: so far attention is.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benchmarks.cases.models import MODELS, open_random
from benchmarks.decode_step import MAX_LEN, at_depth
from ptxgen.builder.values import Addr
from ptxgen.dtypes import u64
from ptxgen.kernel import kernel_type
from ptxgen.kernels.persistent_step import EVENTS, PersistentStep
from ptxgen.launch import Param, buffer
from ptxgen.models.program import Op, Program, Ref, Tensor
from ptxgen.runtime.core.step import Step

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.persistent.begin import Begin
    from ptxgen.persistent.steps import Steps
    from ptxgen.runtime import Model
    from ptxgen.targets import Target

ROWS = (("qkv", 0, ("x", "units", "rows")), ("attention", 0, ("taken", "rotated", "scored", "heads")),
        ("o", 1, ("x", "units", "rows")), ("gate_up", 2, ("x", "units", "rows")),
        ("down", 3, ("x", "units", "rows")))  # fmt: skip


@kernel_type
class TracedStep(PersistentStep):
    """A step that notes the time of every event of every op and CTA: times u64 `[ops, ctas, events]`."""

    goldens: ClassVar[tuple[Mapping[str, object], ...]] = ()

    def template(self, target: Target) -> str:
        return "persistent_step"

    def params(self) -> tuple[Param, ...]:
        return (*super().params(), buffer("times", u64, self.plan.ops, self.ctas, len(EVENTS), access="out"))

    def mark(self, b: Builder, begin: Begin, steps: Steps) -> None:
        place, index, now = b.reg("time_at", "u64"), b.reg("time_index", "u32"), b.reg("time_now", "u64")
        times = b.reg("times", "u64")
        for number, event in enumerate(EVENTS):
            with b.fragment(f"mark_{event}", event):
                b.op("ld.param.u64", times, Addr("times_param"))  # in each: no fragment comes first for all CTAs
                b.op("cvta.to.global.u64", times, times)
                b.op("mov.u64", now, b.special("globaltimer"))
                b.op("mad.lo.u32", index, steps.done, self.ctas, begin.cta)
                b.op("min.u32", index, index, self.plan.ops * self.ctas)
                b.op("mad.wide.u32", place, index, 8 * len(EVENTS), times)
                b.op("st.global.u64", place[8 * number], now, pred=begin.leads)


def traced(model: Model) -> tuple[Step, TracedStep]:
    """The model's step with its times."""
    step = model.steps.decode
    op = step.program.ops[-1]
    spec = TracedStep(**{f.name: getattr(op.spec, f.name) for f in dataclasses.fields(op.spec)})
    times = Tensor("times", u64, (spec.plan.ops, spec.ctas, len(EVENTS)), "output", zeroed=True)
    made = Op(spec, {**op.tensors, "times": Ref("times")}, role="step")
    tensors = {ref.tensor for ref in made.tensors.values()}
    kept = {name: tensor for name, tensor in (step.program.tensors | {"times": times}).items() if name in tensors}
    given = {name: step._given[name] for name in kept if name != "times"}
    return Step(model.device, Program(kept, (made,)), given), spec


def table(times: np.ndarray, n_layers: int) -> str:
    """The table of times `[ops, ctas, events]`, 0 for none."""
    at = np.where(times == 0, np.nan, times.astype(np.float64))
    event = {name: number for number, name in enumerate(EVENTS)}
    layers = range(2, n_layers - 1) if n_layers > 3 else range(1, n_layers)

    def last(layer: int, part: int, name: str = "rows") -> float:
        return float(np.nanmax(at[4 * layer + part, :, event[name]]))

    lines = ["| op | " + " | ".join(("", "", "", "")) + " |", "| --- | --- | --- | --- | --- |"]
    for name, part, events in ROWS:
        cells = []
        for which in events:
            found = []
            for layer in layers:
                before = last(layer, 0) if name == "attention" else last(layer, 0, "heads") if part == 1 else (
                    last(layer, part - 1) if part else last(layer - 1, 3))  # fmt: skip
                own = at[4 * layer + part, :, event[which]] - before
                found.append((np.nanmedian(own), np.nanpercentile(own, 90), np.nanmax(own)))
            cells.append(f"{which} " + " ".join(f"{value:.0f}" for value in np.mean(found, 0)))
        lines.append(f"| {name} | " + " | ".join((cells + [""] * 4)[:4]) + " |")
    mean = np.mean([last(each, 3) - last(each - 1, 3) for each in layers])
    head = last(n_layers, 0) - last(n_layers - 1, 3)
    lines.append(f"\na layer {mean:.0f} ns, the head {head:.0f}, all {np.nanmax(at) - np.nanmin(at):.0f}")
    return "\n".join(lines)


def main(given: argparse.Namespace) -> None:
    """Print the table."""
    from ptxgen.runtime import open_device

    device = open_device(given.device)
    model = open_random(MODELS[given.model], "bf16", MAX_LEN, device, persistent=True)
    step, spec = traced(model)
    stream: Any = model.stream
    for _ in range(3):
        at_depth(model, given.depth)
        step.launch(stream)
        stream.synchronize()
    times = step._given["times"]
    assert hasattr(times, "numpy")
    print(table(times.numpy(), spec.n_layers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.2-1b", choices=sorted(MODELS))
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    main(parser.parse_args())
