"""Names of an entry and what instructions do with them: registers, variables and their places, reads and writes."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.isa.registers import special_register
from ptxgen.runtime.cpu.flow.blocks import Activation, Op, Source
from ptxgen.runtime.cpu.flow.symbols import (
    Reg,
    Scope,
    Var,
    bits_of,
    round_up,
    unsupported,
    variable_align,
    variable_bytes,
)
from ptxgen.runtime.cpu.native.layout import SHARED_BASE


class Names:
    """The registers and variables of an entry and of the functions it calls."""

    def __init__(self, module: nodes.Module, entry: nodes.Function) -> None:
        self.module = module
        self.entry = entry
        self.registers: list[Reg] = []
        self.entry_params: list[Var] = []
        self.shared: list[Var] = []  # for error texts
        self.local_bytes = 0
        self.shared_end = SHARED_BASE  # of static shared memory, in the window
        self.dynamic: list[Var] = []  # unsized shared arrays: they begin where the static memory ends
        self._declared = 0  # registers
        self._scopes = 0
        self._labels = 0
        self.globals = Scope(None, 0)
        self.refused: dict[str, str] = {}  # variables of the module that the executor lacks, and the text of the error
        self._unplaced: dict[str, nodes.Variable] = {}  # shared variables of the module: placed when first used
        for number, variable in enumerate(module_variables(module)):
            self._declare_global(variable, number)
        self.root = Scope(self.globals, self.next_scope())
        self.param_bytes = self._entry_params(entry)
        self.carry = self.hidden("CC.CF", 1)
        self.shared_align = 16

    def next_scope(self) -> int:
        """A number for one more scope."""
        self._scopes += 1
        return self._scopes

    def fresh_key(self) -> tuple[int, str]:
        """A key for one more block."""
        self._labels += 1
        return (-self._labels, "")

    def hidden(self, name: str, bits: int) -> Reg:
        """A register that the text does not name, of so many bits."""
        reg = Reg(len(self.registers), name, bits, f"b{bits}")
        self.registers.append(reg)
        return reg

    def _register_of(self, name: str, bits: int, kind: str) -> Reg:
        reg = self.hidden(name, bits)
        reg.type = kind
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

    def declare(self, variable: nodes.Variable, scope: Scope, activation: Activation | None = None) -> None:
        """Enter a variable of a function body into its scope; local memory is the function's, or an activation's."""
        from ptxgen.parser.limits import MOST_BYTES, MOST_REGISTERS  # what is in the object cache needs no parser

        if variable.space == "reg":
            bits = bits_of(variable.type, variable.line)
            self._declared += variable.count or 1
            if self._declared > MOST_REGISTERS:
                got = f"(got {self._declared:,} with these)"
                raise IsaError(self.where(variable.line, f"an entry with more than {MOST_REGISTERS:,} registers {got}"))
            if variable.count:
                kind = variable.type
                scope.counted[variable.name] = (variable.count, lambda name: self._register_of(name, bits, kind))
            else:
                scope.names[variable.name] = self._register_of(variable.name, bits, variable.type)
            return
        size, align = variable_bytes(variable), variable_align(variable)
        var = Var(variable.name, variable.space, variable.type, size, align)
        if variable.space == "shared":
            self._place_shared(var, variable)
        elif variable.space == "local" and activation is not None:
            self.place_in(activation, var)
        elif variable.space == "local":
            self.local_bytes = round_up(self.local_bytes, align)
            var.offset = self.local_bytes
            self.local_bytes += size
            if self.local_bytes > MOST_BYTES["local"]:
                most = f"an entry with more than {MOST_BYTES['local']:,} bytes of local memory a thread"
                raise IsaError(self.where(variable.line, most))
        elif variable.space == "param":
            var.words = [self.hidden(f"{variable.name}[{n}]", 32) for n in range((size + 3) // 4)]
        else:
            raise IsaError(self.where(variable.line, f"a .{variable.space} variable inside a function"))
        scope.names[variable.name] = var

    def place_in(self, activation: Activation, var: Var) -> None:
        """Give a variable its place in the memory of each activation."""
        var.frame, var.offset = activation.begin, round_up(activation.size, var.align)
        activation.size = var.offset + var.size
        activation.align = max(activation.align, var.align)

    @property
    def dynamic_start(self) -> int:
        """Window offset of dynamic shared memory."""
        return round_up(self.shared_end, self.shared_align)

    def _declare_global(self, variable: nodes.Variable, number: int) -> None:
        if said := unsupported(variable):
            self.refused[variable.name] = self.where(variable.line, said)
            return
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
        return self.module.refusal(line, f"{what} is not supported by the CPU executor")

    def _register(self, name: str, op: Op) -> Reg:
        found = op.scope.find(name)
        if not isinstance(found, Reg):
            raise IsaError(self.module.refusal(op.line, f"register {name} is not declared"))
        return found

    # uses -------------------------------------------------------------------------------------------------------
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

    def touch(self, op: Op, operand: Source, into: list[Reg]) -> None:
        """Note the registers of an operand; those inside an address are always read."""
        if isinstance(operand, Reg):
            into.append(operand)
        elif isinstance(operand, nodes.Register):
            found = op.scope.find(operand.name)
            if isinstance(found, Reg):
                into.append(found)
            elif operand.name not in ("_", "WARP_SZ") and not _is_special(operand.name):
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
            named = op.scope.find(operand.name)
            if isinstance(named, Var):
                op.reads.extend(named.words)  # of a call's parameter
                op.reads.extend([named.frame] if named.frame is not None else [])
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


def _is_special(name: str) -> bool:
    return special_register(name) is not None or special_register(name + ".x") is not None


def module_variables(module: nodes.Module) -> list[nodes.Variable]:
    """The module's variables, in order; their positions are the symbol numbers."""
    defined: dict[str, nodes.Variable] = {}
    for item in module.items:
        if isinstance(item, nodes.Variable) and (item.name not in defined or "extern" not in item.linkage):
            defined[item.name] = item
    return list(defined.values())
