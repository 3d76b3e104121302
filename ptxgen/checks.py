"""Whether parsed PTX is legal: forms, operands, declarations, what target and version have. Finds all, raises once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ptxgen.check_lint import Finding, backward_branches, narrow_addresses
from ptxgen.errors import IsaError
from ptxgen.isa import Form, Slot, lookup, special_register
from ptxgen.isa.form import accepted_registers, type_bits
from ptxgen.isa.pattern import OLDEST, Demand
from ptxgen.nodes import (
    Address,
    Function,
    Group,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Scope,
    Statement,
    Symbol,
    Variable,
    Vector,
)
from ptxgen.requires import describe, own_target, variable_bytes
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
            inside = _FunctionCheck(module, item, outside, where)
            found = inside.run(lint, limits or {})
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
    """One function: the names in scope, and what was found."""

    def __init__(self, module: Module, function: Function, outside: dict[str, Variable | Function],
                 target: Target | None) -> None:  # fmt: skip
        self.module, self.function, self.target = module, function, target
        self.outside = outside
        self.found: list[Finding] = []
        self.registers: dict[str, str] = {}  # name -> type; parametrised ones are added when first met
        self.counted: dict[str, tuple[str, int]] = {}  # stem of %r<n> -> type, n
        self.symbols: dict[str, Variable] = {}
        self.labels: frozenset[str] = frozenset()
        self.flat: list[Instruction | Label] = []
        self.refusals: dict[str, str] = {}
        self.shared: dict[str, int] = {}

    def run(self, lint: bool, limits: Mapping[str, int]) -> list[Finding]:
        for parameter in (*self.function.returns, *self.function.params):
            self.declare(parameter, set())
        self.body(self.function.body or ())
        total = sum(self.shared.values())
        if total > STATIC_SHARED_LIMIT:
            self.add(self.function.line, f"static shared memory: at most {STATIC_SHARED_LIMIT} bytes (got {total}); "
                                         "declare it extern and pass its size at the launch")  # fmt: skip
        if lint and not self.found:  # the rules count on operands being there
            self.found += backward_branches(self.flat)
            self.found += narrow_addresses(self.flat, limits)
        return self.found

    def add(self, line: int, what: str) -> None:
        self.found.append((line, what))

    # -- names ------------------------------------------------------------------------------------------------------

    def body(self, items: tuple[Statement, ...]) -> None:
        outer = self.registers, self.counted, self.symbols, self.labels
        self.registers, self.counted, self.symbols = dict(outer[0]), dict(outer[1]), dict(outer[2])
        labels = [item for item in items if type(item) is Label]
        names = {item.name for item in labels}
        if len(names) < len(labels):
            self.twice(labels)
        self.labels = outer[3] | names
        here: set[str] = set()
        for item in items:
            if type(item) is Instruction:
                self.flat.append(item)
                self.instruction(item)
            elif type(item) is Label:
                self.flat.append(item)
            elif type(item) is Variable:
                self.declare(item, here)
            elif type(item) is Scope:
                self.body(item.items)
        self.registers, self.counted, self.symbols, self.labels = outer

    def twice(self, labels: list[Label]) -> None:
        seen: set[str] = set()
        for label in labels:
            if label.name in seen:
                self.add(label.line, f"label {label.name} is declared twice")
            seen.add(label.name)

    def declare(self, variable: Variable, here: set[str]) -> None:
        name = variable.name
        if name in here:
            self.add(variable.line, f"{name} is declared twice")
        here.add(name)
        if variable.space != "reg":
            self.symbols[name] = variable
            self.count_shared(variable)
        elif variable.count:
            self.counted[name] = (variable.type, variable.count)
        elif variable.vector:
            self.registers[name] = f"v{variable.vector}.{variable.type}"
            self.registers.update({f"{name}.{part}": variable.type for part in "xyzwrgba"})
        else:
            self.registers[name] = variable.type

    def count_shared(self, variable: Variable) -> None:
        if variable.space == "shared":
            self.shared[variable.name] = variable_bytes(variable)

    def type_of(self, name: str, line: int) -> str | None:
        """The declared type of a register met for the first time; None (and a finding) when there is none."""
        stem = name.rstrip("0123456789")
        declared = self.counted.get(stem)
        if declared and stem != name and int(name[len(stem) :]) < declared[1]:
            self.registers[name] = declared[0]
            return declared[0]
        for shorter in range(len(name) - 1, len(stem), -1):  # %kv2<4>: the stem ends in a digit
            declared = self.counted.get(name[:shorter])
            if declared and int(name[shorter:]) < declared[1]:
                self.registers[name] = declared[0]
                return declared[0]
        special = special_register(name)
        if special is not None:
            self.available(name, Demand(special.ptx, special.sm), name, line)
            self.registers[name] = special.type
            return special.type
        bound = self.counted.get(stem)
        self.add(line, f"register {name} is not declared" + (f"; there are {stem}<{bound[1]}>" if bound else ""))
        return None

    def available(self, what: str, demand: Demand, word: str, line: int) -> None:
        """A finding when `.version` or the target lacks what is asked."""
        version, target = self.module.version, self.target
        lacks = []
        if demand.ptx > version:
            lacks.append(f".version is {version[0]}.{version[1]}")
        if target is not None and not target.includes_any(demand.sm):
            lacks.append(f"the target is {target}")
        if lacks:
            needs = describe(demand)
            self.refusals[what] = f"{what} needs {needs} because of {word}; {' and '.join(lacks)}"
            self.add(line, self.refusals[what])

    # -- instructions -----------------------------------------------------------------------------------------------

    def instruction(self, item: Instruction) -> None:
        guard = item.guard
        if guard is not None:
            declared = self.registers.get(guard.register) or self.type_of(guard.register, item.line)
            if declared is not None and declared != "pred":
                self.add(item.line, f"guard {guard.register} must be a predicate (got .{declared})")
        try:
            form = lookup(item.opcode)
        except IsaError as unknown:
            self.add(item.line, str(unknown))
            return
        operands = item.operands
        count = len(operands)
        if form.also or len(form.operands) != count:
            chosen = self.choose(form, item)
            if chosen is None:
                return
            form = chosen
        if form.sm or form.ptx > self.module.version:
            ptx = form.ptx_on(self.target) if self.target else form.ptx
            self.available(form.opcode, Demand(ptx, form.sm), form.because, item.line)
        registers = self.registers
        for index, slot in enumerate(form.operands[:count]):
            operand = operands[index]
            if type(operand) is Register and "reg" in slot.kinds:
                name = operand.name
                declared = registers.get(name) or (self.type_of(name, item.line) if name != "_" else "")
                if declared in slot.accepts:
                    if slot.writes and name[0] == "%" and special_register(name):
                        self.add(item.line, f"operand {index + 1}: {name} is read-only")
                    continue
                if declared is None:
                    continue
            wrong = self.operand(operand, slot, item, form)
            if wrong:
                self.add(item.line, f"{item.opcode}: operand {index + 1} {wrong}")

    def choose(self, form: Form, item: Instruction) -> Form | None:
        """The form of this opcode whose operands fit best; None (and a finding) when the number fits none."""
        count = len(item.operands)
        fitting = [each for each in (form, *form.also) if each.takes(count)]
        if not fitting:
            ranges = (range(len(f.operands) - f.optional, len(f.operands) + 1) for f in (form, *form.also))
            counts = sorted({number for each in ranges for number in each})
            self.add(item.line, f"{item.opcode}: takes {' or '.join(map(str, counts))} operands (got {count})")
            return None
        for each in fitting[:-1]:
            if not any(self.quietly(o, s, item, each) for o, s in zip(item.operands, each.operands, strict=False)):
                return each
        return fitting[-1]

    def quietly(self, operand: Operand, slot: Slot, item: Instruction, form: Form) -> str | None:
        kept = len(self.found)
        wrong = self.operand(operand, slot, item, form)
        del self.found[kept:]
        return wrong

    def operand(self, operand: Operand, slot: Slot, item: Instruction, form: Form) -> str | None:
        """What is wrong with one operand, or None."""
        kinds = slot.kinds
        if isinstance(operand, Register):
            return self.register(operand, slot, item)
        if isinstance(operand, Immediate):
            return _immediate(operand, slot, form) if "imm" in kinds else f"must be {slot} (got {operand})"
        if isinstance(operand, Address):
            return self.address(operand, slot, item)
        if isinstance(operand, Vector):
            return self.vector(operand, slot, item, form)
        if isinstance(operand, Symbol):
            return self.symbol(operand, slot, form)
        if isinstance(operand, Negated):
            negatable = "pred" in kinds
            return self.register(operand.operand, slot, item) if negatable else f"cannot be negated (got {operand})"
        if isinstance(operand, Pair):
            return self.pair(operand, slot, item)
        if isinstance(operand, Group):
            return self.group(operand, item) if "group" in kinds else f"must be {slot} (got {operand})"
        return None

    def register(self, operand: Register, slot: Slot, item: Instruction) -> str | None:
        name = operand.name
        if name == "_":
            return None if "sink" in slot.kinds else "cannot be the sink _"
        declared = self.registers.get(name) or self.type_of(name, item.line)
        if declared is None:
            return None
        if "label" in slot.kinds:
            return None if "reg" in slot.kinds else f"must be a label (got {name})"
        if declared == f"v{slot.vector}.{slot.type}":
            return None
        if "reg" not in slot.kinds and "pred" not in slot.kinds and "vec" not in slot.kinds:
            return f"must be {slot} (got register {name})"
        if slot.vector:
            return f"must be {slot} (got register {name})"
        if declared not in slot.accepts:
            return f"must be .{slot.type} (got {name}, a .{declared} register)"
        return None

    def pair(self, operand: Pair, slot: Slot, item: Instruction) -> str | None:
        if "pair" not in slot.kinds:
            return f"cannot be a pair (got {operand})"
        for part, accepts in ((operand.first, slot.accepts), (operand.second, frozenset({"pred"}))):
            if part.name == "_":
                continue
            declared = self.registers.get(part.name) or self.type_of(part.name, item.line)
            if declared is not None and declared not in accepts:
                return f"of type .{slot.type} with a predicate (got {part.name}, a .{declared} register)"
        return None

    def vector(self, operand: Vector, slot: Slot, item: Instruction, form: Form) -> str | None:
        if "vec" not in slot.kinds:
            return f"must be {slot} (got {operand})"
        count = len(operand.items)
        if slot.vector:
            if count != slot.vector:
                return f"must have {slot.vector} elements (got {count})"
            wrongs = (self.element(each, slot, slot.accepts, item) for each in operand.items)
            return next((wrong for wrong in wrongs if wrong), None)
        bits, left = type_bits(slot.type), type_bits(slot.type) % count
        if left or bits // count not in (8, 16, 32, 64):
            return f"of {bits} bits cannot be packed from {count} elements"
        packed = accepted_registers(f"b{bits // count}", False)
        wrongs = (self.element(each, slot, packed, item) for each in operand.items)
        return next((wrong for wrong in wrongs if wrong), None)

    def element(self, operand: Operand, slot: Slot, accepts: frozenset[str], item: Instruction) -> str | None:
        if isinstance(operand, Register):
            if operand.name == "_":
                return None if slot.writes else "cannot hold the sink _"
            declared = self.registers.get(operand.name) or self.type_of(operand.name, item.line)
            if declared is None or declared in accepts:
                return None
            return f"has an element that does not fit .{slot.type} (got {operand}, a .{declared} register)"
        if isinstance(operand, Immediate) and "imm" in slot.kinds:
            return None
        return f"has an element that is no register (got {operand})"

    def address(self, operand: Address, slot: Slot, item: Instruction) -> str | None:
        if "addr" not in slot.kinds:
            return f"must be {slot} (got {operand})"
        given = len(operand.coordinates.items) if operand.coordinates else 0
        if given != slot.vector:
            return f"must have {slot.vector} coordinates (got {given})" if slot.vector else "takes no coordinates"
        base = operand.base
        if isinstance(base, Register):
            declared = self.registers.get(base.name) or self.type_of(base.name, item.line)
            if declared is not None and declared not in slot.accepts:
                return f"must be a {slot}: a .u64 register (got {base}, a .{declared} register)"
        elif isinstance(base, Symbol):
            variable = self.variable(base.name)
            if variable is None:
                return f"names {base.name}, which is not declared"
            space = slot.space.partition("::")[0]
            if space and isinstance(variable, Variable) and variable.space.partition("[")[0] not in (space, "reg"):
                return f"must be in .{space} (got {base.name}, which is in .{variable.space})"
        return None

    def variable(self, name: str) -> Variable | Function | None:
        found = self.symbols.get(name)
        if found is not None:
            return found
        outer = self.outside.get(name)
        if isinstance(outer, Variable):
            self.count_shared(outer)
        return outer

    def symbol(self, operand: Symbol, slot: Slot, form: Form) -> str | None:
        kinds, name = slot.kinds, operand.name
        if "label" in kinds:
            known = name in self.labels or (form.name == "call" and self.variable(name) is not None)
            return None if known else f"names {name}, which is not declared"
        if not ({"imm", "sym"} & kinds) or slot.type[0] == "f" or type_bits(slot.type) < 32:
            return f"must be {slot} (got {operand})"
        known = self.variable(name) is not None or name in self.labels
        return None if known else f"names {name}, which is not declared"

    def group(self, operand: Group, item: Instruction) -> str | None:
        for each in operand.items:
            if isinstance(each, Symbol) and self.variable(each.name) is None:
                return f"names {each.name}, which is not declared"
            if isinstance(each, Register) and each.name != "_" and not self.registers.get(each.name):
                self.type_of(each.name, item.line)
        return None


_MOVES = frozenset({"mov", "st", "ld"})


def _immediate(operand: Immediate, slot: Slot, form: Form) -> str | None:
    """Whether a literal fits: floats for float types, integers of no more bits than the type has."""
    kind = slot.type[0]
    if operand.is_float:
        exact = operand.text.lower().lstrip("-")[:2] in ("0f", "0d")
        return None if kind == "f" or (kind == "b" and exact) else f"must be an integer (got {operand})"
    if kind == "f" and form.name not in _MOVES:
        return f"must be a floating-point literal, such as 0f{0x3F800000:08X} (got {operand})"
    if slot.type == "pred" or slot.relaxed:
        return None
    value, bits = int(operand.value), type_bits(slot.type)
    return None if -(1 << bits - 1) <= value < 1 << bits else f"does not fit {bits} bits (got {operand})"
