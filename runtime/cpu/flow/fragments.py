"""The registers that hold a of a wgmma, which are its own until the product is waited for."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.flow.blocks import Op
from ptxgen.runtime.cpu.flow.symbols import Reg

PRODUCT = ("wgmma", "mma_async")


def fragments(op: Op) -> list[Reg]:
    """The registers of a, where the instruction is a wgmma that has it in registers."""
    if op.words[:2] != PRODUCT or not isinstance(op.operands[1], nodes.Vector):
        return []
    items = op.operands[1].items
    found = [item if isinstance(item, Reg) else op.scope.find(getattr(item, "name", "")) for item in items]
    return [reg for reg in found if isinstance(reg, Reg)]
