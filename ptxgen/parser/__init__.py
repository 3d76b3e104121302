"""PTX text to nodes: whatever nvcc, Triton and ptxgen emit. Checks no rules: that is `ptxgen.checks`.

Grammar: PTX ISA 9.0, "Syntax" and "Directives". A plain instruction is one regular expression; the rest has its reader.
"""

from __future__ import annotations

import re

from ptxgen.errors import UNREADABLE, IsaError, SpecError, brief, unreadable
from ptxgen.nodes import (
    Address,
    Directive,
    Function,
    Group,
    Guard,
    Instruction,
    Label,
    Module,
    Operand,
    Register,
    Scope,
    Statement,
    Symbol,
    Variable,
    Vector,
)
from ptxgen.nodes.scoped import Scoped
from ptxgen.parser.declaration import LINKAGE, SPACES, parse_parameters, parse_variables
from ptxgen.parser.limits import MOST_MODIFIERS, MOST_NESTED, MOST_NUMBERS, whole
from ptxgen.parser.operand import evaluate, parse_operand, split_operands
from ptxgen.parser.reader import Reader

_INSTRUCTION = re.compile(r"(?:@(!?)\s*([%\w$]+)\s+)?([a-z]\w*(?:(?:\.|::)\w+)*)(?![\w.]|\s*:)([^;]*);\s*")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)\s*")
_WORD = re.compile(r"\.(\w+)")
_SCALAR = re.compile(r"(?:ld|ldu|st|atom|red)\.(?!.*\.v[248]\b)")  # accesses of one element
_TO_LINE_END = frozenset({"loc", "file"})
_HEADER = re.compile(
    r"\s*\.version\s+(\d+)\.(\d+)\s+\.target\s+(\w+(?:\s*,\s*\w+)*)\s*(?:\.address_size\s+(\d+)\s*)?(?=\.|$)"
)
_FUNCTION = re.compile(r"((?:\.(?:visible|extern|weak)\s+)*)\.(entry|func)\b\s*")
_NUMBERED = re.compile(r"\s*\.(\w+)\s*((?:\d+\s*,?\s*)*)")


class UnreadableError(IsaError):
    """A text has statements that cannot be read; `module` is what the others are, None where the text breaks off."""

    def __init__(self, said: str, module: Module | None) -> None:
        super().__init__(said)
        self.module = module


class _BrokenOffError(IsaError):
    """There is no reading on behind this."""


def parse(text: str, file: str = "<ptx>", about: str = "") -> Module:
    """The module that a PTX text holds; `about` says in findings what it is.

    Raises `IsaError` as `about, file:line: what | text`, a line for each statement that cannot be read; where nothing
    is said about the text, the function is named.
    """
    if not isinstance(text, str):
        raise SpecError(f"parse: must be a PTX text (got {brief(text)})")
    parser = _Parser(text, file, about)
    try:
        module: Module | None = parser.module()
    except IsaError as wrong:
        parser.found.append(str(wrong))
        module = None
    except UNREADABLE as wrong:  # scopes within scopes without end; a number of thousands of digits
        parser.found.append(parser.finding(unreadable(wrong)))
        module = None
    if parser.found or module is None:
        raise UnreadableError("\n".join(parser.found), module)
    return module


class _Parser(Reader):
    """The grammar, over one text being read."""

    def __init__(self, text: str, file: str, about: str) -> None:
        super().__init__(text, file, about)
        self.plain: Scoped[bool] = Scoped()  # registers in scope whose names lack the %
        self.has_plain = False  # whether the function has any
        self.depth = 0  # of scopes within scopes

    def module(self) -> Module:
        self.text = self.without_comments()
        header = _HEADER.match(self.text)
        if header is None:
            self.move(0)
            self.fail("a module begins with .version and .target")
        self.move(header.end())
        targets = tuple(word.strip() for word in header[3].split(","))
        items: list[Function | Variable | Directive] = []
        size = whole(header[4] or "32", ".address_size")
        while self.at < len(self.text):
            if self.text.startswith(".address_size", self.at):
                size = self.address_size()
                continue
            function = _FUNCTION.match(self.text, self.at)
            if function:
                items.append(self.function(function))
            else:
                items += self.outside()
        version = (whole(header[1], ".version"), whole(header[2], ".version"))
        return Module(version, targets, size, tuple(items), self.source, self.file, self.about)

    def address_size(self) -> int:
        found = re.compile(r"\.address_size\s+(\d+)").match(self.text, self.at)
        if found is None:
            self.fail(".address_size needs a number")
        self.move(found.end())
        return whole(found[1], ".address_size")

    def outside(self) -> list[Variable | Directive]:
        """A variable or directive between functions."""
        word = _WORD.match(self.text, self.at)
        if word is None:
            self.fail("expected a directive, a variable or a function")
        return self.variables() if word[1] in SPACES | LINKAGE else [self.directive(word[1])]

    def variables(self) -> list[Variable | Directive]:
        line = self.line
        text = self.until(";", "a declaration").strip()
        try:
            return list(parse_variables(text, line))
        except IsaError as wrong:
            self.fail(str(wrong), line)

    def directive(self, name: str) -> Directive:
        line = self.line
        self.move(self.at + len(name) + 1)
        if name in _TO_LINE_END:
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            text = " ".join(self.text[self.at : stop].split())
            self.move(stop)
            return Directive(name, text, line)
        if name == "section":
            opening = self.text.find("{", self.at)
            if opening < 0:
                self.fail(".section: { is missing")
            head = self.text[self.at : opening].strip()
            self.move(opening)
            return Directive(name, f"{head} {{{self.braces('{', '}')}}}", line)
        return Directive(name, " ".join(self.until(";", f".{name}").split()), line)

    # -- functions --------------------------------------------------------------------------------------------------

    def function(self, head: re.Match[str]) -> Function:
        line = self.line
        self.move(head.end())
        returns = self.parameters()
        name = _LABEL_NAME.match(self.text, self.at)
        if name is None:
            self.fail(f".{head[2]} needs a name")
        self.move(name.end())
        self.within = Function(head[2], name[0]).title
        params = self.parameters()
        self.plain, self.has_plain = Scoped(), False
        for each in (*returns, *params):
            self.declared(each)
        performance, pragmas, noreturn = self.performance()
        linkage = tuple(word[1:] for word in head[1].split())
        body: tuple[Statement, ...] | None = None
        if self.text.startswith(";", self.at):
            self.move(self.at + 1)
        elif self.text.startswith("{", self.at):
            self.move(self.at + 1)
            body = (*pragmas, *self.body())
        else:
            self.fail(f"{name[0]}: expected a body or ;")
        self.within = ""
        return Function(head[2], name[0], params, returns, body, performance, linkage, noreturn, line)

    def parameters(self) -> tuple[Variable, ...]:
        if not self.text.startswith("(", self.at):
            return ()
        line = self.line
        inner = self.braces("(", ")")
        try:
            return parse_parameters(inner, line)
        except IsaError as wrong:
            self.fail(str(wrong), line)

    def performance(self) -> tuple[dict[str, tuple[int, ...]], list[Directive], bool]:
        """Directives between a function's parameters and its body."""
        found: dict[str, tuple[int, ...]] = {}
        pragmas: list[Directive] = []
        noreturn = False
        while match := _NUMBERED.match(self.text, self.at):
            if match[1] == "pragma":
                pragmas.append(self.directive("pragma"))
                continue
            self.move(match.end())
            if match[1] == "noreturn":
                noreturn = True
            else:
                numbers = tuple(whole(n, f".{match[1]}") for n in re.findall(r"\d+", match[2]))
                if len(numbers) > MOST_NUMBERS:
                    self.fail(f".{match[1]}: at most {MOST_NUMBERS} numbers (got {len(numbers):,})")
                found[match[1]] = numbers
        return found, pragmas, noreturn

    # -- bodies -----------------------------------------------------------------------------------------------------

    def body(self) -> tuple[Statement, ...]:
        """Statements up to the closing brace, which is eaten."""
        items: list[Statement] = []
        opened = self.line
        if self.depth == MOST_NESTED:
            raise _BrokenOffError(self.finding(f"braces: at most {MOST_NESTED} scopes nest (got one more)"))
        self.plain, self.depth = Scoped(self.plain), self.depth + 1
        while True:
            try:
                self.statements(items, opened)
            except _BrokenOffError:
                raise
            except IsaError as wrong:
                self.skip(wrong)
            else:
                assert self.plain.outer is not None
                self.plain, self.depth = self.plain.outer, self.depth - 1
                return tuple(items)

    def statements(self, items: list[Statement], opened: int) -> None:
        """Add the statements up to the closing brace, which is eaten; `opened` is the opening one's line."""
        text, instruction, add = self.text, _INSTRUCTION.match, items.append
        while True:
            self.begun = self.at
            match = instruction(text, self.at)
            if match:
                add(self.instruction(match))
                continue
            first = text[self.at : self.at + 1]
            if first == "}":
                self.move(self.at + 1)
                return
            if first == "{":
                line = self.line
                self.move(self.at + 1)
                add(Scope(self.body(), line))
            elif first == ".":
                items += self.inside()
            elif label := _LABEL.match(text, self.at):
                add(Label(label[1], self.line))
                self.move(label.end())
            elif first:
                self.fail("not a statement" if ";" in text[self.at :] else "; is missing")
            else:
                self.fail("{ without }", opened)

    def instruction(self, match: re.Match[str]) -> Instruction:
        negated, register, opcode, rest = match.groups()
        rest = rest.strip()
        line = self.line
        end = match.end()
        self.line = line + self.text.count("\n", self.at, end)
        self.at = end
        if opcode.count(".") > MOST_MODIFIERS:
            said = f"{opcode[:30]}…: an instruction has at most {MOST_MODIFIERS} modifiers (got {opcode.count('.'):,})"
            self.fail(said, line)
        try:
            if "{" in rest or "(" in rest or "[" in rest:
                parts = split_operands(rest)
                if "(" in rest and not opcode.startswith("call"):
                    parts = [str(evaluate(part)) if part[:1] == "(" else part for part in parts]
            elif rest:
                parts = [part.strip() for part in rest.split(",")]
            else:
                parts = []
            operands = tuple(map(parse_operand, parts))
            if "{" in rest and _SCALAR.match(opcode):  # Triton's braces around one register
                operands = tuple(o.items[0] if isinstance(o, Vector) and len(o.items) == 1 else o for o in operands)
        except IsaError as wrong:
            self.fail(str(wrong), line)
        except UNREADABLE as wrong:
            self.fail(unreadable(wrong), line)
        if self.has_plain:
            operands = tuple(self.named(operand) for operand in operands)
        guard = Guard(register, negated == "!") if register else None
        return Instruction(opcode, operands, guard, line)

    def inside(self) -> list[Variable | Directive]:
        """A declaration or directive within a body."""
        word = _WORD.match(self.text, self.at)
        if word is None:
            self.fail("not a statement")
        if word[1] not in SPACES | LINKAGE:
            return [self.directive(word[1])]
        found = self.variables()
        for each in found:
            if isinstance(each, Variable):
                self.declared(each)
        return found

    def declared(self, variable: Variable) -> None:
        """Note a register whose name lacks the %."""
        if variable.space == "reg" and variable.name[0] != "%":
            self.plain.declare(variable, True)
            self.has_plain = True

    def named(self, operand: Operand) -> Operand:
        """The operand with symbols that are registers in scope turned into registers."""
        if isinstance(operand, Symbol):
            known = not operand.offset and self.plain.find(operand.name)
            return Register(operand.name) if known else operand
        if isinstance(operand, Vector):
            return Vector(tuple(map(self.named, operand.items)))
        if isinstance(operand, Group):
            return Group(tuple(map(self.named, operand.items)))
        if isinstance(operand, Address) and isinstance(operand.base, Symbol) and self.plain.find(operand.base.name):
            return Address(Register(operand.base.name), operand.offset, operand.coordinates, operand.unified)
        return operand


_LABEL_NAME = re.compile(r"[A-Za-z_$%][\w$]*")
