"""What a PTX text demands: lowest PTX ISA version and target, the lines that force them, and who can load it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ptxgen.checks.names import Names
from ptxgen.checks.operand import choose
from ptxgen.errors import IsaError, SpecError, brief
from ptxgen.isa import Form, lookup, special_register
from ptxgen.isa.pattern import OLDEST, Demand, strongest
from ptxgen.nodes import Address, Directive, Function, Instruction, Module, Register, Variable, Vector, flat
from ptxgen.nodes.sizes import parameter_bytes
from ptxgen.targets import Target, driver_for_ptx, own_target, ptx_of_driver, target_of_capability
from ptxgen.targets import target as parse_target

IsaVersion = tuple[int, int]
Because = tuple[int, str, str]

_PERFORMANCE = {
    "reqnctapercluster": Demand((7, 8), ("sm_90",)),
    "explicitcluster": Demand((7, 8), ("sm_90",)),
    "maxclusterrank": Demand((7, 8), ("sm_90",)),
    "blocksareclusters": Demand((9, 0), ("sm_90",)),
    "abi_preserve": Demand((9, 0), ()),
    "abi_preserve_control": Demand((9, 0), ()),
}
_DIRECTIVES = {"alias": Demand((6, 3), ())}
_PRAGMAS = {
    "used_bytes_mask": Demand((8, 3), ()),
    "frequency": Demand((9, 0), ()),
    "enable_smem_spilling": Demand((9, 0), ("sm_75",)),
}
_LARGE_PARAMETERS = Demand((8, 1), ())  # more than 4352 bytes of kernel parameters
_B128 = Demand((8, 3), ())


@dataclass(frozen=True, slots=True)
class Requirements:
    """The lowest `.version` of a text as it stands (`ptx`; its `.target` may force it) and of its instructions alone
    (`code_ptx`), and the targets that these need: `sm` are alternatives (`()`: any target).

    `because` holds (line, word, demand) for what forces them, one entry an opcode or word: the first line that has it.
    """

    ptx: IsaVersion
    sm: tuple[str, ...]
    because: tuple[Because, ...]
    code_ptx: IsaVersion = OLDEST

    def __str__(self) -> str:
        code = f"PTX ISA {_dotted(self.code_ptx)}, {' or '.join(self.sm) or 'any target'}"
        return code if self.ptx == self.code_ptx else f"PTX ISA {_dotted(self.ptx)}; its instructions alone {code}"


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """Whether a driver and a GPU load a text, and every reason why not."""

    ok: bool
    text: str
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.text


def _dotted(version: IsaVersion) -> str:
    return f"{version[0]}.{version[1]}"


def requirements(module: Module, target: str | Target | None = None) -> Requirements:
    """The lowest PTX ISA version (on a target; default: the module's own) and target that all its lines accept.

    Raises `IsaError` with file, line and text for each instruction that the table does not know.
    """
    if not isinstance(module, Module):
        raise SpecError(f"requirements: must be a module, as parse makes it of a text (got {brief(module)})")
    where = own_target(module.targets) if target is None else parse_target(target)
    first: dict[str, tuple[int, Demand]] = {}
    unknown: list[str] = []
    for line, word, demand in _demands(module, where, unknown):
        first.setdefault(word, (line, demand))
    if unknown:
        raise IsaError("\n".join(unknown))
    code: IsaVersion = OLDEST
    sm: tuple[str, ...] = ()
    for _, demand in first.values():
        code, sm = max(code, demand.ptx), strongest(sm, demand.sm)
    ptx = max(code, where.lowest_ptx) if where else code
    because = [
        (line, word, str(demand))
        for word, (line, demand) in sorted(first.items(), key=lambda item: item[1][0])
        if (demand.ptx == code and code > OLDEST) or (demand.sm and strongest(demand.sm, sm) == demand.sm)
    ]
    if where is not None and where.lowest_ptx == ptx > OLDEST:
        because.insert(0, (module.line_of(".target"), f".target {where}", str(Demand(ptx, ()))))
    return Requirements(ptx, sm, tuple(because), code)


def lowest_version(module: Module, target: Target) -> IsaVersion:
    """The lowest `.version` under which the module can name this target and use its instructions."""
    return requirements(module, target).ptx


def spare_suffix(module: Module, needs: Requirements) -> str | None:
    """A sentence where the suffix of the module's target costs portability and no instruction needs it."""
    own = own_target(module.targets)
    if own is None or not own.suffix or not own.base.includes_any(needs.sm):
        return None
    runs = f"{own.major}.{own.minor} alone" if own.suffix == "a" else f"{own.major}.{own.minor} and later {own.major}.x"
    return (f"no instruction needs the suffix of {own}, which runs on compute capability {runs}; "
            f"{own.base} would do, and run on later GPUs too")  # fmt: skip


def _demands(module: Module, target: Target | None, unknown: list[str]) -> Iterator[tuple[int, str, Demand]]:
    """Every demand above the oldest, with its line and the word that makes it; `unknown` takes findings."""
    for item in module.items:
        if isinstance(item, Function):
            yield from _of_function(item, module, target, unknown)
        elif isinstance(item, Directive) and item.name in _DIRECTIVES:
            yield item.line, f".{item.name}", _DIRECTIVES[item.name]


def _of_function(
    function: Function, module: Module, target: Target | None, unknown: list[str]
) -> Iterator[tuple[int, str, Demand]]:
    for word in function.performance:
        if word in _PERFORMANCE:
            yield function.line, f".{word}", _PERFORMANCE[word]
    if function.noreturn:
        yield function.line, ".noreturn", Demand((6, 4), ())
    if function.kind == "entry" and parameter_bytes(function.params) > 4352:
        yield function.line, "more than 4352 bytes of parameters", _LARGE_PARAMETERS
    names = Names({}, lambda line, what: None, lambda what, demand, word, line: None)
    for parameter in (*function.returns, *function.params):
        names.declare(parameter, set())
    forms: dict[str, Form | None] = {}
    for statement in flat(function.body or ()):
        if isinstance(statement, Instruction):
            opcode = statement.opcode
            if opcode not in forms:
                forms[opcode] = _form(opcode)
            form = forms[opcode]
            if form is None:
                unknown.append(_unknown(statement, module, function))
                continue
            if form.also:
                form = choose(names, form, statement.operands, statement.line) or form
            if form.sm or form.ptx > OLDEST:
                yield statement.line, opcode, Demand(form.ptx_on(target) if target else form.ptx, form.sm)
            yield from _of_operands(statement)
        elif isinstance(statement, Directive):
            for word, demand in _PRAGMAS.items():
                if statement.name == "pragma" and word in statement.text:
                    yield statement.line, f'.pragma "{word}"', demand
            if statement.name == "loc" and "inlined_at" in statement.text:
                yield statement.line, ".loc with inlined_at", Demand((7, 2), ())
        elif isinstance(statement, Variable):
            names.declare(statement, set())
            if statement.type == "b128":
                yield statement.line, ".b128", _B128


def _form(opcode: str) -> Form | None:
    try:
        return lookup(opcode)
    except IsaError:
        return None


def _unknown(instruction: Instruction, module: Module, function: Function) -> str:
    """The finding about an opcode that the table does not know."""
    try:
        lookup(instruction.opcode)
    except IsaError as unknown:
        return module.finding(instruction.line, str(unknown), function)
    raise AssertionError(instruction.opcode)


def _of_operands(instruction: Instruction) -> Iterator[tuple[int, str, Demand]]:
    for operand in instruction.operands:
        items = operand.items if isinstance(operand, Vector) else (operand,)
        for item in items:
            if isinstance(item, Register):
                special = special_register(item.name)
                if special and (special.sm or special.ptx > OLDEST):
                    yield instruction.line, item.name, Demand(special.ptx, special.sm)
            elif isinstance(item, Address) and item.unified:
                yield instruction.line, ".unified", Demand((8, 0), ("sm_90",))


# -- loading -----------------------------------------------------------------------------------------------------------

_HEAD = re.compile(r"^\s*\.version\s+(\d+)\.(\d+).*?^\s*\.target\s+sm_(\d+)(\d)([af]?)\b", re.DOTALL | re.MULTILINE)


def explain_load(text: str, driver_version: int, cc: tuple[int, int]) -> LoadVerdict:
    """Whether a driver (`13000` is 13.0) on a GPU of this compute capability loads a PTX text, judged offline.

    The verdict's `.text` says that it loads, or every reason why not: PTX too new and the driver it needs, a suffix
    that binds it to another GPU, a GPU too old. Raises `IsaError` when the text has no `.version` and `.target`.
    """
    if not isinstance(text, str):
        raise SpecError(f"explain_load: must be a PTX text (got {brief(text)})")
    head = _HEAD.search(text)
    if head is None:
        raise IsaError("a module begins with .version and .target sm_NN")
    version = (int(head[1]), int(head[2]))
    named = Target(int(head[3]), int(head[4]), head[5])
    reasons = [*_driver_reasons(version, driver_version), *_gpu_reasons(named, cc)]
    where = f"driver {_driver(driver_version)} on compute capability {cc[0]}.{cc[1]}"
    what = f"PTX {_dotted(version)} for {named}"
    if not reasons:
        return LoadVerdict(True, f"loads: {what}, {where}")
    return LoadVerdict(False, f"does not load: {what}, {where}: " + "; ".join(reasons), tuple(reasons))


def _driver(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _driver_reasons(version: IsaVersion, driver_version: int) -> Iterator[str]:
    newest = ptx_of_driver(driver_version)
    if version <= newest:
        return
    needed = driver_for_ptx(version)
    if needed is not None and needed <= driver_version:
        return
    wants = f"driver {_driver(needed)} or newer is needed" if needed else "no driver known to this version loads it"
    yield f"PTX too new: this driver loads PTX ISA up to {_dotted(newest)}; {wants}"


def _gpu_reasons(named: Target, cc: tuple[int, int]) -> Iterator[str]:
    if named.runs_on(cc):
        return
    here = f"{cc[0]}.{cc[1]}"
    if cc < (named.major, named.minor):
        yield f"GPU too old: {named} code needs compute capability {named.major}.{named.minor} or newer (got {here})"
        return
    bound = f"compute capability {named.major}.{named.minor} alone"
    if named.suffix == "f":
        bound = f"compute capability {named.major}.{named.minor} and later {named.major}.x"
    best = target_of_capability(*cc)
    yield f"suffix mismatch: {named} code runs on {bound} (got {here}); generate for {named.base} or {best}"
