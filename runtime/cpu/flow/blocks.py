"""What a flow is made of: resolved instructions, basic blocks, called functions. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxgen import nodes
from ptxgen.runtime.cpu.flow.registry import Family, family_of
from ptxgen.runtime.cpu.flow.symbols import Reg, Scope, Var

Source = nodes.Operand | Reg


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

    @property
    def pure(self) -> bool:
        """Whether what it writes is as undefined as what it reads, and that is all: so too for parameters of calls."""
        if self.words[:2] in (("ld", "param"), ("st", "param")):
            place = self.operands[self.words[0] == "ld"]
            return isinstance(place, nodes.Address) and isinstance(place.base, nodes.Symbol)
        return self.family is not None and self.family.pure

    def with_words(self, words: tuple[str, ...], operands: tuple[Source, ...]) -> Op:
        """Another instruction in this one's place; what it reads and writes is for the caller to say."""
        return Op(words, operands, self.scope, self.line, family_of(words), text=self.text)


@dataclass(slots=True, eq=False)
class Block:
    """Straight-line instructions; only the last may jump or wait. `number` is its rank: lower runs first."""

    key: tuple[int, str]
    ops: list[Op] = field(default_factory=list)
    next: Block | None = None  # where it falls through to
    cut: bool = False  # ends for its length alone: nothing else leads to `next`
    successors: list[Block] = field(default_factory=list)
    number: int = 0
    live_out: int = 0  # bit set of register indices
    defined_in: int = 0  # registers that every path to here has written


@dataclass(slots=True, eq=False)
class Activation:
    """What a call of a function takes from the stack: where the stack ended before, where its own memory begins, and
    how much that is."""

    before: Reg
    begin: Reg
    size: int = 0
    align: int = 16


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
    order: int = 0  # in which the functions were begun
    complete: bool = False  # whether its blocks are all there
    back: Called | None = None  # the first function that was being built then to which its calls lead
    activation: Activation | None = None  # of a function that may call itself, or that has `alloca`


@dataclass(slots=True, eq=False)
class Frame:
    """What one call pushes and pops; `results` are the registers that the callees return in."""

    push: Op
    pop: Op
    results: frozenset[int]
