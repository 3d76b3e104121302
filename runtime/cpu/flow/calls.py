"""Calls of a flow as moves and jumps: arguments into the callee's parameters, a return site, results back.

A function that is called is built once, whatever the number of its calls. An indirect call goes to every function whose
address the module takes and that fits, each for the lanes whose pointer names it. Functions have no frames on a stack;
a call that may lead back to its caller keeps the caller's registers meanwhile (`recursion.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.flow.recursion import keep
from ptxgen.runtime.cpu.flow.registry import family_of
from ptxgen.runtime.cpu.flow.symbols import Reg, Scope, Var

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.flow.blocks import Called, Op, Source
    from ptxgen.runtime.cpu.flow.flow_base import FlowBase

Key = tuple[int, str]
PRINTING = "vprintf"  # (format, arguments) -> how many
ASSERTION = "__assertfail"  # what CUDA's assert() calls: (message, file, line, function, bytes of a character)
FUNCTION_WINDOW = 3 << 56  # a function's address: this, or its number; no memory has these bits


def function_address(module: nodes.Module, name: str) -> int | None:
    """What `mov.u64 %d, name` gives for a function; None where there is no such function with a body."""
    function = module.functions.get(name)
    if function is None or function.body is None:
        return None
    return FUNCTION_WINDOW | 16 * module.number_of(name)


def call(flow: FlowBase, op: Op, caller: Called) -> Iterator[Op | Key]:
    """The instructions of one call."""
    parts = list(op.operands)
    returns = _items(parts.pop(0)) if isinstance(parts[0], nodes.Group) else ()
    target = parts.pop(0)
    arguments = _items(parts.pop(0)) if parts and isinstance(parts[0], nodes.Group) else ()
    given, taken = ([_place(a, op) for a in each] for each in (arguments, returns))
    callees: list[tuple[Called, Reg | None]]
    if isinstance(target, nodes.Symbol):
        function = flow.module.functions.get(target.name)
        if target.name == ASSERTION and len(given) == 5 and (function is None or function.body is None):
            yield _failed_assertion(flow, op, given)
            return
        if target.name == PRINTING and len(given) == 2 and (function is None or function.body is None):
            yield _printed(flow, op, given, taken)
            return
        if function is None or function.body is None:
            raise IsaError(flow.where(op.line, f"a call of {target}, which has no body in this module,"))
        callees = [(_callee(flow, function, caller, op), None)]
    else:
        callees = _candidates(flow, op, caller, target, parts, given, taken)
        yield from (_compared(flow, op, target, callee, lanes) for callee, lanes in callees if lanes is not None)
    back = flow.fresh_key()
    outermost = [begun for callee, _ in callees if (begun := _leads_back(callee)) is not None]
    frame = keep(flow, op, [callee for callee, _ in callees]) if outermost else None
    for begun in outermost:  # it leads to `caller`, which leads here
        if caller.back is None or begun.order < caller.back.order:
            caller.back = begun
    if frame is not None:
        yield frame.push
    for callee, lanes in callees:
        callee.sites.append(back)
        yield from _moves(flow, op, callee.params, given, lanes)
    yield _jump(op, callees)
    yield back
    if frame is not None:
        yield frame.pop
    for callee, lanes in callees:
        yield from _moves(flow, op, taken, callee.returns, lanes)


def _failed_assertion(flow: FlowBase, op: Op, given: list[Source | Var]) -> Op:
    """A trap that keeps the addresses of message and file, low and high word, and the line."""
    words = [w for place in given[:3] for w in (place.words if isinstance(place, Var) else [place])]
    if len(words) != 5:
        raise IsaError(flow.where(op.line, f"a call of {ASSERTION} with other arguments than assert() passes"))
    failed = op.with_words(("$assertfail",), tuple(words))
    for word in words:
        flow.touch(failed, word, failed.reads)
    return failed


def _printed(flow: FlowBase, op: Op, given: list[Source | Var], taken: list[Source | Var]) -> Op:
    """An instruction with the result, and the addresses of format and arguments, low and high word."""
    words = [w for place in given for w in (place.words if isinstance(place, Var) else [place])]
    results = [w for place in taken for w in (place.words if isinstance(place, Var) else [place])]
    if len(words) != 4 or len(results) > 1:
        raise IsaError(flow.where(op.line, f"a call of {PRINTING} with other arguments than printf() passes"))
    printed = op.with_words(("$printf",), (*(results or [flow.hidden("$printed", 32)]), *words))
    flow.touch(printed, printed.operands[0], printed.writes)
    for word in words:
        flow.touch(printed, word, printed.reads)
    return printed


def _items(operand: Source) -> tuple[nodes.Operand, ...]:
    return operand.items if isinstance(operand, nodes.Group) else ()


def _place(operand: Source, op: Op) -> Source | Var:
    if isinstance(operand, nodes.Register | nodes.Symbol):
        found = op.scope.find(operand.name)
        if isinstance(found, Reg | Var):
            return found
    return operand


def _candidates(
    flow: FlowBase, op: Op, caller: Called, target: Source, rest: list[Source], given: list[Source | Var],
    taken: list[Source | Var],
) -> list[tuple[Called, Reg | None]]:  # fmt: skip
    """The functions that a pointer may name, each with a hidden predicate for the lanes whose pointer does."""
    found: list[tuple[Called, Reg | None]] = []
    shape = ([_size(x) for x in given], [_size(x) for x in taken])
    for function in flow.address_taken:
        called = _callee(flow, function, caller, op) if _shape(function) == shape else None
        if called is not None:
            found.append((called, flow.hidden(f"$calls {function.name}", 1)))
    if not found:
        raise IsaError(flow.where(op.line, f"a call of {target}, as no function that fits has its address taken,"))
    return found


def _size(place: Source | Var) -> int:
    if isinstance(place, Var):
        return len(place.words)
    return (place.bits + 31) // 32 if isinstance(place, Reg) else 0


def _shape(function: nodes.Function) -> tuple[list[int], list[int]]:
    from ptxgen.runtime.cpu.flow.symbols import variable_bytes

    params, returns = ([(variable_bytes(v) + 3) // 4 for v in vs] for vs in (function.params, function.returns))
    return params, returns


def address_taken(module: nodes.Module) -> list[nodes.Function]:
    """The functions that stand as an operand of something other than a call, or in an initialiser."""
    named: set[str] = set()
    for item in module.items:
        if isinstance(item, nodes.Variable):
            named.update(i.name for i in item.init or () if isinstance(i, nodes.Symbol))
        elif isinstance(item, nodes.Function):
            for instruction in nodes.instructions(item.body or ()):
                if not instruction.opcode.startswith("call"):
                    named.update(o.name for o in instruction.operands if isinstance(o, nodes.Symbol))
    return [f for f in module.functions.values() if f.kind == "func" and f.body is not None and f.name in named]


def _compared(flow: FlowBase, op: Op, target: Source, callee: Called, lanes: Reg) -> Op:
    """`lanes` = the pointer names this function."""
    address = function_address(flow.module, callee.function.name)
    compare = op.with_words(("setp", "eq", "u64"), (lanes, target, nodes.Immediate(str(address))))
    flow.touch(compare, lanes, compare.writes)
    flow.touch(compare, target, compare.reads)
    return compare


def _jump(op: Op, callees: list[tuple[Called, Reg | None]]) -> Op:
    """Into the callee, or each lane into its own; the callees' return sites are noted."""
    sites = tuple(callee.site for callee, _ in callees)
    numbers = tuple(str(len(callee.sites) - 1) for callee, _ in callees)
    lanes = tuple(reg for _, reg in callees if reg is not None)
    go = op.with_words(("$go", *numbers), (*sites, *lanes))
    go.targets = tuple(callee.first for callee, _ in callees)
    go.writes, go.reads = list(sites), list(lanes)
    return go


def _moves(
    flow: FlowBase, op: Op, to: Iterable[Source | Var], from_: Iterable[Source | Var], lanes: Reg | None
) -> Iterator[Op]:
    """Word by word, for the lanes that make this call."""
    to, from_ = list(to), list(from_)
    if len(to) != len(from_):
        said = f"a call must give what the function declares: {len(to):,} values (got {len(from_):,})"
        raise IsaError(flow.module.refusal(op.line, said))
    for target, source in zip(to, from_, strict=True):
        targets: list[Source] = list(target.words) if isinstance(target, Var) else [target]
        sources: list[Source] = list(source.words) if isinstance(source, Var) else [source]
        for t, s in zip(targets, sources, strict=True):
            move = op.with_words(("$move",), (t, s))
            move.guard = lanes
            if lanes is not None:
                move.reads.append(lanes)
            flow.touch(move, t, move.writes)
            flow.touch(move, s, move.reads)
            yield move


def _callee(flow: FlowBase, function: nodes.Function, caller: Called, op: Op) -> Called:
    caller.calls.add(function.name)
    called = flow.functions.get(function.name)
    if called is None:
        scope = Scope(flow.globals, flow.next_scope())
        for variable in (*function.params, *function.returns):
            flow.declare(variable, scope)
        params, returns = ([scope.names[v.name] for v in vs] for vs in (function.params, function.returns))
        try:
            called = flow.add_function(function, params, returns, scope)  # type: ignore[arg-type]
            called.complete = True
        except RecursionError:  # Python's own stack is full: a frame above has room for the error
            raise IsaError(flow.where(op.line, f"a call of {function.name}, in a chain of calls this long,")) from None
    return called


def _leads_back(called: Called) -> Called | None:
    """The first of the functions that are being built to which calls lead from this one, or None. All of those lead on
    to whatever is being built behind them."""
    seen = []
    while called.complete:
        seen.append(called)
        if called.back is None or called.back is called:
            return None
        called = called.back
    for each in seen:
        each.back = called
    return called


__all__ = ["call", "family_of", "function_address"]
