"""Where the time of a step in one launch goes: when the CTAs have come where, op by op.

    python -m benchmarks.persistent_step --model llama-3.2-1b --depth 128
    python -m benchmarks.persistent_step --model qwen2.5-1.5b --try group_parts=3,split_rows=64 --try split_rows=64

Nanoseconds after the last CTA has published the op before: median, 90 %, and last of the CTAs, on average over the
layers. `x`: what it multiplies is there; `units`: all weights are multiplied; `rows`: its rows are published; `taken`:
a head's queries, key and value are there; `rotated`, `scored`, `heads`: so far attention is.

With `--try`: microseconds of a step at some depths, as the model's graph, in one launch, and in one launch with these
fields of `PersistentStep`; `error`: the largest difference of a logit from the graph's ÷ the largest logit. Rows are
appended to `persistent_step.jsonl`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benchmarks.cases.models import MODELS, fill_cache, open_random
from benchmarks.report.rows import Run
from benchmarks.report.sentence import in_a_sentence
from benchmarks.steps.bound_step import graph_us
from benchmarks.steps.our_steps import DEPTHS, MAX_LEN, REPEATS, STEPS, at_depth
from ptxgen.builder.values import Addr
from ptxgen.dtypes import u32, u64
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
    from ptxgen.runtime.core.device import Device
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


def other(model: Model, kind: type[PersistentStep], **fields: object) -> tuple[Step, PersistentStep]:
    """The model's step as one of another kind or with other fields, over the same tensors but for what CTAs exchange,
    and times where it notes them."""
    step = model.steps.decode
    *before, op = step.program.ops
    spec = kind(**{f.name: getattr(op.spec, f.name) for f in dataclasses.fields(op.spec)} | fields)
    own = {"exchange": Tensor("exchange", u32, (spec.plan.exchange_words,), "state", zeroed=True)}
    if kind is TracedStep:
        own["times"] = Tensor("times", u64, (spec.plan.ops, spec.ctas, len(EVENTS)), "output", zeroed=True)
    made = (*before, Op(spec, {**op.tensors, **{name: Ref(name) for name in own}}, role="step"))
    used = {ref.tensor for each in made for ref in each.tensors.values()}
    kept = {name: tensor for name, tensor in (step.program.tensors | own).items() if name in used}
    return Step(model.device, Program(kept, made), {name: step._given[name] for name in kept if name not in own}), spec


def fields_of(text: str) -> dict[str, int]:
    """Fields from "name=number,name=number"."""
    return {name: int(value) for name, _, value in (each.partition("=") for each in filter(None, text.split(",")))}


def compare(
    run: Run, config: Mapping[str, Any], name: str, tries: Sequence[str], depths: Sequence[int], device: Device,
    max_len: int = MAX_LEN, steps: int = STEPS, repeats: int = REPEATS,
) -> None:  # fmt: skip
    """Rows of a model's graph and of its steps in one launch: as it is (""), and with the fields of every try."""
    from ptxgen.runtime import Model

    graph = open_random(config, "bf16", max_len, device)
    model = Model(graph.source, device, weights=graph.weights, persistent=True)
    for layer in range(model.shape.n_layers):
        fill_cache(model.cache.buffers(layer))
    made = {given: other(model, PersistentStep, **fields_of(given))[0] for given in ("", *tries)}
    all_steps = [("ptxgen", "", graph, graph.steps.decode)]
    all_steps += [("ptxgen-persistent", given, model, step) for given, step in made.items()]
    for depth in depths:
        want: np.ndarray | None = None
        for impl, given, whose, step in all_steps:
            us = graph_us(device, step.graph, functools.partial(at_depth, whose, depth), steps, repeats)
            logits = one_token(whose, step, depth)
            want = logits if want is None else want
            error = float(np.abs(logits - want).max() / np.abs(want).max())
            print(run.add({"model": name, "depth": depth, "fields": given}, impl, us=us, error=error), flush=True)


def one_token(model: Model, step: Step, depth: int) -> np.ndarray:
    """The logits of a token at a depth."""
    at_depth(model, depth)
    model.steps.tokens.copy_from(np.array([1], np.int32))
    step.graph.launch(model.device.default_stream)
    model.device.synchronize()
    return np.asarray(model.steps.logits.numpy())


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
    """Print the table, or the rows of the tries."""
    from ptxgen.runtime import open_device

    device = open_device(given.device)
    if given.tries:
        with Run("persistent_step", getattr(device, "model", None), at_once=True) as run:
            compare(run, MODELS[given.model], given.model, given.tries, DEPTHS[1], device)
        return
    model = open_random(MODELS[given.model], "bf16", MAX_LEN, device, persistent=True)
    step, spec = other(model, TracedStep)
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
    parser.add_argument("--try", dest="tries", action="append", metavar="FIELDS", help="time these fields, too")
    options = parser.parse_args()
    in_a_sentence(lambda: main(options))
