"""Whether parsed PTX is legal: forms, operands, declarations, what target and version have. Finds all, raises once."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from math import prod

from ptxgen.checks.access import unwritten_reads, wild_accesses
from ptxgen.checks.lint import Finding, narrow_addresses
from ptxgen.checks.loops import backward_branches, lone_turns
from ptxgen.checks.names import Names
from ptxgen.checks.operand import choose, fault
from ptxgen.errors import UNREADABLE, IsaError, PtxgenError, unreadable
from ptxgen.isa import Form, lookup, special_register
from ptxgen.isa.pattern import OLDEST, Demand
from ptxgen.nodes import Function, Instruction, Label, Module, Register, Scope, Statement, Variable
from ptxgen.parser.limits import MOST_FINDINGS
from ptxgen.targets import STATIC_SHARED_LIMIT, Target, newest_ptx, own_target


def check(
    module: Module,
    target: Target | None = None,
    *,
    lint: bool = False,
    limits: Mapping[str, int] | None = None,
    loops: Mapping[str, str] | None = None,
) -> None:
    """Raise one `IsaError` with every finding, in the form of `Module.finding`: a line each.

    Checked: unknown forms; number, kind, type and vector length of operands, literals; undeclared and redeclared
    registers and labels; forms and special registers that `.version` or the target (default: the module's own) lack,
    with the word that forces them; static shared memory above 48 KiB; limits of a launch; characters. `lint` adds the
    rules of `check_lint`, meant for ptxgen's own text; `limits` are largest values of special registers that the launch
    guarantees (`{"%ctaid.x": 7}`), `loops` predicates that say whether a loop has another turn (`Builder.turn`), with
    the words in which a template places it.
    """
    found: list[tuple[int, str, Function | None]] = [(line, what, None) for line, what in _header(module, target)]
    where = target or own_target(module.targets)
    outside = {item.name: item for item in module.items if isinstance(item, (Variable, Function))}
    variables = {name: item for name, item in outside.items() if isinstance(item, Variable)}
    for item in module.items:
        if isinstance(item, Function) and item.body is not None:
            inside = _FunctionCheck(module, item, outside, variables, where).run(lint, limits or {}, loops or {})
            found += [(line, what, item) for line, what in sorted(inside, key=lambda finding: finding[0])]
    if found:
        said = [module.finding(*finding) for finding in found[:MOST_FINDINGS]]
        if len(found) > MOST_FINDINGS:
            said.append(f"{module.file}: and {len(found) - MOST_FINDINGS:,} more")
        raise IsaError("\n".join(said))


def _header(module: Module, target: Target | None) -> Iterable[Finding]:
    own = own_target(module.targets)
    if own is None:
        yield module.line_of(".target"), f".target: unknown architecture (got {module.targets[0][:60]})"
    elif target is not None and own != target:
        yield module.line_of(".target"), f".target: must be {target} (got {own})"
    lowest = own.lowest_ptx if own else OLDEST
    if module.version < lowest:
        got = f"(got {module.version[0]}.{module.version[1]})"
        yield module.line_of(".version"), f".version: {own} needs at least {lowest[0]}.{lowest[1]} {got}"
    newest = newest_ptx()
    if module.version > newest:
        got = f"(got {module.version[0]}.{module.version[1]})"
        yield module.line_of(".version"), f".version: at most {newest[0]}.{newest[1]} is known {got}"
    if not module.source.isascii():
        for number, line in enumerate(module.source.splitlines(), 1):
            foreign = next((char for char in line if not char.isascii()), "")
            if foreign:
                yield number, f"PTX is ASCII, comments too (got {foreign!r})"


# What a launch can have: the most of each dimension, and of their product (CUDA programming guide, "Technical
# Specifications per Compute Capability"; more than 8 CTAs a cluster need an attribute at the launch).
_LAUNCHES = {
    "reqntid": ((1024, 1024, 64), 1024, "threads"),
    "maxntid": ((1024, 1024, 64), 1024, "threads"),
    "reqnctapercluster": ((16, 16, 16), 16, "CTAs"),
}


def _launch(function: Function) -> Iterable[Finding]:
    """Sizes that the function's directives demand and no launch can have."""
    for word, numbers in function.performance.items():
        if word not in _LAUNCHES:
            continue
        most, product, what = _LAUNCHES[word]
        if prod(numbers) > product or not all(0 < n <= m for n, m in zip(numbers, most, strict=False)):
            limits = ", ".join(map(str, most))
            yield function.line, (f".{word}: must be from 1 to {limits} {what}, {product} together "
                                  f"(got {', '.join(map(str, numbers))})")  # fmt: skip


class _FunctionCheck:
    """One function: its statements in order, and what was found."""

    def __init__(
        self,
        module: Module,
        function: Function,
        outside: dict[str, Variable | Function],
        variables: dict[str, Variable],
        target: Target | None,
    ) -> None:
        self.module, self.function, self.target = module, function, target
        self.found: list[Finding] = []
        self.names = Names(outside, self.report, self.demand)
        self.flat: list[Instruction | Label] = []
        self.variables = ChainMap[str, Variable]({}, variables)

    def run(self, lint: bool, limits: Mapping[str, int], loops: Mapping[str, str]) -> list[Finding]:
        for parameter in (*self.function.returns, *self.function.params):
            self.names.declare(parameter, set())
            self.variables[parameter.name] = parameter
        self.found += _launch(self.function)
        self.body(self.function.body or ())
        total = sum(self.names.shared.values())
        if total > STATIC_SHARED_LIMIT:
            remedy = "declare it extern and pass its size at the launch"
            self.report(
                self.function.line, f"static shared memory: at most {STATIC_SHARED_LIMIT} bytes (got {total}); {remedy}"
            )
        if lint and not self.found:  # the rules count on operands being there
            self.found += backward_branches(self.flat)
            self.found += lone_turns(self.flat, loops) if loops else ()
            self.found += narrow_addresses(self.flat, limits)
            self.found += wild_accesses(self.flat, self.variables)
            self.found += unwritten_reads(self.flat)
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
            self.report(line, f"{what} needs {demand} because of {word}; {' and '.join(lacks)}")

    def body(self, items: tuple[Statement, ...]) -> None:
        self.names.enter(items)
        here: set[str] = set()
        for item in items:
            if type(item) is Instruction:
                self.flat.append(item)
                try:
                    self.instruction(item)
                except UNREADABLE as wrong:
                    if isinstance(wrong, PtxgenError):
                        raise
                    self.report(item.line, unreadable(wrong))
            elif type(item) is Label:
                self.flat.append(item)
            elif type(item) is Variable:
                self.names.declare(item, here)
                self.variables[item.name] = item
            elif type(item) is Scope:
                self.body(item.items)
        self.names.leave()

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
