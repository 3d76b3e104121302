"""Recursion: a call that may lead back to its caller keeps the registers that the caller still needs, in local memory.

Registers are the same in every activation of a function, so what lives behind such a call is pushed before it and
popped after it, but for the results. Local variables have one place too, so a function with some is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.flow.symbols import Reg, Var, round_up

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.flow.blocks import Block, Called, Op
    from ptxgen.runtime.cpu.flow.flow import Flow

STACK_BYTES = 32 << 10  # of a lane


@dataclass(slots=True, eq=False)
class Frame:
    """What one call pushes and pops; `results` are the registers that the callees return in."""

    push: Op
    pop: Op
    results: frozenset[int]


def keep(flow: Flow, op: Op, caller: Called, callees: list[Called]) -> Frame:
    """The two instructions around a call, to be filled in when it is known what lives behind it."""
    name = caller.function.name
    local = [item for item in nodes.flat(caller.function.body or ()) if isinstance(item, nodes.Variable)]
    if any(item.space == "local" for item in local):
        raise IsaError(flow.where(op.line, f"recursion through {name}, which has variables in local memory,"))
    returned = [place for callee in callees for place in callee.returns]
    words = [word for place in returned for word in (place.words if isinstance(place, Var) else [place])]
    frame = Frame(op.with_words(("$push",), ()), op.with_words(("$pop",), ()), frozenset(word.index for word in words))
    flow.frames.append(frame)
    return frame


def fill_in(flow: Flow) -> None:
    """Say what each frame holds, once `live_out` is known, and give the stack its place."""
    pointer = flow.hidden("$stack", 32)
    flow.stack_base = round_up(flow.local_bytes, 16)
    flow.local_bytes = flow.stack_base + STACK_BYTES
    live: dict[int, list[Reg]] = {}
    for block in flow.blocks:
        _look(flow, block, live)
    for frame in flow.frames:
        kept = [reg for reg in live.get(id(frame.pop), []) if reg.index not in frame.results]
        for op in (frame.push, frame.pop):
            op.operands = (pointer, *kept)
        frame.push.reads, frame.push.writes = [pointer, *kept], [pointer]
        frame.pop.reads, frame.pop.writes = [pointer], [pointer, *kept]
    first = flow.first
    start = first.ops[0].with_words(("$move",), (pointer, nodes.Immediate("0")))
    start.writes = [pointer]
    first.ops.insert(0, start)


def _look(flow: Flow, block: Block, live: dict[int, list[Reg]]) -> None:
    """The registers that live behind each `$pop` of a block."""
    now = block.live_out
    for op in reversed(block.ops):
        if op.words[0] == "$pop":
            live[id(op)] = [reg for reg in flow.registers if now >> reg.index & 1]
        if op.guard is None:
            for reg in op.writes:
                now &= ~(1 << reg.index)
        for reg in op.reads:
            now |= 1 << reg.index
