"""Names in scope while a function is checked: registers and their types, variables, labels, static shared memory."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.isa import special_register
from ptxgen.isa.pattern import Demand
from ptxgen.nodes import Function, Label, Statement, Symbol, Variable
from ptxgen.spec.sizes import variable_bytes

Saved = tuple[dict[str, str], dict[str, tuple[str, int]], dict[str, Variable], frozenset[str]]


class Names:
    """What is declared where the check stands.

    `registers` maps names to types and grows as `%r<n>` names are met; `report(line, what)` takes findings, and
    `demand(name, demand, word, line)` what a special register needs.
    """

    def __init__(
        self,
        outside: dict[str, Variable | Function],
        report: Callable[[int, str], None],
        demand: Callable[[str, Demand, str, int], None],
    ) -> None:
        self.outside, self.report, self.demand = outside, report, demand
        self.registers: dict[str, str] = {}
        self.counted: dict[str, tuple[str, int]] = {}  # stem of %r<n> -> type, n
        self.symbols: dict[str, Variable] = {}
        self.labels: frozenset[str] = frozenset()
        self.shared: dict[str, int] = {}  # static shared variables that the function has or names, in bytes

    def enter(self, items: tuple[Statement, ...]) -> Saved:
        """Open a scope with these statements; its labels are known at once."""
        outer = self.registers, self.counted, self.symbols, self.labels
        self.registers, self.counted, self.symbols = dict(outer[0]), dict(outer[1]), dict(outer[2])
        labels = [item for item in items if type(item) is Label]
        here = {item.name for item in labels}
        if len(here) < len(labels):
            self._twice(labels)
        self.labels = outer[3] | here
        return outer

    def leave(self, outer: Saved) -> None:
        """Close the scope that `enter` opened."""
        self.registers, self.counted, self.symbols, self.labels = outer

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
        if variable.space != "reg":
            self.symbols[name] = variable
            self._count_shared(variable)
        elif variable.count:
            self.counted[name] = (variable.type, variable.count)
        elif variable.vector:
            self.registers[name] = f"v{variable.vector}.{variable.type}"
            self.registers.update({f"{name}.{part}": variable.type for part in "xyzwrgba"})
        else:
            self.registers[name] = variable.type

    def _count_shared(self, variable: Variable) -> None:
        if variable.space == "shared":
            self.shared[variable.name] = variable_bytes(variable)

    def type_of(self, name: str, line: int) -> str | None:
        """The type of a register; None, and a finding, when it is not declared."""
        found = self.registers.get(name) or self._of_counted(name)
        if found is None:
            special = special_register(name)
            if special is None:
                stem = name.rstrip("0123456789")
                bound = self.counted.get(stem)
                hint = f"; there are {stem}<{bound[1]}>" if bound else ""
                self.report(line, f"register {name} is not declared{hint}")
                return None
            self.demand(name, Demand(special.ptx, special.sm), name, line)
            found = special.type
        self.registers[name] = found
        return found

    def _of_counted(self, name: str) -> str | None:
        """The type of `%r7` where `%r<n>` is declared; the stem itself may end in a digit (`%kv2<4>`)."""
        for length in range(len(name.rstrip("0123456789")), len(name)):
            declared = self.counted.get(name[:length])
            if declared and int(name[length:]) < declared[1]:
                return declared[0]
        return None

    def variable(self, name: str) -> Variable | Function | None:
        """What a symbol names, or None; static shared memory of the module counts once it is named."""
        found = self.symbols.get(name)
        if found is not None:
            return found
        outer = self.outside.get(name)
        if isinstance(outer, Variable):
            self._count_shared(outer)
        return outer

    def knows(self, symbol: Symbol) -> bool:
        """Whether a symbol names a variable, a function or a label."""
        return self.variable(symbol.name) is not None or symbol.name in self.labels
