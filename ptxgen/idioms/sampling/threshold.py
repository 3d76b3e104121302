"""The largest threshold t with Σ weight over the elements whose coordinate is at least t reaching a goal.

The search fixes two bits of t a step: each step goes over the row and sums the weights at four thresholds. Weights are
integers, so the sums, and with them t, depend neither on the order of threads nor on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg
from ptxgen.idioms.reduce import Reduction, over_cta

BITS = 2
WAYS = 1 << BITS


@dataclass(frozen=True)
class Search:
    """What a template's search places: `start`; then a loop of steps (`again`), each of `begin`, passes over the row of
    `measure` (`more`), the reduction `sums` and `choose`; then `finish`. `found` is the threshold."""

    start: Fragment
    begin: Fragment
    measure: Fragment
    sums: Reduction
    choose: Fragment
    finish: Fragment
    again: Reg
    more: Reg | None
    found: Reg


class _Trial:
    """The registers of a search named `name` over `bits` bits: four thresholds a step, and the sums at each."""

    def __init__(self, b: Builder, name: str, bits: int) -> None:
        self.b, self.name = b, name
        self.sums, self.tries = b.array(f"{name}_sum", "u64", WAYS), b.array(f"{name}_try", "u32", WAYS)
        self.step, self.aim = b.reg(f"{name}_step", "u32"), b.reg(f"{name}_goal", "u64")
        self.first, self.reached = b.reg(f"{name}_first", "pred"), b.reg(f"{name}_reached", "pred")
        self.wide = b.reg(f"{name}_wide", "u64")
        self.found = b.reg(f"{name}_found", "u32")
        self.top = 1 << (-(-bits // BITS) - 1) * BITS

    def start(self) -> None:
        """Nothing is found yet; the first step is the highest two bits."""
        b = self.b
        b.op("mov.u32", self.found, 0)
        b.op("mov.u32", self.step, self.top)
        b.op("mov.u64", self.aim, 0)

    def clear(self) -> None:
        """The thresholds of a step, and sums of zero."""
        b = self.b
        for way in range(WAYS):
            b.op("mov.u64", self.sums[way], 0)
            if way:
                b.op("add.u32", self.tries[way], self.tries[way - 1], self.step)
            else:
                b.op("mov.u32", self.tries[0], self.found)

    def take(self, coordinate: Reg, weight: Reg | int, valid: Reg | None) -> None:
        """Add the weight of an element to the sums of the thresholds that it reaches."""
        b = self.b
        more = b.op("cvt.u64.u32", self.wide, weight) if isinstance(weight, Reg) else weight
        for sum, at in zip(self.sums, self.tries, strict=True):
            if valid is None:
                b.op("setp.ge.u32", self.reached, coordinate, at)
            else:
                b.op("setp.ge.and.u32", self.reached, coordinate, at, valid)
            b.op("add.u64", sum, sum, more, pred=self.reached)

    def choose(self, goal: Callable[[Reg, Reg], None], separates: bool) -> Reg:
        """Keep the largest threshold whose sum reaches the goal; whether there is a further step."""
        b, wide, aim = self.b, self.wide, self.aim
        b.note("the first step's first sum is that of all elements")
        b.op("setp.eq.u32", self.first, self.step, self.top)
        b.op("mov.u64", wide, aim)
        goal(aim, self.sums[0])
        b.op("selp.b64", aim, aim, wide, self.first)
        b.op("mov.u64", wide, self.sums[0])
        for sum in self.sums[1:]:
            b.op("setp.ge.u64", self.reached, sum, aim)
            b.op("add.u32", self.found, self.found, self.step, pred=self.reached)
            b.op("mov.u64", wide, sum, pred=self.reached)
        b.op("shr.u32", self.step, self.step, BITS)
        again: Reg = b.op("setp.ne.u32", f"{self.name}_again", self.step, 0)
        if separates:
            b.op("setp.ne.and.u64", again, wide, aim, again)
        return again


def search(
    b: Builder,
    name: str,
    bits: int,
    begin: Callable[[], None],
    measure: Callable[[Callable[[Reg, Reg | int, Reg | None], None]], None],
    advance: Callable[[str], Reg | None],
    goal: Callable[[Reg, Reg], None],
    finish: Callable[[Reg], None],
    thread: Reg,
    warps: int,
    cluster: int,
    separates: bool = False,
) -> Search:
    """A search over coordinates of `bits` bits; the template knows it as `<name>`.

    `begin()` goes before the first pass over the row; `measure(take)` looks at a pass's elements and calls
    `take(coordinate, weight, valid)` for each (u32; the weight may be a number; `valid` a predicate or None);
    `advance(again)` goes to the next pass. `goal(into, total)` sets the u64 goal from the sum of all weights;
    `finish(found)` uses the threshold. `separates`: any threshold will do that has the same elements of weight above 0
    on its side, so the search ends as soon as their sum is the goal itself.
    """
    trial = _Trial(b, name, bits)
    with b.fragment(f"{name}_start") as start:
        trial.start()
    with b.fragment(f"{name}_begin", "clear the sums; the values to try; the row's start") as opening:
        trial.clear()
        begin()
    with b.fragment(f"{name}_measure", "sums of a pass, one for each value tried") as measuring:
        measure(trial.take)
        more = advance(f"{name}_more")
    sums = over_cta(b, f"{name}_sums", "add.u64", list(trial.sums), thread, warps, cluster=cluster, repeats=True)
    with b.fragment(f"{name}_choose") as choosing:
        again = trial.choose(goal, separates)
    with b.fragment(f"{name}_finish") as closing:
        finish(trial.found)
    made = Search(start, opening, measuring, sums, choosing, closing, again, more, trial.found)
    b.expose(**{name: made})
    return made
