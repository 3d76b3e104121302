"""An entry and the functions it calls, as basic blocks of resolved instructions. Emits nothing.

Calls are not inlined: a call moves its arguments into the callee's parameters, notes its return site in a hidden
register and jumps; `ret` jumps back by that register (`calls.py`). So lanes of several call sites share the callee, and
an instruction that waits may stand anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.flow.aligned_barriers import past_barriers
from ptxgen.runtime.cpu.flow.block_order import link, liveness, number
from ptxgen.runtime.cpu.flow.blocks import Block, Called, Op, Source
from ptxgen.runtime.cpu.flow.calls import address_taken, call
from ptxgen.runtime.cpu.flow.copy_propagation import simplify
from ptxgen.runtime.cpu.flow.flow_base import FlowBase
from ptxgen.runtime.cpu.flow.names import module_variables
from ptxgen.runtime.cpu.flow.recursion import (
    ON_THE_STACK,
    activation_of,
    enter,
    fill_in,
    leave,
    may_call_themselves,
    stack_operation,
)
from ptxgen.runtime.cpu.flow.registry import family_of
from ptxgen.runtime.cpu.flow.symbols import Code, Reg, Scope, Var
from ptxgen.runtime.cpu.flow.unread_nans import only_arithmetic
from ptxgen.runtime.cpu.flow.unused_loads import droppable_loads, split_loads, unused_loads

# instructions: LLVM's time for a block grows with the square of what it holds, which in check mode is more
LONGEST_BLOCK, _LONGEST_UNCHECKED = 512, 2048


class Flow(FlowBase):
    """The blocks of an entry, ordered and with liveness; made once per entry and mode (`check`: check mode)."""

    def __init__(self, module: nodes.Module, entry: nodes.Function, check: bool = False) -> None:
        super().__init__(module, entry)
        self._begun = 0  # blocks
        self.check = check
        site = self.hidden("$return", 32)
        self.functions[entry.name] = Called(entry, [], [], site, self.fresh_key())
        self._build(self.functions[entry.name], self.root)
        self.shared_align = max([16, *(var.align for var in self.dynamic)])
        for var in self.dynamic:
            var.offset = self.dynamic_start
        self.blocks = self._ordered()

    # instructions -----------------------------------------------------------------------------------------------
    def _build(self, called: Called, scope: Scope) -> None:
        from ptxgen.parser.limits import MOST_BLOCKS  # what is in the object cache needs no parser

        body = called.function.body
        assert body is not None
        called.activation = activation_of(self, called)
        items = list(self._flatten(body, scope, called))
        if called.activation is not None:
            items.insert(0, enter(self, Op((), (), scope, called.function.line), called.activation))
        block = self._begin(called, called.first)
        for item in items:
            if isinstance(item, tuple):
                block = self._begin(called, item)
                continue
            if self._begun > MOST_BLOCKS:
                where = f"an entry of more than {MOST_BLOCKS:,} blocks, what it calls included,"
                raise IsaError(self.where(item.line, where))
            apart = item.family is not None and (item.family.converges or item.family.retries) and block.ops
            block.cut = not apart and len(block.ops) >= (LONGEST_BLOCK if self.check else _LONGEST_UNCHECKED)
            if apart or block.cut:
                block = self._begin(called, self.fresh_key())
            block.ops.append(item)
            if item.words[0] in ("bra", "brx", "ret", "exit", "$go", "$back") or (item.family and item.family.blocks):
                block = self._begin(called, self.fresh_key())
        tail = Op(("exit",) if called.function.kind == "entry" else ("ret",), (), scope, called.function.line)
        block.ops.extend(self._finish(tail, called))

    def _begin(self, called: Called, key: tuple[int, str]) -> Block:
        block = Block(key)
        self._begun += 1
        if called.blocks:
            called.blocks[-1].next = block
        called.blocks.append(block)
        return block

    def _flatten(
        self, items: Iterable[nodes.Statement], scope: Scope, called: Called
    ) -> Iterator[Op | tuple[int, str]]:
        """Instructions and label keys in order, with scopes resolved and calls and guards spelled out."""
        items = list(items)
        self._labels_of(items, scope)
        for item in items:
            if isinstance(item, nodes.Variable):
                self.declare(item, scope, called.activation)
            elif isinstance(item, nodes.Label):
                yield (scope.number, item.name)
            elif isinstance(item, nodes.Scope):
                inner = Scope(scope, self.next_scope())
                yield from self._flatten(item.items, inner, called)
            elif isinstance(item, nodes.Instruction):
                yield from self._instruction(item, scope, called)

    def _labels_of(self, items: list[nodes.Statement], scope: Scope) -> None:
        for item in items:
            if isinstance(item, nodes.Label):
                scope.names[item.name] = Code(item.name, (scope.number, item.name))
        for before, item in pairwise(items):
            if isinstance(item, nodes.Directive) and item.name == "branchtargets" and isinstance(before, nodes.Label):
                names = ",".join(word.strip() for word in item.text.rstrip(";").split(","))
                scope.names[before.name] = Code(names, (scope.number, before.name))

    def _instruction(
        self, instruction: nodes.Instruction, scope: Scope, called: Called
    ) -> Iterator[Op | tuple[int, str]]:
        words = tuple(instruction.opcode.split("."))
        op = Op(words, instruction.operands, scope, instruction.line, text=str(instruction))
        if words[0] == "call":
            yield from self._guarded(op, instruction.guard, call(self, op, called), called)
            return
        if words[0] in ON_THE_STACK:
            op = stack_operation(self, op)
        else:
            op.family = family_of(words)
        if op.family is None:
            raise IsaError(self.where(instruction.line, f"instruction {instruction.opcode}"))
        if op.family.blocks or op.family.converges or op.family.retries:
            yield from self._guarded(op, instruction.guard, self._finish(op, called), called)
            return
        if instruction.guard is not None:
            op.guard, op.negated = self._register(instruction.guard.register, op), instruction.guard.negated
        yield from self._finish(op, called)

    def _guarded(
        self, op: Op, guard: nodes.Guard | None, inner: Iterable[Op | tuple[int, str]], called: Called
    ) -> Iterator[Op | tuple[int, str]]:
        """`@p op` as a branch around `op`."""
        if guard is None:
            yield from inner
            return
        skip = self.fresh_key()
        over = Op(("bra",), (), op.scope, op.line, text=op.text)
        over.family = family_of(over.words)
        over.guard, over.negated, over.targets = self._register(guard.register, op), not guard.negated, (skip,)
        over.reads.append(over.guard)
        yield over
        yield from inner
        yield skip

    def _finish(self, op: Op, called: Called) -> Iterator[Op]:
        """Fill in what an instruction reads, writes and jumps to."""
        op.family = op.family or family_of(op.words)
        assert op.family is not None
        if op.guard is not None:
            op.reads.append(op.guard)
        if op.words[0] in ("bra", "brx"):
            self._jump(op)
        elif op.words[0] == "ret" and called.function.kind != "entry":
            if called.activation is not None:
                yield leave(self, op, called.activation)
            op.words = ("$back", called.function.name)
            op.family = family_of(op.words)
            op.reads.append(called.site)
            op.operands = (called.site,)
        else:
            self.reread(op)
            self._touch_written(op)
        yield op
        if op.family is not None and op.family.result:
            woken = Op(("wake", *op.words), op.operands, op.scope, op.line, text=op.text)
            woken.family = family_of(woken.words)
            assert woken.family is not None, op.words
            self._touch_written(woken)
            yield woken

    def _jump(self, op: Op) -> None:
        if op.targets:
            return
        if op.words[0] == "bra":
            op.targets = (self._label(op.operands[0], op).key,)
            return
        self.touch(op, op.operands[0], op.reads)
        table = self._label(op.operands[1], op)
        if table.targets is None:
            table.targets = tuple(self._label(nodes.Symbol(name), op).key for name in table.name.split(","))
        op.targets = table.targets

    def _label(self, operand: Source, op: Op) -> Code:
        found = op.scope.find(operand.name) if isinstance(operand, nodes.Symbol) else None
        if not isinstance(found, Code):
            raise IsaError(self.where(op.line, f"a branch to {operand}"))
        return found

    def add_function(
        self, function: nodes.Function, params: list[Reg | Var], returns: list[Reg | Var], scope: Scope
    ) -> Called:
        """Build a called function's blocks."""
        site = self.hidden(f"$return of {function.name}", 32)
        called = Called(function, params, returns, site, self.fresh_key(), order=len(self.functions))
        self.functions[function.name] = called
        self._build(called, scope)
        return called

    @cached_property
    def address_taken(self) -> list[nodes.Function]:
        """The functions that a pointer may name."""
        return address_taken(self.module)

    @cached_property
    def recursive(self) -> frozenset[str]:
        """Names of the functions that may call themselves."""
        return may_call_themselves(self)

    # blocks -----------------------------------------------------------------------------------------------------
    def _names(self) -> dict[int, str]:
        """Which function each block is of."""
        return {block.number: name for name, called in self.functions.items() for block in called.blocks}

    def _ordered(self) -> list[Block]:
        link(self)
        self.blocks = number(self)
        self.loose = liveness(self.blocks, len(self.registers), self.first)
        if self.frames or self._stack is not None:
            fill_in(self)
            self.loose = liveness(self.blocks, len(self.registers), self.first)
        if simplify(self):
            self.loose = liveness(self.blocks, len(self.registers), self.first)
        self.only_arithmetic = only_arithmetic(self.blocks)
        self.unused_loads = unused_loads(self.blocks) if self.check else frozenset()
        self.droppable_loads = droppable_loads(self.blocks) if self.check else frozenset()
        if self.droppable_loads:
            self.loose = liveness(self.blocks, len(self.registers), self.first, self.droppable_loads)
        self.split_loads, self.idle_loads = split_loads(self.blocks) if self.check else (frozenset(), frozenset())
        self.past_barriers = past_barriers(self.blocks, self.first, self._names()) if self.check else {}
        return self.blocks


__all__ = ["Block", "Called", "Flow", "Op", "Source", "module_variables"]
