"""An entry and the functions it calls, as basic blocks of resolved instructions. Emits nothing.

Calls are not inlined: a call moves its arguments into the callee's parameters, notes its return site in a hidden
register and jumps; `ret` jumps back by that register (`calls.py`). So lanes of several call sites share the callee, and
an instruction that waits may stand anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.calls import call
from ptxgen.runtime.cpu.layout import SHARED_BASE
from ptxgen.runtime.cpu.registry import Family, family_of
from ptxgen.runtime.cpu.symbols import (
    Code,
    Reg,
    Scope,
    Var,
    bits_of,
    round_up,
    variable_align,
    variable_bytes,
)

Source = nodes.Operand | Reg
_JUMPS = frozenset({"bra", "brx", "ret", "exit"})


@dataclass(slots=True, eq=False)
class Op:
    """One instruction with its scope. `words` is the opcode split at dots; pseudo-instructions begin with `$`."""

    words: tuple[str, ...]
    operands: tuple[Source, ...]
    scope: Scope
    line: int
    family: Family | None = None
    guard: Reg | None = None
    negated: bool = False
    reads: list[Reg] = field(default_factory=list)
    writes: list[Reg] = field(default_factory=list)
    targets: tuple[tuple[int, str], ...] = ()  # block keys of a jump
    text: str = ""

    def with_words(self, words: tuple[str, ...], operands: tuple[Source, ...]) -> Op:
        """Another instruction in this one's place; what it reads and writes is for the caller to say."""
        return Op(words, operands, self.scope, self.line, family_of(words), text=self.text)


@dataclass(slots=True, eq=False)
class Block:
    """Straight-line instructions; only the last may jump or wait. `number` is its rank: lower runs first."""

    key: tuple[int, str]
    ops: list[Op] = field(default_factory=list)
    next: Block | None = None  # where it falls through to
    successors: list[Block] = field(default_factory=list)
    number: int = 0
    live_out: int = 0  # bit set of register indices
    defined_in: int = 0  # registers that every path to here has written


@dataclass(slots=True, eq=False)
class Called:
    """A function of the flow: its blocks and what calls and returns of it move."""

    function: nodes.Function
    params: list[Reg | Var]
    returns: list[Reg | Var]
    site: Reg  # which call it was entered by
    first: tuple[int, str]
    blocks: list[Block] = field(default_factory=list)
    sites: list[tuple[int, str]] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)


class Flow:
    """The blocks of an entry, ordered and with liveness; made once per entry and mode."""

    def __init__(self, module: nodes.Module, entry: nodes.Function) -> None:
        self.module = module
        self.entry = entry
        self.registers: list[Reg] = []
        self.entry_params: list[Var] = []
        self.shared: list[Var] = []  # for error texts
        self.local_bytes = 0
        self.shared_end = SHARED_BASE  # of static shared memory, in the window
        self.dynamic: list[Var] = []  # unsized shared arrays: they begin where the static memory ends
        self.functions: dict[str, Called] = {}
        self._scopes = 0
        self._labels = 0
        self.globals = Scope(None, 0)
        self._unplaced: dict[str, nodes.Variable] = {}  # shared variables of the module: placed when first used
        for number, variable in enumerate(module_variables(module)):
            self._declare_global(variable, number)
        self.root = Scope(self.globals, self.next_scope())
        self.param_bytes = self._entry_params(entry)
        self.carry = self.hidden("CC.CF", 1)
        site = self.hidden("$return", 32)
        self.functions[entry.name] = Called(entry, [], [], site, self.fresh_key())
        self._build(self.functions[entry.name], self.root)
        self.shared_align = max([16, *(var.align for var in self.dynamic)])
        for var in self.dynamic:
            var.offset = self.dynamic_start
        self.blocks = self._ordered()

    # names ------------------------------------------------------------------------------------------------------
    def next_scope(self) -> int:
        """A number for one more scope."""
        self._scopes += 1
        return self._scopes

    def fresh_key(self) -> tuple[int, str]:
        """A key for one more block."""
        self._labels += 1
        return (-self._labels, "")

    def hidden(self, name: str, bits: int) -> Reg:
        """One more register."""
        reg = Reg(len(self.registers), name, bits, f"b{bits}")
        self.registers.append(reg)
        return reg

    def _entry_params(self, entry: nodes.Function) -> int:
        offset = 0
        for param in entry.params:
            size, align = variable_bytes(param), variable_align(param)
            offset = round_up(offset, align)
            var = Var(param.name, "param", param.type, size, align, offset)
            self.root.names[param.name] = var
            self.entry_params.append(var)
            offset += size
        return offset

    def declare(self, variable: nodes.Variable, scope: Scope) -> None:
        """Enter a variable of a function body into its scope."""
        if variable.space == "reg":
            bits = bits_of(variable.type, variable.line)
            names = [f"{variable.name}{n}" for n in range(variable.count)] if variable.count else [variable.name]
            for name in names:
                scope.names[name] = self.hidden(name, bits)
                self.registers[-1].type = variable.type
            return
        size, align = variable_bytes(variable), variable_align(variable)
        var = Var(variable.name, variable.space, variable.type, size, align)
        if variable.space == "shared":
            self._place_shared(var, variable)
        elif variable.space == "local":
            self.local_bytes = round_up(self.local_bytes, align)
            var.offset = self.local_bytes
            self.local_bytes += size
        elif variable.space == "param":
            var.words = [self.hidden(f"{variable.name}[{n}]", 32) for n in range((size + 3) // 4)]
        else:
            raise IsaError(self.where(variable.line, f"a .{variable.space} variable inside a function"))
        scope.names[variable.name] = var

    @property
    def dynamic_start(self) -> int:
        """Window offset of dynamic shared memory."""
        return round_up(self.shared_end, self.shared_align)

    def _declare_global(self, variable: nodes.Variable, number: int) -> None:
        size, align = variable_bytes(variable), variable_align(variable)
        var = Var(variable.name, variable.space, variable.type, size, align)
        if variable.space == "shared":
            self._unplaced[variable.name] = variable
        else:
            var.symbol = number
        self.globals.names[variable.name] = var

    def _place_shared(self, var: Var, variable: nodes.Variable) -> None:
        """Give a shared variable its offset; an unsized one begins where the dynamic memory does."""
        if variable.dims and variable.dims[0] == 0:
            self.dynamic.append(var)
            self.shared.append(var)
            return
        self.shared.append(var)
        self.shared_end = round_up(self.shared_end, var.align)
        var.offset = self.shared_end
        self.shared_end += var.size

    def where(self, line: int, what: str) -> str:
        """The text of an `IsaError` about a line."""
        text = self.module.source_line(line)
        return f"{self.module.file}:{line}: {what} is not supported by the CPU executor" + (f": {text}" if text else "")

    # instructions -----------------------------------------------------------------------------------------------
    def _build(self, called: Called, scope: Scope) -> None:
        body = called.function.body
        assert body is not None
        items = list(self._flatten(body, scope, called))
        block = Block(called.first)
        called.blocks.append(block)
        for item in items:
            if isinstance(item, tuple):
                block = self._begin(called, item)
                continue
            if item.family is not None and (item.family.converges or item.family.retries) and block.ops:
                block = self._begin(called, self.fresh_key())
            block.ops.append(item)
            if item.words[0] in ("bra", "brx", "ret", "exit", "$go", "$back") or (item.family and item.family.blocks):
                block = self._begin(called, self.fresh_key())
        tail = Op(("exit",) if called.function.kind == "entry" else ("ret",), (), scope, called.function.line)
        block.ops.extend(self._finish(tail, called))

    def _begin(self, called: Called, key: tuple[int, str]) -> Block:
        block = Block(key)
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
                self.declare(item, scope)
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

    def reread(self, op: Op) -> None:
        """Set what an instruction reads, from its operands."""
        assert op.family is not None
        op.reads = [op.guard] if op.guard is not None else []
        if op.words[0] == "wake":
            return
        for position, operand in enumerate(op.operands):
            if position >= op.family.outputs or position in op.family.inout:
                self.touch(op, operand, op.reads)
            else:  # the registers of an address are read even where the operand is written
                self.touch(op, operand, [])
        if op.words[0] in ("addc", "subc", "madc"):
            op.reads.append(self.carry)

    def _touch_written(self, op: Op) -> None:
        assert op.family is not None
        if op.family.result:
            return
        reads = op.reads
        for position, operand in enumerate(op.operands):
            if position < op.family.outputs or position in op.family.inout:
                self.touch(op, operand, op.writes)
        op.reads = reads
        if "cc" in op.words:
            op.writes.append(self.carry)

    def _jump(self, op: Op) -> None:
        if op.targets:
            return
        if op.words[0] == "bra":
            op.targets = (self._label(op.operands[0], op).key,)
            return
        self.touch(op, op.operands[0], op.reads)
        table = self._label(op.operands[1], op)
        op.targets = tuple(self._label(nodes.Symbol(name), op).key for name in table.name.split(","))

    def _label(self, operand: Source, op: Op) -> Code:
        found = op.scope.find(operand.name) if isinstance(operand, nodes.Symbol) else None
        if not isinstance(found, Code):
            raise IsaError(self.where(op.line, f"a branch to {operand}"))
        return found

    def _register(self, name: str, op: Op) -> Reg:
        found = op.scope.find(name)
        if not isinstance(found, Reg):
            text = self.module.source_line(op.line)
            raise IsaError(f"{self.module.file}:{op.line}: register {name} is not declared: {text}")
        return found

    def touch(self, op: Op, operand: Source, into: list[Reg]) -> None:
        """Note the registers of an operand; those inside an address are always read."""
        if isinstance(operand, Reg):
            into.append(operand)
        elif isinstance(operand, nodes.Register):
            found = op.scope.find(operand.name)
            if isinstance(found, Reg):
                into.append(found)
            elif operand.name != "_" and operand.name.partition(".")[0] not in SPECIAL:
                self._register(operand.name, op)
        elif isinstance(operand, nodes.Negated):
            self.touch(op, operand.operand, into)
        elif isinstance(operand, nodes.Pair):
            self.touch(op, operand.first, into)
            self.touch(op, operand.second, into)
        elif isinstance(operand, nodes.Vector | nodes.Group):
            for item in operand.items:
                self.touch(op, item, into)
        elif isinstance(operand, nodes.Symbol):
            variable = self._unplaced.pop(operand.name, None)
            if variable is not None:
                found = self.globals.names[operand.name]
                assert isinstance(found, Var)
                self._place_shared(found, variable)
        elif isinstance(operand, nodes.Address):
            self.touch(op, operand.base, op.reads)
            if isinstance(operand.base, nodes.Symbol):
                self._touch_variable(op, operand.base, into)
            if operand.coordinates is not None:
                self.touch(op, operand.coordinates, op.reads)

    def _touch_variable(self, op: Op, symbol: nodes.Symbol, _into: list[Reg]) -> None:
        """`[param0+4]` of a call's parameter reads or, in a store, writes hidden registers."""
        found = op.scope.find(symbol.name)
        if isinstance(found, Var) and found.words:
            op.reads.extend(found.words)
            if op.words[0] == "st":
                op.writes.extend(found.words)

    def add_function(
        self, function: nodes.Function, params: list[Reg | Var], returns: list[Reg | Var], scope: Scope
    ) -> Called:
        """Build a called function's blocks."""
        site = self.hidden(f"$return of {function.name}", 32)
        called = self.functions[function.name] = Called(function, params, returns, site, self.fresh_key())
        self._build(called, scope)
        return called

    # blocks -----------------------------------------------------------------------------------------------------
    @property
    def first(self) -> Block:
        """Where every thread begins."""
        return self.functions[self.entry.name].blocks[0]

    def _ordered(self) -> list[Block]:
        from ptxgen.runtime.cpu.order import link, liveness, number
        from ptxgen.runtime.cpu.simplify import simplify

        link(self)
        self.blocks = number(self)
        self.loose = liveness(self.blocks, len(self.registers), self.first)
        if simplify(self):
            self.loose = liveness(self.blocks, len(self.registers), self.first)
        return self.blocks


def module_variables(module: nodes.Module) -> list[nodes.Variable]:
    """The module's variables, in order; their positions are the symbol numbers."""
    defined: dict[str, nodes.Variable] = {}
    for item in module.items:
        if isinstance(item, nodes.Variable) and (item.name not in defined or "extern" not in item.linkage):
            defined[item.name] = item
    return list(defined.values())


SPECIAL = frozenset(
    [
        "%tid",
        "%ntid",
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%ctaid",
        "%nctaid",
        "%smid",
        "%nsmid",
        "%gridid",
        "%is_explicit_cluster",
        "%clusterid",
        "%nclusterid",
        "%cluster_ctaid",
        "%cluster_nctaid",
        "%cluster_ctarank",
        "%cluster_nctarank",
        "%lanemask_eq",
        "%lanemask_le",
        "%lanemask_lt",
        "%lanemask_ge",
        "%lanemask_gt",
        "%clock",
        "%clock_hi",
        "%clock64",
        "%globaltimer",
        "%globaltimer_lo",
        "%globaltimer_hi",
        "%dynamic_smem_size",
        "%total_smem_size",
        "%aggr_smem_size",
        "%current_graph_exec",
        "%pm0",
        "%pm1",
        "%pm2",
        "%pm3",
        "%pm4",
        "%pm5",
        "%pm6",
        "%pm7",
        "WARP_SZ",
    ]
)
