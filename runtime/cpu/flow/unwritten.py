"""Check mode: where an undefined register comes from, for the sentence of a finding."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ptxgen.runtime.cpu.flow.block_order import live_before

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.flow.blocks import Op
    from ptxgen.runtime.cpu.flow.flow_base import FlowBase
    from ptxgen.runtime.cpu.flow.symbols import Reg

_LOOKED_AT = 256  # registers that a value was computed from, for one sentence
_NAMED = 3
_NOBODY = "no instruction that these lanes executed has written"
_LOADED = "not all of the shared memory that it comes from is written"


class Unwritten:
    """Registers that threads may read before they write them, and what is computed from them."""

    def __init__(self, flow: FlowBase) -> None:
        self._unwritten = live_before(flow.first)
        self._loads = frozenset(reg.index for op in flow.droppable_loads for reg in op.writes)
        self._from: dict[int, dict[int, Reg]] = {}
        for block in flow.blocks:
            for op in block.ops:
                if op.pure:
                    for target in op.writes:
                        sources = self._from.setdefault(target.index, {})
                        sources.update((reg.index, reg) for reg in op.reads if reg is not op.guard)

    def sentence(self, reg: Reg, op: Op) -> str:
        """What to say of a register that an instruction reads and that is undefined."""
        origins, loaded = self._origins(reg)
        reasons = []
        if self._unwritten >> reg.index & 1 or not (origins or loaded):
            reasons.append(f"{_NOBODY} it")
        if origins:
            names = ", ".join(origins[:_NAMED]) + (" or others" if len(origins) > _NAMED else "")
            reasons.append(f"it was computed from {names}, which {_NOBODY}")
        if loaded:
            reasons.append(_LOADED)
        named = reg.name in re.split(r"[^\w%$.]+", op.text)  # not where moves were taken out
        return f"{'' if named else 'a copy of '}{reg.name} is read here, but {', or '.join(reasons)}"

    def _origins(self, reg: Reg) -> tuple[list[str], bool]:
        """Names of unwritten registers that it was computed from, and whether a load may have left it undefined."""
        seen, work, names, loaded = {reg.index}, [reg.index], [], reg.index in self._loads
        while work and len(seen) < _LOOKED_AT:
            for index, source in self._from.get(work.pop(), {}).items():
                if index in seen:
                    continue
                seen.add(index)
                work.append(index)
                loaded = loaded or index in self._loads
                if self._unwritten >> index & 1:
                    names.append(source.name)
        return list(dict.fromkeys(names)), loaded
