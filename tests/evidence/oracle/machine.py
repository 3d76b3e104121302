"""The oracle's machine: all threads of a grid in lock-step, least block first, and the instructions that order them.

A register is one array over all threads. `HANDLERS` maps an opcode's first word to a function `(machine, op)`; they
are in the modules `scalar`, `access`, `warp`, `matrix` and `asynchronous`. A handler sees the active threads only:
`active` holds their numbers, and `get` and `set` work on arrays of that length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen import nodes
from tests.evidence.oracle.memory import LOCAL, SHARED, Memory, OracleFault, Spaces
from tests.evidence.oracle.numbers import DTYPES, PAIRS, base
from tests.evidence.oracle.program import WIDTH, Op, Place, Program, Reg, Special

HANDLERS: dict[str, Callable[[Machine, Op], None]] = {}
STEP_LIMIT = 2_000_000


def handles(*names: str) -> Callable[[Callable[[Machine, Op], None]], Callable[[Machine, Op], None]]:
    """Registers a handler for opcodes by their first word."""

    def register(function: Callable[[Machine, Op], None]) -> Callable[[Machine, Op], None]:
        HANDLERS.update(dict.fromkeys(names, function))
        return function

    return register


class Machine:
    """One launch."""

    def __init__(self, program: Program, memory: Memory, grid, block, cluster) -> None:
        self.program = program
        self.grid, self.block, self.cluster = grid, block, cluster
        self.cta_threads = block[0] * block[1] * block[2]
        n_ctas = grid[0] * grid[1] * grid[2]
        self.count = n_ctas * self.cta_threads
        thread = np.arange(self.count)
        self.in_cta, cta = thread % self.cta_threads, thread // self.cta_threads
        self.lane, warps = self.in_cta % 32, -(-self.cta_threads // 32)
        self.tid = (self.in_cta % block[0], self.in_cta // block[0] % block[1], self.in_cta // block[0] // block[1])
        self._number_clusters(cta)
        self.warp = self.cta * warps + self.in_cta // 32
        self.spaces = Spaces(
            memory, self.cta, self.rank, cluster[0] * cluster[1] * cluster[2], program.shared_size, program.local_size
        )
        self.registers = [np.zeros(self.count, _storage(t)) for t in program.registers]
        self.carry = np.zeros(self.count, bool)
        self.pc = np.zeros(self.count, np.int64)
        self.alive = np.ones(self.count, bool)
        self.parked = np.zeros(self.count, bool)
        self.active = thread
        self.last_run = np.zeros(len(program.blocks), np.int64)
        self.barriers: dict[tuple[int, int], list[np.ndarray]] = {}
        self.cluster_arrivals = np.zeros(self.count, np.int64)
        self.mbarriers: dict[int, Any] = {}
        self.fields: dict[int, dict[tuple[str, int], int]] = {}  # of tensor maps in shared memory, by position
        self.copies: list[Any] = []
        self.copy_group = np.zeros(self.count, np.int64)
        self.waited: np.ndarray | None = None

    def _number_clusters(self, cta: np.ndarray) -> None:
        """CTAs are numbered cluster by cluster, so that a cluster's shared memory is contiguous."""
        g, c = self.grid, self.cluster
        at = (cta % g[0], cta // g[0] % g[1], cta // g[0] // g[1])
        self.ctaid = at
        self.in_cluster = tuple(at[d] % c[d] for d in range(3))
        self.clusterid = tuple(at[d] // c[d] for d in range(3))
        self.clusters = tuple(g[d] // c[d] for d in range(3))
        self.rank = self.in_cluster[0] + c[0] * (self.in_cluster[1] + c[1] * self.in_cluster[2])
        number = self.clusterid[0] + self.clusters[0] * (self.clusterid[1] + self.clusters[1] * self.clusterid[2])
        self.cta = number * (c[0] * c[1] * c[2]) + self.rank
        self.cluster_number = number

    # scheduling ---------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Until every thread has left."""
        with np.errstate(all="ignore"):
            for step in range(STEP_LIMIT):
                if not self.alive.any():
                    return
                self._choose(step)
                self.last_run[self.pc[self.active[0]]] = step
                self._block(self.program.blocks[self.pc[self.active[0]]])
        raise OracleFault(f"no end after {STEP_LIMIT} blocks")

    def _choose(self, step: int) -> None:
        """The least block that can run; every 8th time the one that has waited longest, so that none starves."""
        runnable = self.alive & ~self.parked
        order = np.unique(self.pc[runnable])
        if step % 8 == 7:
            order = order[np.argsort(self.last_run[order], kind="stable")]
        for number in order:
            threads = np.flatnonzero(runnable & (self.pc == number))
            first = self.program.blocks[number][0] if self.program.blocks[number] else None
            self.active = threads
            if first is not None and first.name in READY:
                threads = threads[READY[first.name](self, first)]
            if threads.size:
                self.active = threads
                return
        raise OracleFault(f"deadlock: threads wait at {self._where()}")

    def _where(self) -> str:
        lines: dict[Any, Any] = {}
        for t in np.flatnonzero(self.alive):
            block = self.program.blocks[max(self.pc[t] - self.parked[t], 0)]
            lines.setdefault(block[0].line if block else 0, []).append(int(t))
        return "; ".join(f"line {line}: {len(t)} threads, first {t[0]}" for line, t in sorted(lines.items()))

    def _block(self, ops: list[Op]) -> None:
        everyone = self.active
        self.pc[everyone] += 1
        for op in ops:
            self.active = everyone
            if op.guard is not None:
                register, negated = op.guard
                self.active = everyone[self.registers[register.index][everyone] != negated]
            if self.active.size:
                handler = HANDLERS.get(op.name)
                if handler is None:
                    raise OracleFault(f"line {op.line}: unknown instruction {op.name} {'.'.join(op.mods)}")
                try:
                    handler(self, op)
                except OracleFault as fault:
                    raise OracleFault(f"line {op.line}: {op.name}.{'.'.join(op.mods)}: {fault}") from None
        self.active = everyone

    # operands -----------------------------------------------------------------------------------------------------
    def get(self, operand: Any, type_: str) -> np.ndarray:
        """Values `[active]` (`[active, 2]` for packed pairs) of `type_`; a wider register gives its low bits."""
        if isinstance(operand, nodes.Immediate):
            return self._immediate(operand, type_)
        if isinstance(operand, Reg):
            raw = self.registers[operand.index][self.active]
        elif isinstance(operand, Special):
            raw = np.broadcast_to(np.asarray(self.special(operand.name)), (self.count,))[self.active]
        elif isinstance(operand, int):
            raw = np.full(self.active.size, relative(operand), np.uint64)
        elif isinstance(operand, tuple) and operand[0] == "not":
            return ~self.get(operand[1], "pred")
        elif isinstance(operand, tuple):
            raw = self._packed(operand, WIDTH.get(type_, 16))
        else:
            raise OracleFault(f"operand {operand!r}")
        if type_ == "pred":
            return raw
        wanted = _storage(type_)
        return typed(raw if raw.dtype == wanted else raw.astype(wanted), type_)

    def _packed(self, parts: tuple, width: int) -> np.ndarray:
        each = width // len(parts)
        joined = np.zeros(self.active.size, f"u{max(width // 8, 1)}")
        for n, part in enumerate(parts):
            joined |= self.get(part, f"b{each}").astype(joined.dtype) << joined.dtype.type(n * each)
        return joined

    def _immediate(self, operand: nodes.Immediate, type_: str) -> np.ndarray:
        value, n = operand.value, self.active.size
        if type_ == "pred":
            return np.full(n, bool(value))
        if type_ in ("f32", "f64") and operand.is_float:
            return np.full(n, value, DTYPES[type_])
        width = WIDTH[type_]
        if operand.is_float:
            raw = np.array(value, "f4" if width == 32 else "f8").view(f"u{width // 8}")
        else:
            raw = np.array(int(value) % (1 << width), f"u{width // 8}")
        return typed(np.full(n, raw), type_)

    def set(self, operand: Any, type_: str, values: np.ndarray) -> None:
        """Writes values `[active]` of `type_`; a wider register gets them sign- or zero-extended."""
        if operand is None:
            return
        if isinstance(operand, tuple):
            each = f"b{WIDTH[type_] // len(operand)}"
            raw = bits(values, type_)
            for n, part in enumerate(operand):
                shift = raw.dtype.type(n * WIDTH[each])
                self.set(part, each, (raw >> shift).astype(_storage(each)))
            return
        if type_ == "pred":
            self.registers[operand.index][self.active] = values
            return
        target = self.registers[operand.index]
        values = np.asarray(values)
        if values.dtype.kind == "i" and target.itemsize > values.dtype.itemsize and type_ not in PAIRS:
            values = values.astype(f"i{target.itemsize}")
            self.registers[operand.index][self.active] = values.view(target.dtype)
            return
        target[self.active] = bits(values, type_).astype(target.dtype)

    def at(self, place: Place, space: str) -> np.ndarray:
        """Generic addresses `[active]` of a memory operand in a state space."""
        if isinstance(place.base, int):
            return np.full(self.active.size, place.base + place.offset, np.uint64)
        wide = "u64" if WIDTH[place.base.type] == 64 else "u32"
        address = self.get(place.base, wide).astype(np.uint64)
        address += np.uint64(place.offset % 2**64)
        if wide == "u32":
            address &= np.uint64(0xFFFFFFFF)
        if space == "param":  # parameters of functions are in local memory here, those of entries in global
            return np.where(address < np.uint64(2**32), address + np.uint64(LOCAL), address)
        return address + np.uint64({"shared": SHARED, "local": LOCAL}.get(space, 0))

    def spread(self, values: np.ndarray, fill: Any = 0) -> np.ndarray:
        """Values of the active threads in an array over all threads."""
        out = np.full((self.count, *values.shape[1:]), fill, values.dtype)
        out[self.active] = values
        return out

    def special(self, name: str) -> Any:
        """A special register, over all threads or as one value."""
        stem, _, axis = name.removeprefix("%").partition(".")
        n = "xyz".find(axis) if axis else -1
        vectors = {"tid": self.tid, "ntid": self.block, "ctaid": self.ctaid, "nctaid": self.grid,
                   "cluster_ctaid": self.in_cluster, "cluster_nctaid": self.cluster, "clusterid": self.clusterid,
                   "nclusterid": self.clusters}  # fmt: skip
        one = np.uint32(1)
        lanes = self.lane.astype(np.uint32)
        scalars = {"laneid": lanes, "warpid": self.in_cta // 32, "nwarpid": -(-self.cta_threads // 32),
                   "lanemask_eq": one << lanes, "lanemask_lt": (one << lanes) - one,
                   "lanemask_le": (np.uint32(2) << lanes) - one, "lanemask_gt": ~((np.uint32(2) << lanes) - one),
                   "lanemask_ge": ~((one << lanes) - one), "cluster_ctarank": self.rank,
                   "cluster_nctarank": self.spaces.cluster_size, "is_explicit_cluster": self.spaces.cluster_size > 1,
                   "clock": 0, "clock64": 0, "globaltimer": 0, "smid": 0, "gridid": 0}  # fmt: skip
        if n >= 0 and stem in vectors:
            return np.asarray(vectors[stem][n], np.uint32)
        if stem in scalars:
            return np.asarray(scalars[stem]).astype(np.uint64)
        raise OracleFault(f"special register {name}")


def relative(address: int) -> int:
    """A variable's address within its own space, which is what its name means as an operand."""
    if SHARED <= address < LOCAL:
        return address - SHARED
    return address - LOCAL if LOCAL <= address < LOCAL + 2**32 else address


def _storage(type_: str) -> np.dtype:
    if type_ == "pred":
        return np.dtype(bool)
    return np.dtype(f"u{max(WIDTH.get(type_, 16), 8) // 8}")


def typed(raw: np.ndarray, type_: str) -> np.ndarray:
    """Raw bits as values of a type."""
    raw = np.ascontiguousarray(raw)
    view = raw.view(DTYPES[type_])
    return view.reshape(raw.size, 2) if type_ in PAIRS else view


def bits(values: np.ndarray, type_: str) -> np.ndarray:
    """Values of a type as raw bits; booleans count as 0 and 1."""
    if type_ in PAIRS:
        pair = np.ascontiguousarray(values.astype(DTYPES[base(type_)], copy=False))
        return pair.view(f"u{pair.dtype.itemsize * 2}").reshape(-1)
    wanted = DTYPES[type_]
    values = np.ascontiguousarray(values if values.dtype == wanted else values.astype(wanted))
    return values.view(f"u{wanted.itemsize}")


# Which of the active threads may go through a waiting instruction now: set by the modules that own them.
READY: dict[str, Callable[[Machine, Op], np.ndarray]] = {}
