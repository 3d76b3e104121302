"""One entry compiled: what a launch must know of it, and its object code. Owns the split into objects."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.foreign.reserved import RESERVED
from ptxgen.gc_pause import GcPause
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.flow.flow import Block, Flow
from ptxgen.runtime.cpu.flow.launch_registers import launch_registers
from ptxgen.runtime.cpu.flow.written_params import written_params
from ptxgen.runtime.cpu.native.host import Host
from ptxgen.runtime.cpu.native.layout import SHARED_BASE, Shape
from ptxgen.runtime.cpu.support import called_by, closure, function_text

WARP_FUNCTION = "warp"
# roots of what is compiled once (and kept on disk) and linked to every entry; other support functions come one by one
_CORE = (
    "converge", "converge.each",
    "fault", "find", "resolve.global", "resolve.shared", "resolve.local", "resolve.generic",
    "resolve.global.write", "resolve.generic.write", "enqueue",
    "park", "unpark",
    "barrier.arrive", "barrier.settle", "leave", "next.block", "thread.run", "resume.run",
)  # fmt: skip
_DEFINE = re.compile(r"^define (?:internal )?(.*?) @([\w.]+)\((.*)\)(?: \w+)* \{$", re.M)
_PROFILE = '\n!0 = !{!"branch_weights", i32 1, i32 1000}\n!1 = !{!"branch_weights", i32 1000, i32 1}\n'


@dataclass(frozen=True, slots=True)
class Entry:
    """What a launch needs besides the code. Offsets of shared memory are window offsets."""

    name: str
    params: tuple[tuple[str, str, int, int], ...]  # name, type, offset, bytes
    param_bytes: int
    static_end: int
    dynamic_start: int
    dynamic: bool
    local_bytes: int
    blocks: int
    registers: int
    first_block: int
    sites: tuple[tuple[int, str, str], ...]  # line, text, remark
    stops: tuple[tuple[int, str], ...]  # line and opcode at which each block begins, by number
    variables: tuple[tuple[str, int, int], ...]  # shared variables: name, window offset, bytes
    performance: tuple[tuple[str, tuple[int, ...]], ...]
    launch_registers: int  # a thread's, where `setmaxnreg` changes them; else 0
    strong: bool  # it has atomics, or volatile or relaxed accesses, that may be of shared memory
    prints: bool  # it calls vprintf
    written: tuple[int, ...]  # offsets of parameters through which it may write (check mode: `flow/written_params.py`)

    @property
    def shape(self) -> Shape:
        """Sizes of a warp's state."""
        return Shape(self.blocks, self.registers)

    @property
    def static_shared(self) -> int:
        """Bytes of static shared memory."""
        return self.static_end - SHARED_BASE

    @property
    def reserved_shared(self) -> int:
        """Of those, the bytes that stand for what the system reserves, beside what a CTA may have."""
        return sum(size for name, _, size in self.variables if name == RESERVED)

    def limit(self, name: str) -> tuple[int, ...]:
        """Numbers of a performance directive (`maxntid`, `reqntid`, …); empty when it is absent."""
        return dict(self.performance).get(name, ())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Entry:
        """From `dataclasses.asdict`, perhaps by way of JSON."""
        values: dict[str, Any] = {f.name: _tuples(data[f.name]) for f in fields(cls)}
        return cls(**values)


def _tuples(value: object) -> object:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def emit_entry(module: nodes.Module, name: str, check: bool, host: Host) -> tuple[Entry, str]:
    """(description, LLVM IR of its warp function). `IsaError` for what is not supported, with file, line and text."""
    entry, _, text = described(module, name, check, host, Emitter)
    return entry, text


def described(
    module: nodes.Module, name: str, check: bool, host: Host, kind: type[Emitter]
) -> tuple[Entry, Emitter, str]:
    """The same with the emitter, which is of that kind."""
    function = module.entries.get(name)
    if function is None or function.body is None:
        raise IsaError(f"{module.file}: has no entry {name!r} (it has {', '.join(module.entries) or 'none'})")
    with GcPause():
        flow = Flow(module, function, check)
        emitter = kind(module, flow, WARP_FUNCTION, check, host)
        text = emitter.run()
    entry = Entry(
        name=name,
        params=tuple((v.name, v.type, v.offset, v.size) for v in flow.entry_params),
        param_bytes=flow.param_bytes,
        static_end=flow.shared_end,
        dynamic_start=flow.dynamic_start,
        dynamic=bool(flow.dynamic),
        local_bytes=flow.local_bytes,
        blocks=emitter.shape.blocks,
        registers=emitter.shape.registers,
        first_block=flow.first.number,
        sites=tuple(emitter.sites),
        stops=((0, ""), *(_first(block) for block in flow.blocks)),
        variables=tuple((v.name, v.offset, v.size) for v in flow.shared),
        performance=tuple(sorted(function.performance.items())),
        launch_registers=launch_registers(function.performance, _registers_asked(flow)),
        written=written_params(flow.blocks) if check else (),
        prints=any(op.words[0] == "$printf" for block in flow.blocks for op in block.ops),
        strong=any(_is_strong(op.words) for block in flow.blocks for op in block.ops),
    )
    return entry, emitter, text


def _registers_asked(flow: Flow) -> list[int]:
    counts = (op.operands[0] for block in flow.blocks for op in block.ops if op.words[0] == "setmaxnreg")
    return [int(count.value) for count in counts if isinstance(count, nodes.Immediate)]


def _is_strong(words: tuple[str, ...]) -> bool:
    """Whether an instruction is an atomic or the like, and may be one of shared memory. Barriers and mbarriers, which
    have such words too, rely on no first write."""
    kinds = {"atom", "red", "volatile", "relaxed", "acquire", "release"}
    return words[0] in ("ld", "st", "atom", "red") and bool(kinds & set(words)) and "global" not in words


def _first(block: Block) -> tuple[int, str]:
    return (block.ops[0].line, ".".join(block.ops[0].words)) if block.ops else (0, "")


def module_text(functions: list[str]) -> str:
    """An LLVM module of these functions, with declarations of the support functions that they call."""
    defined = {match[2] for text in functions for match in _DEFINE.finditer(text)}
    called = sorted({name for text in functions for name in called_by(text)} - defined)
    declared = [_declaration(name) for name in called]
    return "\n".join([*declared, *functions]).replace("define internal ", "define ") + _PROFILE


def needed_by(text: str, check: bool) -> list[str]:
    """Names of the support functions outside the core that a text calls, directly or through others."""
    core = set(core_functions(check))
    return [name for name in closure([text], check) if name not in core]


@lru_cache(maxsize=2)
def core_functions(check: bool) -> tuple[str, ...]:
    """Names of the functions that every entry is linked with."""
    return tuple(closure([function_text(name, check) for name in _CORE], check) | dict.fromkeys(_CORE))


def core_text(check: bool) -> str:
    """The LLVM module of the core."""
    return module_text([function_text(name, check) for name in core_functions(check)])


@lru_cache(maxsize=1024)
def _declaration(name: str) -> str:
    match = _DEFINE.search(function_text(name, False))
    assert match is not None, name
    return f"declare {match[1]} @{match[2]}({match[3]})"
