"""Shared memory that the system reserves (`%reserved_smem_offset_…`), as a variable of the module that begins as zeros.

Cooperative groups of several warps meet there from sm_80 on: they expect 288 bytes, and no bit set.
"""

from __future__ import annotations

import operator
from dataclasses import replace

from ptxgen.foreign.fresh import statements
from ptxgen.nodes import Function, Instruction, Module, Operand, Register, Scope, Statement, Symbol, Variable

BYTES = 1024
RESERVED = "$reserved_smem"
_AT = {"begin": 0, "0": 0, "1": BYTES // 2, "cap": BYTES, "end": BYTES}
_STEM = "%reserved_smem_offset_"
_PLACES = {f"{_STEM}{name}": Symbol(RESERVED, offset) for name, offset in _AT.items()}
_CLEAR = """{
  .reg .pred %first; .reg .b32 %x, %y, %z;
  mov.u32 %x, %tid.x;
  mov.u32 %y, %tid.y;
  mov.u32 %z, %tid.z;
  or.b32 %x, %x, %y;
  or.b32 %x, %x, %z;
  setp.eq.u32 %first, %x, 0;
  mov.u32 %z, 0;
""" + "\n".join(
    f"  @%first st.shared.v4.b32 [{RESERVED}+{place}], {{%z, %z, %z, %z}};" for place in range(0, BYTES, 16)
) + "\n  bar.sync 0;\n}"  # fmt: skip


def with_reserved(module: Module) -> Module:
    """The module with that variable where it reads one of these registers, in the entries that may."""
    if module.source and _STEM not in module.source:
        return module
    items = tuple(_named(item) if isinstance(item, Function) else item for item in module.items)
    readers = [
        new for new, old in zip(items, module.items, strict=True) if new is not old and isinstance(new, Function)
    ]
    if not readers:
        return module
    called = any(reader.kind != "entry" for reader in readers)
    reserved = Variable("shared", "b8", RESERVED, (BYTES,), align=128, line=readers[0].line)
    cleared = (
        _cleared(item) if isinstance(item, Function) and item.kind == "entry" and (called or item in readers) else item
        for item in items
    )
    return replace(module, items=(reserved, *cleared))


def _named(function: Function) -> Function:
    """The function with symbols in the place of these registers; the same one where it reads none."""
    old = function.body or ()
    body = tuple(map(_statement, old))
    return replace(function, body=body) if any(map(operator.is_not, body, old)) else function


def _statement(item: Statement) -> Statement:
    if isinstance(item, Scope):
        inner = tuple(map(_statement, item.items))
        return Scope(inner, item.line) if any(map(operator.is_not, inner, item.items)) else item
    if isinstance(item, Instruction) and any(map(_place, item.operands)):
        return replace(item, operands=tuple(_place(each) or each for each in item.operands))
    return item


def _place(operand: Operand) -> Symbol | None:
    return _PLACES.get(operand.name) if isinstance(operand, Register) else None


def _cleared(function: Function) -> Function:
    return replace(function, body=(*statements(_CLEAR, function.line), *(function.body or ())))
