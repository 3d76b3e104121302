"""Operands of instructions as values of a warp: registers, literals, symbols, special registers, predicates."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.emit.definedness import DefinedLanes
from ptxgen.runtime.cpu.emit.llvm_types import SIGNED, element_bits, integer_vector, literal, vector_of
from ptxgen.runtime.cpu.emit.special_registers import special_register
from ptxgen.runtime.cpu.emit.values import Values
from ptxgen.runtime.cpu.flow.blocks import Source
from ptxgen.runtime.cpu.flow.calls import function_address
from ptxgen.runtime.cpu.flow.flow import Flow
from ptxgen.runtime.cpu.flow.symbols import Reg, Var, round_up
from ptxgen.runtime.cpu.native.host import Host
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.native.layout import LAUNCH, LOCAL_WINDOW


class Operands(Values):
    """Reading sources and writing destinations."""

    def __init__(self, module: nodes.Module, flow: Flow, name: str, check: bool, host: Host) -> None:
        super().__init__(module, flow, name, check, host)
        if check:
            self.defined = DefinedLanes(self)

    def reg(self, operand: Source) -> Reg | None:
        """The register that an operand names; None for the sink and for special registers."""
        if isinstance(operand, Reg):
            return operand
        if isinstance(operand, nodes.Register):
            found = self.op.scope.find(operand.name)
            return found if isinstance(found, Reg) else None
        return None

    def src(self, operand: Source, kind: str) -> str:
        """A source operand as the vector of a PTX type: `f32` → `<32 x float>`; wider registers are truncated."""
        if kind == "pred":
            return self.lanes(self.pred(operand))
        vector = vector_of(kind)
        reg = self.reg(operand)
        if reg is not None:
            return self._fit(reg, kind, vector)
        if isinstance(operand, nodes.Immediate):
            return literal(operand, kind)
        if isinstance(operand, nodes.Register):
            return self.resize(*special_register(self, operand.name), kind)
        if isinstance(operand, nodes.Symbol):
            return self.resize(self.symbol(operand), vec("i64"), kind)
        raise self.unsupported(f"with operand {operand}")

    def _fit(self, reg: Reg, kind: str, vector: str) -> str:
        wanted = element_bits(vector)
        if reg.bits == wanted:
            return self.read(reg, vector)
        if reg.bits == 1:
            raise self.error(f"operand {reg.name}: a predicate cannot be a .{kind}")
        return self.resize(self.read(reg, integer_vector(reg.bits)), integer_vector(reg.bits), kind)

    def resize(self, value: str, vector: str, kind: str) -> str:
        """An integer vector as the type of `kind`: truncated, or extended by its sign."""
        wanted = vector_of(kind)
        have, want = element_bits(vector), element_bits(wanted)
        whole = integer_vector(want)
        if have > want:
            value = self.c(f"trunc {vector} {value} to {whole}")
        elif have < want:
            value = self.c(f"{'sext' if kind in SIGNED else 'zext'} {vector} {value} to {whole}")
        else:
            whole = vector
        return self.cast(value, whole, wanted)

    # in check mode: of which lanes are defined (i32s; None: all) ------------------------------------------------------
    def so_far(self) -> str | None:
        """The lanes in which all that the instruction has read is defined; what it reads from now on counts alone."""
        return self.defined.take() if self.defined else None

    def only_defined(self, lanes: str | None) -> None:
        """The next result is defined in these lanes, whatever has been read."""
        if self.defined:
            self.defined.take()
            if lanes is not None:
                self.defined.add(lanes)

    def decided(self, name: str, a: str, known_a: str | None, b: str, known_b: str | None) -> str | None:
        """The lanes in which `a and b`, or `a or b`, is defined: where both are, or one that decides alone."""
        if known_a is None and known_b is None:
            return None
        both = self.c(f"and i32 {known_a or '-1'}, {known_b or '-1'}")
        if name not in ("and", "or"):
            return both
        for value, known in ((a, known_a), (b, known_b)):
            alone = self.c(f"xor i32 {value}, -1") if name == "and" else value
            both = self.c(f"or i32 {both}, {self.c(f'and i32 {alone}, {known}') if known else alone}")
        return both

    def predicate(self, reg: Reg) -> str:
        """A predicate register as an i32 of lanes."""
        return self.read(reg, "i32")

    def pred(self, operand: Source) -> str:
        """A predicate operand (`%p`, `!%p`, or a literal) as an i32 of lanes."""
        if isinstance(operand, nodes.Negated):
            return self.c(f"xor i32 {self.pred(operand.operand)}, -1")
        if isinstance(operand, nodes.Immediate):
            return "-1" if operand.value else "0"
        reg = self.reg(operand)
        if reg is None or reg.bits != 1:
            if isinstance(operand, nodes.Register) and operand.name.startswith("%is_explicit"):
                return "-1" if self.flow.entry.performance.get("explicitcluster") is not None else "0"
            raise self.error(f"operand {operand}: must be a predicate")
        return self.predicate(reg)

    def dst(self, operand: Source, value: str, kind: str) -> None:
        """Write a destination; a register wider than the type gets the extended value."""
        if kind == "pred":
            self.dst_pred(operand, self.bits(value))
            return
        reg = self.reg(operand)
        if reg is None:
            self._sink(operand)
            return
        vector = vector_of(kind)
        have = element_bits(vector)
        if have == reg.bits:
            self.write(reg, value, vector)
        elif have < reg.bits and reg.bits > 1:
            whole, wide = integer_vector(have), integer_vector(reg.bits)
            extended = self.c(
                f"{'sext' if kind in SIGNED else 'zext'} {whole} {self.cast(value, vector, whole)} to {wide}"
            )
            self.write(reg, extended, wide)
        else:
            raise self.error(f"operand {reg.name}: a .{reg.type} register cannot hold a .{kind}")

    def dst_pred(self, operand: Source, lanes: str) -> None:
        """Write a predicate destination from an i32 of lanes."""
        if isinstance(operand, nodes.Negated):
            self.dst_pred(operand.operand, self.c(f"xor i32 {lanes}, -1"))
            return
        reg = self.reg(operand)
        if reg is None:
            self._sink(operand)
        elif reg.bits != 1:
            raise self.error(f"operand {reg.name}: must be a predicate")
        else:
            self.write(reg, lanes, "i32")

    def _sink(self, operand: Source) -> None:
        if not (isinstance(operand, nodes.Register) and operand.name == "_"):
            raise self.error(f"operand {operand}: must be a register")

    def symbol(self, symbol: nodes.Symbol) -> str:
        """Address of a variable in its own space (for `.param` of the entry: in memory), as `<32 x i64>`."""
        found = self.op.scope.find(symbol.name)
        function = None if isinstance(found, Var) else function_address(self.module, symbol.name)
        if function is not None:
            return splat("i64", function)
        if symbol.name in self.flow.refused:
            raise IsaError(self.flow.refused[symbol.name])
        if not isinstance(found, Var):
            raise self.error(f"operand {symbol}: has no address here")
        if found.words or found.frame is not None:
            return self._on_the_stack(found, symbol.offset)
        if found.space == "param":
            scalar = self.c(f"ptrtoint ptr {self.c.load('ptr', self.launch, LAUNCH['params'])} to i64")
            return self.c.spread("i64", self.c(f"add i64 {scalar}, {found.offset + symbol.offset}"))
        if found.symbol >= 0:
            table = self.c.load("ptr", self.launch, LAUNCH["symbols"])
            scalar = self.c.load("i64", table, 8 * found.symbol)
            if symbol.offset:
                scalar = self.c(f"add i64 {scalar}, {symbol.offset}")
            return self.c.spread("i64", scalar)
        return splat("i64", found.offset + symbol.offset)

    def _on_the_stack(self, variable: Var, offset: int) -> str:
        """Address of a variable in an activation's memory, or of a copy of a call's parameter, which has one
        otherwise only in registers: a callee only reads it. The copy's is generic."""
        i32, i64 = vec("i32"), vec("i64")
        begin, home = f"{i32} zeroinitializer", variable.offset
        if variable.frame is not None:
            begin = f"{i32} {self.read(variable.frame, i32)}"
        else:
            home = self._home_of(variable)
        for n, word in enumerate(variable.words):
            head = f"ptr %w, {begin}, i64 {home + 4 * n}, i32 {self.exec_mask()}, i32 {self.new_site()}"
            self.c.do(f"call void @st.local.v1.b32({head}, {i32} {self.read(word, i32)})")
        place = (LOCAL_WINDOW if variable.words else 0) + home + offset
        if variable.frame is None:
            return splat("i64", place)
        return self.c(f"add {i64} {self.c(f'zext {begin} to {i64}')}, {splat('i64', place)}")

    def _home_of(self, variable: Var) -> int:
        """A place in local memory for a call's parameter that has an address."""
        if id(variable) not in self._homes:
            self._homes[id(variable)] = round_up(self.flow.local_bytes, 16)
            self.flow.local_bytes = self._homes[id(variable)] + 4 * len(variable.words)
        return self._homes[id(variable)]

    def first_lane(self, value: str, kind: str, mask: str | None = None) -> str:
        """The element of the lowest executing lane (0 where none executes), as a scalar of LLVM type `kind`."""
        slot = self.c.var(vec(kind), align=64)
        self.c.store(vec(kind), value, slot)
        lane = self.c(f"call i32 @llvm.cttz.i32(i32 {mask or self.exec_mask()}, i1 false)")
        return self.c.load(kind, self.c(f"getelementptr {kind}, ptr {slot}, i32 {self.c(f'and i32 {lane}, 31')}"))

    def uniform(self, operand: Source, kind: str, what: str) -> str:
        """A source that must be the same in all executing lanes, as a scalar; lanes that differ are a finding."""
        if isinstance(operand, nodes.Immediate):
            return str(int(operand.value))
        from ptxgen.runtime.cpu.support.faults import FAULT_OPERAND

        element = f"i{element_bits(vector_of(kind))}"
        value = self.src(operand, kind)
        first = self.first_lane(value, element)
        same = self.bits(self.c(f"icmp eq {vec(element)} {value}, {self.c.spread(element, first)}"))
        others = self.c(f"and i32 {self.exec_mask()}, {self.c(f'xor i32 {same}, -1')}")
        self.fault_if(others, FAULT_OPERAND, remark=what)
        return first
