"""`generate(spec, target) -> Ptx`: fragments, entry, parse, check, header. The final text is the truth."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import Any

from ptxgen.builder import Builder
from ptxgen.checks import check
from ptxgen.errors import IsaError, SpecError, TemplateError, brief
from ptxgen.gc_pause import GcPause
from ptxgen.kernel import KernelType, spec_error, supports
from ptxgen.launch import Launch, Param, check_declared
from ptxgen.lines.sources import SourceMap, remember
from ptxgen.nodes import Module
from ptxgen.parser import UnreadableError, parse
from ptxgen.render import render_entry, render_module
from ptxgen.requires import Requirements, requirements
from ptxgen.targets import STATIC_SHARED_LIMIT, Target, newest_ptx
from ptxgen.targets import target as parse_target
from ptxgen.tuning import in_force


@dataclass(frozen=True)
class Ptx:
    """A generated kernel: its text and the contract of its launch. `digest` is the SHA-256 of the text."""

    spec: KernelType
    target: Target
    entry: str
    text: str
    params: tuple[Param, ...]
    launch: Launch
    requires: Requirements
    digest: str
    module: Module = field(repr=False, compare=False)
    source_map: SourceMap = field(default_factory=SourceMap, repr=False, compare=False)

    def workspace_bytes(self, **capacities: int) -> int:
        """Exact size of all workspace buffers together, for these capacities."""
        return sum(p.nbytes(capacities) for p in self.params if p.access == "workspace")

    def manifest(self) -> dict[str, Any]:
        """The launch contract as plain data, for any language."""
        from ptxgen.views.manifest import manifest

        return manifest(self)

    def _repr_html_(self) -> str:
        """For a notebook: launch and resources in a table, and the text in colour."""
        from ptxgen.views.highlight import ptx_as_html

        return ptx_as_html(self)

    def __repr__(self) -> str:
        return f"<Ptx {self.spec!r} for {self.target}: {len(self.text.splitlines())} lines, {self.digest[:12]}>"


_CACHE: dict[tuple[type, KernelType, Target, str, bool, str], Ptx] = {}


def generate(spec: KernelType, target: str | Target, *, line_info: bool = False, entry: str = "") -> Ptx:
    """The PTX of a spec for a target; the same spec, target, entry and tuning table give the same object.

    `line_info`: with `.file` and `.loc`, so that profilers and debuggers show the lines of Python and of templates.
    `entry`: the name of the function, the kernel type's unless told: for hosts that load several kernels by name.

    Raises `SpecError` when the target cannot run the spec (every reason), `IsaError` or `TemplateError` when the kernel
    type itself is wrong.
    """
    if not isinstance(spec, KernelType):
        raise SpecError(f"generate: must be a spec, such as KvCacheScatter(max_len=512, …) (got {brief(spec)})")
    where = parse_target(target)
    key = (type(spec), spec, where, in_force().digest, line_info, entry)
    found = _CACHE.get(key)
    if found is None:
        with GcPause():
            if line_info:
                found = _with_line_info(generate(spec, where, entry=entry))
            else:
                found = _generate(spec, where, _checked(entry))
        _CACHE[key] = found
    return found


def _checked(entry: str) -> str:
    """The name of an entry, as PTX, C and Rust take it."""
    if not isinstance(entry, str) or (entry and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", entry)):
        raise SpecError(f"entry: must be letters, digits and _, a letter first (got {brief(entry)})")
    if entry == "WARP_SZ":
        raise SpecError("entry: must be another name than PTX's constant (got 'WARP_SZ')")
    return entry


def _with_line_info(ptx: Ptx) -> Ptx:
    from ptxgen.views.lineinfo import with_line_info

    return replace(ptx, **with_line_info(ptx)._asdict())


def _generate(spec: KernelType, target: Target, entry: str = "") -> Ptx:
    support = supports(spec, target)
    if not support:
        raise spec_error(type(spec).__name__, support.reasons)
    b = Builder(spec, target)
    spec.build(b)
    try:
        b.finish()
    except IsaError as unwritten:
        raise _with_more(unwritten, b, spec, entry) from None
    return _written(b, spec, entry)


def _with_more(unwritten: IsaError, b: Builder, spec: KernelType, entry: str) -> IsaError:
    """What the builder found, and what else is found in the text: each once."""
    sentences = [line.partition(": register ")[2].partition(" | ")[0] for line in str(unwritten).splitlines()]
    try:
        _written(b, spec, entry)
    except (IsaError, TemplateError) as more:
        others = (line for line in str(more).splitlines() if not any(f": register {s}" in line for s in sentences))
        return IsaError("\n".join([str(unwritten), *others]))
    return unwritten


def _written(b: Builder, spec: KernelType, entry: str) -> Ptx:
    """The text of what is built, checked."""
    target = b.target
    launch, params = spec.launch(target), spec.params()
    check_declared(type(spec).__name__, params, launch, spec.sizes)
    _check_shared(b, launch)
    entry, template = entry or spec.kernel_name, spec.template(target)
    body, runs = render_entry(b, entry, template, launch)
    first_line = f"{spec!r} for {target}"

    def whole(version: tuple[int, int]) -> tuple[str, SourceMap]:
        text, lines = render_module(
            first_line=first_line, version=f"{version[0]}.{version[1]}", target=target.name, body=body, runs=runs
        )
        source_map = SourceMap(lines)
        remember(text, source_map)
        return text, source_map

    # The header depends on the instructions: parse under the target's own lowest version, then raise it if needed.
    text, source_map = whole(target.lowest_ptx)
    module = _parsed(text, entry)
    try:
        requires = requirements(module)
    except IsaError:  # of opcodes that are not known, which the check finds among others
        module.version = newest_ptx()  # instructions that the table does not have: their version is not known
        check(module, target)
        raise
    if requires.ptx != target.lowest_ptx:
        text, source_map = whole(requires.ptx)
        module.version, module.source = requires.ptx, text
    loops = {predicate: turn.form for predicate, turn in b.loops.items()}
    check(module, target, lint=True, limits=_index_limits(launch), loops=loops)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Ptx(spec, target, entry, text, params, launch, requires, digest, module, source_map)


def _parsed(text: str, entry: str) -> Module:
    """The parsed text. Raises `IsaError` with every line that cannot be read or whose opcode is not known."""
    try:
        return parse(text, f"{entry}.ptx", f"kernel {entry}")
    except UnreadableError as unreadable:
        if unreadable.module is not None:
            try:
                requirements(unreadable.module)
            except IsaError as unknown:
                raise IsaError(f"{unreadable}\n{unknown}") from None
        raise


def _index_limits(launch: Launch) -> dict[str, int]:
    """Largest thread and CTA indices of a launch, where the spec alone decides them."""
    threads = {f"%tid.{axis}": n - 1 for axis, n in zip("xyz", launch.block, strict=True)}
    ctas = {f"%ctaid.{axis}": n - 1 for axis, n in zip("xyz", launch.grid, strict=True) if isinstance(n, int)}
    return threads | ctas


def _check_shared(b: Builder, launch: Launch) -> None:
    """Shared memory: what is declared is what is launched, within the target's limit."""
    dynamic = sum(v.bytes for v in b.shared_variables.values() if v.dynamic)
    static = sum(v.bytes for v in b.shared_variables.values() if not v.dynamic)
    if dynamic != launch.shared:
        raise SpecError(
            f"{b.spec.kernel_name}: launch() asks for {launch.shared} dynamic shared bytes, build() declares {dynamic}"
        )
    if dynamic + static > b.target.shared_limit:
        raise SpecError(
            f"{b.spec.kernel_name}: shared memory: at most {b.target.shared_limit} bytes on {b.target} "
            f"(got {dynamic + static})"
        )
    if static > STATIC_SHARED_LIMIT:
        raise SpecError(
            f"{b.spec.kernel_name}: static shared memory: at most {STATIC_SHARED_LIMIT} bytes (got {static}); declare "
            "a variable by b.shared(…, dynamic=True), and give its bytes to Launch(shared=…)"
        )


def clear_cache() -> None:
    """Forget every generated text (for benchmarks and tests)."""
    _CACHE.clear()
