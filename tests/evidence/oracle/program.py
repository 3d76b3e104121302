"""From parsed PTX to a flat list of blocks: calls inlined, names resolved, variables placed. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptxgen import nodes
from tests.evidence.oracle.memory import LOCAL, SHARED, Memory, OracleFault

WIDTH = {"pred": 1, "b128": 128} | {f"{k}{w}": w for k in "bsuf" for w in (8, 16, 32, 64)}
WIDTH |= {"f16x2": 32, "bf16": 16, "bf16x2": 32, "tf32": 32, "u16x2": 32, "s16x2": 32}
ENDS_BLOCK = ("bra", "brx", "ret", "exit", "trap")
# These wait, or need their lanes together: each is a block of its own, so that it can be tried again.
WAITS = ("bar", "barrier", "shfl", "vote", "match", "redux", "mma", "ldmatrix", "stmatrix", "movmatrix", "elect",
         "wgmma", "activemask")  # fmt: skip


@dataclass(frozen=True)
class Reg:
    """A register file entry."""

    index: int
    type: str


@dataclass(frozen=True)
class Special:
    """`%tid.x` and its kind."""

    name: str


@dataclass(frozen=True)
class Place:
    """A memory operand: a base (register or fixed generic address) and an offset in bytes."""

    base: Reg | int
    offset: int = 0
    coordinates: tuple[Any, ...] = ()


@dataclass
class Op:
    """A decoded instruction. `mods` are the words after the first; `targets` are block numbers of a branch."""

    name: str
    mods: tuple[str, ...]
    args: tuple[Any, ...]
    guard: tuple[Reg, bool] | None
    line: int
    targets: tuple[int | str, ...] = ()

    @property
    def type(self) -> str:
        """The last type among the modifiers."""
        return next((m for m in reversed(self.mods) if m in WIDTH or m in EXTRA_TYPES), "b32")

    def __contains__(self, word: str) -> bool:
        return word in self.mods


EXTRA_TYPES = frozenset({"e4m3x2", "e5m2x2", "e4m3", "e5m2"})


@dataclass
class Names:
    """What names mean within one function, scope by scope."""

    outer: Names | None
    known: dict[str, Any] = field(default_factory=dict)

    def find(self, name: str) -> Any:
        """The meaning of `name`, from the innermost scope outwards."""
        scope: Names | None = self
        while scope is not None:
            if name in scope.known:
                return scope.known[name]
            scope = scope.outer
        if name.startswith("%"):
            return Special(name)
        raise OracleFault(f"nothing is called {name}")


class Program:
    """One entry, ready to run: `blocks` of operations, register types, and sizes of shared and local memory."""

    def __init__(self, module: nodes.Module, entry: str, memory: Memory, dynamic_shared: int) -> None:
        self.module, self.memory = module, memory
        self.registers: list[str] = []
        self.shared_size = self.local_size = 0
        self.shared_at: dict[tuple[str, str], int] = {}
        self.ops: list[Op] = []
        self.labels: dict[str, int] = {}
        self.calls: list[str] = []
        function = module.entries[entry]
        self.names = Names(None)
        self._place_module_variables()
        self.param_sizes = [self._size(p) for p in function.params]
        top = Names(self.names)
        self.param_addresses = [memory.allocate(size) for size in self.param_sizes]
        for variable, address in zip(function.params, self.param_addresses, strict=True):
            top.known[variable.name] = address
        self._flatten(function, top, "")
        self._emit(Op("exit", (), (), None, 0))
        self._resolve_dynamic(dynamic_shared)
        self.blocks = self._split()

    # variables ----------------------------------------------------------------------------------------------------
    @staticmethod
    def _size(v: nodes.Variable) -> int:
        return WIDTH[v.type] // 8 * max(v.vector, 1) * int(np.prod(v.dims or (1,)))

    @staticmethod
    def _align(v: nodes.Variable) -> int:
        return max(v.align, WIDTH[v.type] // 8 * max(v.vector, 1))

    def _place_module_variables(self) -> None:
        placed = []
        for item in self.module.items:
            if not isinstance(item, nodes.Variable):
                continue
            if item.space == "shared":
                self.names.known[item.name] = self._shared(item, "")
            elif item.space in ("global", "const"):
                self.names.known[item.name] = self.memory.allocate(max(self._size(item), 1))
                placed.append(item)
        for item in placed:
            size = self._size(item)
            data = self._initial(item) if item.init is not None else b""
            self.memory.write(self.names.known[item.name], np.frombuffer(data.ljust(size, b"\0"), np.uint8))

    def _initial(self, v: nodes.Variable) -> bytes:
        kinds = {"f32": "f4", "f64": "f8"}
        kind = np.dtype(kinds.get(v.type, f"u{WIDTH[v.type] // 8}"))
        out = b""
        for item in v.init or ():
            if isinstance(item, nodes.Immediate):
                value = item.value
                out += np.array(value if kind.kind == "f" else int(value) % (1 << 8 * kind.itemsize), kind).tobytes()
            elif isinstance(item, nodes.Symbol):
                out += np.array(self.names.find(item.name) + item.offset, np.uint64).tobytes()
            else:
                raise OracleFault(f"initialiser of {v.name}: {item}")
        return out

    def _shared(self, v: nodes.Variable, owner: str) -> int | tuple[str, int]:
        key = (owner, v.name)
        if 0 in v.dims:
            return ("dynamic", 0)
        if key not in self.shared_at:
            start = -(-self.shared_size // self._align(v)) * self._align(v)
            self.shared_at[key] = SHARED + start
            self.shared_size = start + self._size(v)
        return self.shared_at[key]

    def _resolve_dynamic(self, dynamic: int) -> None:
        """Unsized shared arrays start together, after all static ones."""
        start = -(-self.shared_size // 1024) * 1024 if dynamic else self.shared_size
        self.shared_size = start + dynamic

        def fixed(value: object) -> object:
            if isinstance(value, tuple):
                return SHARED + start + value[1] if value[:1] == ("dynamic",) else tuple(fixed(v) for v in value)
            if isinstance(value, Place) and isinstance(value.base, tuple):
                return Place(SHARED + start + value.base[1], value.offset, value.coordinates)
            return value

        for op in self.ops:
            op.args = tuple(fixed(a) for a in op.args)

    def _register(self, type_: str) -> Reg:
        self.registers.append(type_)
        return Reg(len(self.registers) - 1, type_)

    def _declare(self, v: nodes.Variable, names: Names, function: nodes.Function) -> None:
        if v.space == "reg":
            for name in [f"{v.name}{i}" for i in range(v.count)] if v.count else [v.name]:
                names.known[name] = self._register(v.type)
        elif v.space == "shared":
            names.known[v.name] = self._shared(v, function.name)
        elif v.space in ("local", "param"):
            names.known[v.name] = self._local(v)
        elif v.space in ("global", "const"):
            names.known[v.name] = self.memory.allocate(max(self._size(v), 1))
            data = self._initial(v) if v.init is not None else b""
            self.memory.write(names.known[v.name], np.frombuffer(data.ljust(self._size(v), b"\0"), np.uint8))
        else:
            raise OracleFault(f"a variable in .{v.space}: {v}")

    def _local(self, v: nodes.Variable) -> int:
        start = -(-self.local_size // self._align(v)) * self._align(v)
        self.local_size = start + self._size(v)
        return LOCAL + start

    # code ---------------------------------------------------------------------------------------------------------
    def _emit(self, op: Op) -> None:
        self.ops.append(op)

    def _flatten(self, function: nodes.Function, names: Names, prefix: str) -> None:
        """Appends the body; labels get `prefix`, which is unique to this copy of the function."""
        if function.body is None:
            raise OracleFault(f"{function.name} has no body")
        if function.name in self.calls:
            raise OracleFault(f"{function.name} is recursive")
        self.calls.append(function.name)
        self._items(function.body, Names(names), prefix, function)
        self.calls.pop()
        self.labels[f"{prefix}return"] = len(self.ops)

    def _items(self, items: tuple[nodes.Statement, ...], names: Names, prefix: str, function: nodes.Function) -> None:
        local_labels = {i.name for i in items if isinstance(i, nodes.Label)}
        for name in local_labels:
            names.known[name] = f"{prefix}{id(items):x}.{name}"
        last_label = ""
        for item in items:
            if isinstance(item, nodes.Variable):
                self._declare(item, names, function)
            elif isinstance(item, nodes.Label):
                self.labels[str(names.find(item.name))] = len(self.ops)
                last_label = item.name
            elif isinstance(item, nodes.Scope):
                self._items(item.items, Names(names), prefix, function)
            elif isinstance(item, nodes.Directive):
                if item.name == "branchtargets":
                    names.known[last_label] = tuple(t.strip() for t in item.text.split(","))
            else:
                self._instruction(item, names, prefix)

    def _instruction(self, i: nodes.Instruction, names: Names, prefix: str) -> None:
        name, *mods = i.opcode.split(".")
        mods = [m.replace("::", ".") for m in mods]
        guard = (names.find(i.guard.register), i.guard.negated) if i.guard else None
        if name == "call":
            self._call(i, names, prefix)
        elif name == "bra":
            self._emit(Op(name, (), (), guard, i.line, (str(names.find(i.operands[0].name)),)))
        elif name == "brx":
            table = names.find(i.operands[1].name)
            targets = tuple(str(names.find(t)) for t in table)
            self._emit(Op(name, (), (self._operand(i.operands[0], names),), guard, i.line, targets))
        elif name == "ret":
            self._emit(Op("bra", (), (), guard, i.line, (f"{prefix}return",)))
        else:
            self._emit(Op(name, tuple(mods), tuple(self._operand(o, names) for o in i.operands), guard, i.line))

    def _call(self, i: nodes.Instruction, names: Names, prefix: str) -> None:
        groups = [o for o in i.operands if isinstance(o, nodes.Group)]
        target = next(o for o in i.operands if isinstance(o, nodes.Symbol))
        before = i.operands.index(target)
        results = groups[0].items if before else ()
        arguments = groups[-1].items if len(groups) > (1 if before else 0) else ()
        function = self.module.functions.get(target.name)
        if function is None or i.guard is not None:
            raise OracleFault(f"line {i.line}: {i}")
        inner = Names(self.names)
        for formal, actual in zip((*function.returns, *function.params), (*results, *arguments), strict=True):
            if formal.space == "reg":
                raise OracleFault(f"line {i.line}: parameters in registers")
            inner.known[formal.name] = names.find(actual.name)
        self._flatten(function, inner, f"{prefix}{len(self.ops)}/")

    def _operand(self, o: nodes.Operand, names: Names) -> Any:
        if isinstance(o, nodes.Register):
            return None if o.name == "_" else names.find(o.name)
        if isinstance(o, nodes.Immediate):
            return o
        if isinstance(o, nodes.Symbol):
            found = names.find(o.name)
            return found + o.offset if isinstance(found, int) else (found[0], found[1] + o.offset)
        if isinstance(o, nodes.Address):
            base = self._operand(o.base, names)
            if isinstance(base, nodes.Immediate):
                base = int(base.value)
            coordinates = tuple(self._operand(c, names) for c in o.coordinates.items) if o.coordinates else ()
            return Place(base, o.offset, coordinates)
        if isinstance(o, nodes.Vector | nodes.Group):
            return tuple(self._operand(x, names) for x in o.items)
        if isinstance(o, nodes.Pair):
            return ("pair", self._operand(o.first, names), self._operand(o.second, names))
        if isinstance(o, nodes.Negated):
            return ("not", self._operand(o.operand, names))
        raise OracleFault(f"operand {o!r}")

    def _split(self) -> list[list[Op]]:
        starts = {0, *self.labels.values()}
        for n, op in enumerate(self.ops):
            if op.name in ENDS_BLOCK:
                starts.add(n + 1)
            if op.name in WAITS:
                starts |= {n, n + 1}
        order = sorted(s for s in starts if s < len(self.ops))
        number = {s: k for k, s in enumerate(order)}
        for op in self.ops:
            op.targets = tuple(number[self.labels[str(t)]] for t in op.targets)
        return [self.ops[a:b] for a, b in zip(order, [*order[1:], len(self.ops)], strict=True)]
