"""The stack of each thread, in local memory: what recursion keeps there, and `alloca`.

Registers are the same in every activation of a function, so what lives behind a call that may lead back to its caller
is pushed before it and popped after it, but for the results. A function that may call itself has its local variables on
the stack, too, as has one with `alloca` what that gives; both end with the function.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ptxgen import nodes
from ptxgen.runtime.cpu.flow.block_order import components
from ptxgen.runtime.cpu.flow.blocks import Activation, Frame, Op
from ptxgen.runtime.cpu.flow.registry import family_of
from ptxgen.runtime.cpu.flow.symbols import Reg, Var, round_up

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.flow.blocks import Block, Called
    from ptxgen.runtime.cpu.flow.flow_base import FlowBase

STACK_BYTES = 32 << 10  # of a lane
ON_THE_STACK = frozenset({"alloca", "stacksave", "stackrestore"})


def keep(flow: FlowBase, op: Op, callees: list[Called]) -> Frame:
    """The two instructions around a call, to be filled in when it is known what lives behind it."""
    returned = [place for callee in callees for place in callee.returns]
    words = [word for place in returned for word in (place.words if isinstance(place, Var) else [place])]
    frame = Frame(op.with_words(("$push",), ()), op.with_words(("$pop",), ()), frozenset(word.index for word in words))
    flow.frames.append(frame)
    return frame


def fill_in(flow: FlowBase) -> None:
    """Say what each frame holds, once `live_out` is known, and give the stack its place."""
    pointer = flow.stack
    flow.stack_base = round_up(flow.local_bytes, 16)
    flow.local_bytes = flow.stack_base + STACK_BYTES
    live: dict[int, list[Reg]] = {}
    for block in flow.blocks:
        _look(flow, block, live)
    for frame in flow.frames:
        kept = [reg for reg in live.get(id(frame.pop), []) if reg.index not in frame.results and reg is not pointer]
        for op in (frame.push, frame.pop):
            op.operands = (pointer, *kept)
        frame.push.reads, frame.push.writes = [pointer, *kept], [pointer]
        frame.pop.reads, frame.pop.writes = [pointer], [pointer, *kept]
    start = Op(("$move",), (pointer, nodes.Immediate("0")), flow.root, flow.entry.line, family_of(("$move",)))
    start.writes = [pointer]
    flow.first.ops.insert(0, start)


def activation_of(flow: FlowBase, called: Called) -> Activation | None:
    """Registers for what an activation has on the stack, if it has something there, and its parameters' places."""
    function = called.function
    if function.kind == "entry" or function.body is None:
        return None
    opcodes = {instruction.opcode.partition(".")[0] for instruction in nodes.instructions(function.body)}
    local = any(isinstance(item, nodes.Variable) and item.space == "local" for item in nodes.flat(function.body))
    params = [place for place in called.params if isinstance(place, Var)]
    named = _with_an_address(function) if params else set()
    copied = [place for place in params if place.name in named]
    if not opcodes & ON_THE_STACK and not ((local or copied) and function.name in flow.recursive):
        return None
    name = function.name
    made = Activation(flow.hidden(f"$stack before {name}", 32), flow.hidden(f"$memory of {name}", 32))
    for place in copied:
        flow.place_in(made, place)
    return made


def _with_an_address(function: nodes.Function) -> set[str]:
    """Names whose address is taken: they stand elsewhere than in calls and in brackets."""
    return {
        operand.name
        for instruction in nodes.instructions(function.body or ())
        for operand in instruction.operands
        if isinstance(operand, nodes.Symbol)
    }


def enter(flow: FlowBase, op: Op, activation: Activation) -> Op:
    """The instruction with which a function begins: it takes its memory."""
    operands = (flow.stack, activation.before, activation.begin)
    begun = op.with_words(("$enter", str(activation.size), str(activation.align)), operands)
    begun.reads, begun.writes = [flow.stack], list(operands)
    return begun


def leave(flow: FlowBase, op: Op, activation: Activation) -> Op:
    """The instruction before each return: the stack ends where it did."""
    left = op.with_words(("$move",), (flow.stack, activation.before))
    left.guard, left.negated = op.guard, op.negated
    left.reads, left.writes = [activation.before, *([op.guard] if op.guard is not None else [])], [flow.stack]
    return left


def stack_operation(flow: FlowBase, op: Op) -> Op:
    """`alloca`, `stacksave` or `stackrestore`, with the stack's end as an operand of its own."""
    done = op.with_words((f"${op.words[0]}", *op.words[1:]), (flow.stack, *op.operands))
    return done


class _Pointers:
    """All pointers to functions, as one place among the functions."""


def may_call_themselves(flow: FlowBase) -> frozenset[str]:
    """Functions from which calls lead back to them; a call through a pointer leads to all whose address is taken."""
    functions = flow.module.functions
    pointers = _Pointers()  # where calls through pointers lead, and from there to each of those functions
    edges: dict[int, list[nodes.Function | _Pointers]] = {id(pointers): list(flow.address_taken)}
    for function in functions.values():
        names = dict.fromkeys(_called_by(function))
        edges[id(function)] = [pointers if n is None else functions[n] for n in names if n is None or n in functions]
    roots: list[nodes.Function | _Pointers] = [*functions.values(), pointers]
    parts = components(roots, edges, set(edges))
    found = [part for part in parts if len(part) > 1 or any(part[0] is after for after in edges[id(part[0])])]
    return frozenset(each.name for part in found for each in part if isinstance(each, nodes.Function))


def _called_by(function: nodes.Function) -> Iterable[str | None]:
    """Names of the functions that a function calls; None for calls through pointers."""
    for instruction in nodes.instructions(function.body or ()):
        if instruction.opcode.partition(".")[0] == "call":
            operands = instruction.operands
            target = operands[1 if isinstance(operands[0], nodes.Group) else 0]
            yield target.name if isinstance(target, nodes.Symbol) else None


def _look(flow: FlowBase, block: Block, live: dict[int, list[Reg]]) -> None:
    """The registers that live behind each `$pop` of a block."""
    if not any(op.words[0] == "$pop" for op in block.ops):
        return
    now = {index for index, bit in enumerate(reversed(f"{block.live_out:b}")) if bit == "1"}
    for op in reversed(block.ops):
        if op.words[0] == "$pop":
            live[id(op)] = [flow.registers[index] for index in sorted(now)]
        if op.guard is None:
            now.difference_update(reg.index for reg in op.writes)
        now.update(reg.index for reg in op.reads)
