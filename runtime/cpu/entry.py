"""One entry compiled: what a launch must know of it, and its object code. Owns the split into objects."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.emitter import Emitter
from ptxgen.runtime.cpu.flow import Flow
from ptxgen.runtime.cpu.host import Host, compile_ir
from ptxgen.runtime.cpu.layout import SHARED_BASE, Shape
from ptxgen.runtime.cpu.support import closure, function_text

WARP_FUNCTION = "warp"
# compiled once per process (and kept on disk) and linked to every entry
_CORE = (
    "fault", "find", "resolve.global", "resolve.shared", "resolve.local", "resolve.generic", "enqueue", "park", "unpark",
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
    stops: tuple[int, ...]  # line at which each block begins, by number
    variables: tuple[tuple[str, int, int], ...]  # shared variables: name, window offset, bytes
    performance: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def shape(self) -> Shape:
        """Sizes of a warp's state."""
        return Shape(self.blocks, self.registers)

    @property
    def static_shared(self) -> int:
        """Bytes of static shared memory."""
        return self.static_end - SHARED_BASE

    def limit(self, name: str) -> tuple[int, ...]:
        """Numbers of a performance directive (`maxntid`, `reqntid`, …); empty when it is absent."""
        return dict(self.performance).get(name, ())

    def to_json(self) -> str:
        """For the disk cache."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """The inverse of `to_json`."""
        data = json.loads(text)
        return cls(**{f.name: _tuples(data[f.name]) for f in fields(cls)})


def _tuples(value: object) -> object:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def compile_entry(module: nodes.Module, name: str, check: bool, host: Host) -> tuple[Entry, bytes]:
    """Emit and compile an entry. Raises `IsaError` for what the executor does not support, with file, line and text."""
    entry, text = emit_entry(module, name, check, host)
    return entry, compile_ir(text, host)


def emit_entry(module: nodes.Module, name: str, check: bool, host: Host) -> tuple[Entry, str]:
    """(description, LLVM IR) of an entry."""
    function = module.entries.get(name)
    if function is None or function.body is None:
        raise IsaError(f"{module.file}: has no entry {name!r} (it has {', '.join(module.entries) or 'none'})")
    flow = Flow(module, function)
    emitter = Emitter(module, flow, WARP_FUNCTION, check, host.native_half)
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
        stops=(0, *(block.ops[0].line if block.ops else 0 for block in flow.blocks)),
        variables=tuple((v.name, v.offset, v.size) for v in flow.shared),
        performance=tuple(sorted(function.performance.items())),
    )
    return entry, module_text([text])


def module_text(functions: list[str]) -> str:
    """A whole LLVM module: functions, the support they call, and declarations of the core."""
    own = closure(functions, stop=_CORE)
    declared = "\n".join(_declaration(name) for name in _CORE)
    return "\n".join([declared, *functions, *own]) + _PROFILE


def core_text() -> str:
    """The LLVM module of the core: what every entry links to."""
    functions = [function_text(name).replace("define internal", "define", 1) for name in _CORE]
    own = closure(functions, stop=_CORE)
    return "\n".join([*functions, *own]) + _PROFILE


@lru_cache(maxsize=64)
def _declaration(name: str) -> str:
    match = _DEFINE.search(function_text(name))
    assert match is not None, name
    return f"declare {match[1]} @{match[2]}({match[3]})"
