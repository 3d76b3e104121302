"""What a flow has while it is built, and what the passes over it ask: functions, frames, blocks, what is live."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ptxgen import nodes
from ptxgen.runtime.cpu.flow.blocks import Block, Called, Frame, Op
from ptxgen.runtime.cpu.flow.names import Names
from ptxgen.runtime.cpu.flow.symbols import Reg, Scope, Var


class FlowBase(Names, ABC):
    """The state of a `Flow`, which fills it in.

    `loose`: registers that some path may leave unwritten, as a bit set of their indices.
    """

    blocks: list[Block]
    loose: int
    droppable_loads: frozenset[Op]

    def __init__(self, module: nodes.Module, entry: nodes.Function) -> None:
        super().__init__(module, entry)
        self.functions: dict[str, Called] = {}
        self.frames: list[Frame] = []  # of calls that may lead back to their caller
        self.stack_base = 0
        self._stack: Reg | None = None

    @property
    def stack(self) -> Reg:
        """Where the stack ends, counted from `stack_base`: made when something is put there."""
        if self._stack is None:
            self._stack = self.hidden("$stack", 32)
        return self._stack

    @property
    def first(self) -> Block:
        """Where every thread begins."""
        return self.functions[self.entry.name].blocks[0]

    @property
    @abstractmethod
    def address_taken(self) -> list[nodes.Function]:
        """The functions that a pointer may name."""

    @property
    @abstractmethod
    def recursive(self) -> frozenset[str]:
        """Names of the functions that may call themselves."""

    @abstractmethod
    def add_function(
        self, function: nodes.Function, params: list[Reg | Var], returns: list[Reg | Var], scope: Scope
    ) -> Called:
        """Build a called function's blocks."""
