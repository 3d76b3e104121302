"""Copies and constants of a flow, put where they are used. Compilers' PTX is full of both; fewer registers live on.

Only a register that one unguarded `mov` writes, and that no path reads before, is replaced: then its value is the
source's wherever it is read. Fragments of a wgmma are not: it reads them later than where it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen import nodes
from ptxgen.runtime.cpu.flow.fragments import fragments
from ptxgen.runtime.cpu.flow.symbols import Reg, Var

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.flow.blocks import Op, Source
    from ptxgen.runtime.cpu.flow.flow_base import FlowBase

_PREFIX = {32: "0f", 64: "0d"}  # float literals that have the register's own bits


def simplify(flow: FlowBase) -> bool:
    """Replace and drop such moves; True if there were any: then reads have changed, and so has liveness."""
    writers: dict[int, int] = {}
    for block in flow.blocks:
        for op in block.ops:
            for reg in op.writes:
                writers[reg.index] = writers.get(reg.index, 0) + 1
    held = {reg.index for block in flow.blocks for op in block.ops for reg in fragments(op)}
    values: dict[int, Source] = {}
    for block in flow.blocks:
        for op in block.ops:
            value = _copied(flow, op, writers)
            if value is not None and op.writes[0].index not in held:
                values[op.writes[0].index] = value
    if not values:
        return False
    final = {index: _resolved(values, index) for index in list(values)}
    for block in flow.blocks:
        block.ops = [op for op in block.ops if not (_is_move(op) and op.writes[0].index in final)]
        for op in block.ops:
            _replace(flow, op, final)
    return True


def _is_move(op: Op) -> bool:
    return op.words[0] in ("mov", "$move") and op.guard is None and len(op.writes) == 1


def _copied(flow: FlowBase, op: Op, writers: dict[int, int]) -> Source | None:
    """What a move's destination always equals, if that can stand in its place."""
    if not _is_move(op) or isinstance(op.operands[0], nodes.Vector):
        return None
    target, source = op.writes[0], op.operands[1]
    if writers[target.index] != 1 or flow.loose >> target.index & 1 or target.bits == 1:
        return None
    if isinstance(source, nodes.Immediate):
        fits = not source.is_float or source.text.lower().lstrip("-").startswith(_PREFIX.get(target.bits, "?"))
        return source if fits else None
    if isinstance(source, nodes.Symbol):
        found = op.scope.find(source.name)
        near = isinstance(found, Var) and found.space in ("shared", "local") and target.bits in (32, 64)
        return nodes.Immediate(str(found.offset + source.offset)) if near else None  # type: ignore[union-attr]
    reg = source if isinstance(source, Reg) else None
    if isinstance(source, nodes.Register):
        named = op.scope.find(source.name)
        reg = named if isinstance(named, Reg) else None
    if reg is None or reg.bits != target.bits or writers.get(reg.index) != 1 or flow.loose >> reg.index & 1:
        return None
    return reg


def _resolved(values: dict[int, Source], index: int) -> Source:
    """What the register's value comes from at last; every step on the way there leads there from now on."""
    value, steps = values[index], [index]
    while isinstance(value, Reg) and value.index in values:
        steps.append(value.index)
        value = values[value.index]
    values.update(dict.fromkeys(steps, value))
    return value


def _replace(flow: FlowBase, op: Op, values: dict[int, Source]) -> None:
    """Rewrite an instruction's sources."""
    if not any(reg.index in values for reg in op.reads):
        return
    assert op.family is not None
    operands = list(op.operands)
    for position, operand in enumerate(operands):
        if position not in op.family.inout:
            operands[position] = _source(op, operand, values, written=position < op.family.outputs)
    op.operands = tuple(operands)
    flow.reread(op)


def _source(op: Op, operand: Source, values: dict[int, Source], written: bool) -> Source:
    if isinstance(operand, nodes.Address):
        base = operand.base
        new = _value(op, base, values) if isinstance(base, nodes.Register | Reg) else base
        coordinates = operand.coordinates
        if coordinates is not None:
            coordinates = nodes.Vector(tuple(_source(op, c, values, False) for c in coordinates.items))  # type: ignore[misc]
        return nodes.Address(new, operand.offset, coordinates)  # type: ignore[arg-type]
    if written:
        return operand
    if isinstance(operand, nodes.Register | Reg):
        return _value(op, operand, values)
    if isinstance(operand, nodes.Vector):
        return nodes.Vector(tuple(_source(op, item, values, False) for item in operand.items))  # type: ignore[misc]
    return operand


def _value(op: Op, operand: nodes.Register | Reg, values: dict[int, Source]) -> Source:
    reg = operand if isinstance(operand, Reg) else op.scope.find(operand.name)
    return values.get(reg.index, operand) if isinstance(reg, Reg) else operand
