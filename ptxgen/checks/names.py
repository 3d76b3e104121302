"""Names in scope while a function is checked: registers and their types, variables, labels, static shared memory."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.isa import special_register
from ptxgen.isa.pattern import Demand
from ptxgen.nodes import Function, Label, Statement, Symbol, Variable
from ptxgen.nodes.scoped import Scoped
from ptxgen.nodes.sizes import variable_bytes


class _Scope:
    """What one `{ … }` declares, and those around it."""

    __slots__ = ("labels", "met", "outer", "registers", "symbols")

    def __init__(self, outer: _Scope | None, labels: set[str]) -> None:
        self.outer, self.labels = outer, labels
        self.registers: Scoped[str] = Scoped(outer.registers if outer is not None else None)
        self.met: dict[str, str] = {}  # registers by their whole names
        self.symbols: dict[str, Variable] = {}


class Names:
    """What is declared where the check stands.

    `registers` maps names to types and grows as registers are met; `report(line, what)` takes findings, and
    `demand(name, demand, word, line)` what a special register needs. A scope costs what it declares and uses, whatever
    there is around it.
    """

    def __init__(
        self,
        outside: dict[str, Variable | Function],
        report: Callable[[int, str], None],
        demand: Callable[[str, Demand, str, int], None],
    ) -> None:
        self.outside, self.report, self.demand = outside, report, demand
        self._scope = _Scope(None, set())
        self.registers = self._scope.met
        self.shared: dict[str, int] = {}  # static shared variables that the function has or names, in bytes

    def enter(self, items: tuple[Statement, ...]) -> None:
        """Open a scope with these statements; its labels are known at once."""
        labels = [item for item in items if type(item) is Label]
        here = {item.name for item in labels}
        if len(here) < len(labels):
            self._twice(labels)
        self._scope = _Scope(self._scope, here)
        self.registers = self._scope.met

    def leave(self) -> None:
        """Close the scope that was opened last."""
        assert self._scope.outer is not None
        self._scope = self._scope.outer
        self.registers = self._scope.met

    def _twice(self, labels: list[Label]) -> None:
        seen: set[str] = set()
        for label in labels:
            if label.name in seen:
                self.report(label.line, f"label {label.name} is declared twice")
            seen.add(label.name)

    def declare(self, variable: Variable, here: set[str]) -> None:
        """Add a declaration; `here` are the names that its scope declared before."""
        name = variable.name
        declared = f"{name}<" if variable.count else name  # `a<2>` declares a0 and a1, and no a
        if declared in here:
            self.report(variable.line, f"{name} is declared twice")
        here.add(declared)
        scope = self._scope
        if variable.space != "reg":
            scope.symbols[name] = variable
            self._count_shared(variable)
            return
        scope.registers.declare(variable, f"v{variable.vector}.{variable.type}" if variable.vector else variable.type)
        if variable.vector and not variable.count:
            scope.registers.named.update({f"{name}.{part}": variable.type for part in "xyzwrgba"})
        if variable.count:
            scope.met.clear()  # what is of that name in scopes around is hidden from now on
        else:
            scope.met.pop(name, None)

    def _count_shared(self, variable: Variable) -> None:
        if variable.space == "shared":
            self.shared[variable.name] = variable_bytes(variable)

    def type_of(self, name: str, line: int) -> str | None:
        """The type of a register; None, and a finding, when it is not declared."""
        found = self.registers.get(name) or self._scope.registers.find(name)
        if found is None:
            special = special_register(name)
            if special is None:
                self.report(line, f"register {name} is not declared{self._hint(name)}")
                return None
            self.demand(name, Demand(special.ptx, special.sm), name, line)
            found = special.type
        self.registers[name] = found
        return found

    def _hint(self, name: str) -> str:
        """How many registers of such a name there are."""
        stem = name.rstrip("0123456789")
        scope: Scoped[str] | None = self._scope.registers
        while scope is not None:
            if stem in scope.counted:
                return f"; there are {stem}<{scope.counted[stem][0]}>"
            scope = scope.outer
        return ""

    def variable(self, name: str) -> Variable | Function | None:
        """What a symbol names, or None; static shared memory of the module counts once it is named."""
        scope: _Scope | None = self._scope
        while scope is not None:
            if name in scope.symbols:
                return scope.symbols[name]
            scope = scope.outer
        outer = self.outside.get(name)
        if isinstance(outer, Variable):
            self._count_shared(outer)
        return outer

    def is_label(self, name: str) -> bool:
        """Whether a label of this name can be branched to."""
        scope: _Scope | None = self._scope
        while scope is not None:
            if name in scope.labels:
                return True
            scope = scope.outer
        return False

    def knows(self, symbol: Symbol) -> bool:
        """Whether a symbol names a variable, a function or a label."""
        return self.variable(symbol.name) is not None or self.is_label(symbol.name)
