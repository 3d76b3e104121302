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
    sums = b.array(f"{name}_sum", "u64", WAYS)
    tries = b.array(f"{name}_try", "u32", WAYS)
    step, aim = b.reg(f"{name}_step", "u32"), b.reg(f"{name}_goal", "u64")
    first, reached = b.reg(f"{name}_first", "pred"), b.reg(f"{name}_reached", "pred")
    wide = b.reg(f"{name}_wide", "u64")
    found = b.reg(f"{name}_found", "u32")
    top = 1 << (-(-bits // BITS) - 1) * BITS

    def take(coordinate: Reg, weight: Reg | int, valid: Reg | None) -> None:
        more = weight
        if isinstance(weight, Reg):
            more = b.op("cvt.u64.u32", wide, weight)
        for sum, at in zip(sums, tries, strict=True):
            if valid is None:
                b.op("setp.ge.u32", reached, coordinate, at)
            else:
                b.op("setp.ge.and.u32", reached, coordinate, at, valid)
            b.op("add.u64", sum, sum, more, pred=reached)

    with b.fragment(f"{name}_start") as start:
        b.op("mov.u32", found, 0)
        b.op("mov.u32", step, top)
        b.op("mov.u64", aim, 0)
    with b.fragment(f"{name}_begin", "clear the sums; the values to try; the row's start") as opening:
        for way in range(WAYS):
            b.op("mov.u64", sums[way], 0)
            if way:
                b.op("add.u32", tries[way], tries[way - 1], step)
            else:
                b.op("mov.u32", tries[0], found)
        begin()
    with b.fragment(f"{name}_measure", "sums of a pass, one for each value tried") as measuring:
        measure(take)
        more = advance(f"{name}_more")
    reduction = over_cta(b, f"{name}_sums", "add.u64", list(sums), thread, warps, cluster=cluster, repeats=True)
    with b.fragment(f"{name}_choose") as choose:
        b.note("the first step's first sum is that of all elements")
        b.op("setp.eq.u32", first, step, top)
        b.op("mov.u64", wide, aim)
        goal(aim, sums[0])
        b.op("selp.b64", aim, aim, wide, first)
        b.op("mov.u64", wide, sums[0])
        for sum in sums[1:]:
            b.op("setp.ge.u64", reached, sum, aim)
            b.op("add.u32", found, found, step, pred=reached)
            b.op("mov.u64", wide, sum, pred=reached)
        b.op("shr.u32", step, step, BITS)
        again = b.op("setp.ne.u32", f"{name}_again", step, 0)
        if separates:
            b.op("setp.ne.and.u64", again, wide, aim, again)
    with b.fragment(f"{name}_finish") as closing:
        finish(found)
    made = Search(start, opening, measuring, reduction, choose, closing, again, more, found)
    b.expose(**{name: made})
    return made
