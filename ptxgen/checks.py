"""Whether parsed PTX is legal: forms, operands, declarations, what target and version have. Finds all, raises once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ptxgen.check_lint import Finding, backward_branches, narrow_addresses
from ptxgen.check_names import Names
from ptxgen.check_operand import choose, fault
from ptxgen.errors import IsaError
from ptxgen.isa import Form, lookup, special_register
from ptxgen.isa.pattern import OLDEST, Demand
from ptxgen.nodes import Function, Instruction, Label, Module, Register, Scope, Statement, Variable
from ptxgen.requires import describe, own_target
from ptxgen.targets import STATIC_SHARED_LIMIT, Target


def check(
    module: Module, target: Target | None = None, *, lint: bool = False, limits: Mapping[str, int] | None = None
) -> None:
    """Raise one `IsaError` with every finding, as `kernel entry, line N: what | the line's text`.

    Checked: unknown forms; number, kind, type and vector length of operands; undeclared and redeclared registers and
    labels; forms and special registers that `.version` or the target (default: the module's own) lack, with the word
    that forces them; static shared memory above 48 KiB. `lint` adds the rules of `check_lint`, meant for ptxgen's own
    text; `limits` are largest values of special registers that the launch guarantees (`{"%ctaid.x": 7}`).
    """
    findings = [*_header(module, target)]
    where = target or own_target(module)
    outside = {item.name: item for item in module.items if isinstance(item, (Variable, Function))}
    for item in module.items:
        if isinstance(item, Function) and item.body is not None:
            kind = "kernel" if item.kind == "entry" else "function"
            found = _FunctionCheck(module, item, outside, where).run(lint, limits or {})
            for line, what in sorted(found, key=lambda finding: finding[0]):
                text = module.source_line(line)
                findings.append(f"{kind} {item.name}, line {line}: {what}" + (f" | {text}" if text else ""))
    if findings:
        raise IsaError("\n".join(findings))


def _header(module: Module, target: Target | None) -> Iterable[str]:
    own = own_target(module)
    if own is None:
        yield f".target: unknown architecture (got {module.targets[0]})"
    elif target is not None and own != target:
        yield f".target: must be {target} (got {own})"
    lowest = own.lowest_ptx if own else OLDEST
    if module.version < lowest:
        yield f".version: {own} needs at least {lowest[0]}.{lowest[1]} (got {module.version[0]}.{module.version[1]})"


class _FunctionCheck:
    """One function: its statements in order, and what was found."""

    def __init__(
        self, module: Module, function: Function, outside: dict[str, Variable | Function], target: Target | None
    ) -> None:
        self.module, self.function, self.target = module, function, target
        self.found: list[Finding] = []
        self.names = Names(outside, self.report, self.demand)
        self.flat: list[Instruction | Label] = []

    def run(self, lint: bool, limits: Mapping[str, int]) -> list[Finding]:
        for parameter in (*self.function.returns, *self.function.params):
            self.names.declare(parameter, set())
        self.body(self.function.body or ())
        total = sum(self.names.shared.values())
        if total > STATIC_SHARED_LIMIT:
            remedy = "declare it extern and pass its size at the launch"
            self.report(
                self.function.line, f"static shared memory: at most {STATIC_SHARED_LIMIT} bytes (got {total}); {remedy}"
            )
        if lint and not self.found:  # the rules count on operands being there
            self.found += backward_branches(self.flat)
            self.found += narrow_addresses(self.flat, limits)
        return self.found

    def report(self, line: int, what: str) -> None:
        self.found.append((line, what))

    def demand(self, what: str, demand: Demand, word: str, line: int) -> None:
        """Report when `.version` or the target lacks what is asked."""
        version, target = self.module.version, self.target
        lacks = []
        if demand.ptx > version:
            lacks.append(f".version is {version[0]}.{version[1]}")
        if target is not None and not target.includes_any(demand.sm):
            lacks.append(f"the target is {target}")
        if lacks:
            self.report(line, f"{what} needs {describe(demand)} because of {word}; {' and '.join(lacks)}")

    def body(self, items: tuple[Statement, ...]) -> None:
        outer = self.names.enter(items)
        here: set[str] = set()
        for item in items:
            if type(item) is Instruction:
                self.flat.append(item)
                self.instruction(item)
            elif type(item) is Label:
                self.flat.append(item)
            elif type(item) is Variable:
                self.names.declare(item, here)
            elif type(item) is Scope:
                self.body(item.items)
        self.names.leave(outer)

    def instruction(self, item: Instruction) -> None:
        names, line, operands = self.names, item.line, item.operands
        if item.guard is not None:
            declared = names.type_of(item.guard.register, line)
            if declared is not None and declared != "pred":
                self.report(line, f"guard {item.guard.register} must be a predicate (got .{declared})")
        try:
            form = lookup(item.opcode)
        except IsaError as unknown:
            self.report(line, str(unknown))
            return
        if form.also or len(form.operands) != len(operands):
            chosen = self.choose(form, item)
            if chosen is None:
                return
            form = chosen
        if form.sm or form.ptx > self.module.version:
            ptx = form.ptx_on(self.target) if self.target else form.ptx
            self.demand(form.opcode, Demand(ptx, form.sm), form.because, line)
        registers = names.registers
        for index, (operand, slot) in enumerate(zip(operands, form.operands, strict=False), 1):
            # The common case first: a register that was met before, of a type that fits.
            if type(operand) is Register and "reg" in slot.kinds and registers.get(operand.name) in slot.accepts:
                wrong = None
            else:
                wrong = fault(names, operand, slot, form, line)
            if slot.writes and type(operand) is Register and special_register(operand.name):
                wrong = f"{operand} is read-only"
            if wrong:
                self.report(line, f"{item.opcode}: operand {index} {wrong}")

    def choose(self, form: Form, item: Instruction) -> Form | None:
        """The form that the operands fit best; None, and a finding, when their number fits none."""
        kept = len(self.found)
        chosen = choose(self.names, form, item.operands, item.line)
        del self.found[kept:]  # what is not declared is found again where the chosen form is checked
        if chosen is None:
            ranges = (range(len(f.operands) - f.optional, len(f.operands) + 1) for f in (form, *form.also))
            wanted = " or ".join(str(n) for n in sorted({number for each in ranges for number in each}))
            self.report(item.line, f"{item.opcode}: takes {wanted} operands (got {len(item.operands)})")
        return chosen
