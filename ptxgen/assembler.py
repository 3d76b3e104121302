"""PTX to cubin without a GPU: nvJitLink in process, or a ptxas binary; and what the entry takes on the chip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ptxgen.errors import AssembleError, SpecError, TargetError, brief
from ptxgen.lines.sources import has_line_info, is_of_warpgroups, quoted, sets_registers
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target

_HOW_TO_GET_ONE = "install one with: pip install 'ptxgen[ptxas]', or set PTXGEN_PTXAS to a ptxas binary"
VARIABLE = "PTXGEN_PTXAS"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one function takes, as the assembler reports it: registers a thread, bytes of spill stores and loads,
    stack, static shared memory, constant bank 0 (parameters included) and other constant banks; barriers a CTA."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    constant: int
    barriers: int

    @property
    def clean(self) -> bool:
        """No spill and no local memory."""
        return not (self.spill_stores or self.spill_loads or self.stack)


@dataclass(frozen=True, slots=True)
class Unheeded(Resources):
    """What nvJitLink says of a text whose `setmaxnreg` it left out, where there is no ptxas to ask: registers and
    spills of code that no driver loads, so they say nothing against the text."""

    @property
    def clean(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Assembly:
    """A cubin, its target, the resources of each entry, and what made it (`nvJitLink 13.0`, `ptxas 13.0`).

    `unfit` says why the machine code is not to be run, where it is not: then there is no cubin.
    """

    code: bytes
    target: Target
    resources: dict[str, Resources]
    assembler: str
    log: str
    unfit: str = ""

    @property
    def cubin(self) -> bytes:
        """The machine code. Raises `AssembleError` where it is not to be run."""
        if self.unfit:
            raise AssembleError(self.unfit)
        return self.code


@dataclass(frozen=True, slots=True)
class Assembler:
    """One way to assemble: the nvJitLink library (`path` empty) or a ptxas binary."""

    name: str
    version: tuple[int, int]
    path: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version[0]}.{self.version[1]}"


def assemble(text: str, target: str | Target | None = None, *, name: str = "", by: Assembler | None = None) -> Assembly:
    """Assemble a PTX text for a target (default: the one its `.target` names).

    Texts with `wgmma` or `setmaxnreg` are a ptxas binary's: nvJitLink's code for the first gives wrong results, and it
    leaves the second out. Where there is none, nvJitLink tells resources, and `cubin` raises. `by` is taken whatever
    the text, `name` stands in messages. Raises `AssembleError` with the assembler's words and the PTX lines they name,
    or with what to install when there is no assembler.
    """
    if not isinstance(text, str):
        raise SpecError(f"assemble: must be a PTX text (got {brief(text)})")
    where = parse_target(target) if target is not None else _named_target(text, name or "PTX")
    found = (by,) if by else available_assemblers()
    if not found:
        raise AssembleError(f"{name or 'PTX'}: no assembler is installed; {_HOW_TO_GET_ONE}")
    able = [a for a in found if where in supported_targets(a)]
    if not able:
        older = "the assembler of CUDA 12.9 is the last that knows it; set PTXGEN_PTXAS to that ptxas"
        hint = older if (where.major, where.minor) < (7, 5) else f"a newer one may know it; {_HOW_TO_GET_ONE}"
        each = " and ".join(dict.fromkeys(map(str, found)))
        raise AssembleError(f"{name or 'PTX'}: {each} cannot assemble for {where}; {hint}")
    whole = sets_registers(text) or is_of_warpgroups(text)
    chosen = next((a for a in able if a.path), able[0]) if whole else able[0]
    made = _run_one(chosen, text, where, name)
    return _only_measured(made, text, name) if whole and not chosen.path else made


def _only_measured(made: Assembly, text: str, name: str) -> Assembly:
    """What nvJitLink made of a text that is a ptxas binary's, without the machine code."""
    fault = "code for wgmma gives wrong results" if is_of_warpgroups(text) else "code leaves setmaxnreg out"
    unfit = (
        f"{name or 'PTX'}: needs a ptxas that knows {made.target}, and none is installed ({made.assembler}'s {fault}); "
        f"put one in PATH, or set {VARIABLE} to it"
    )
    resources = made.resources
    if sets_registers(text) and not all(taken.clean for taken in resources.values()):
        resources = {entry: Unheeded(**asdict(taken)) for entry, taken in resources.items()}
    return replace(made, code=b"", resources=resources, unfit=unfit)


def _run_one(assembler: Assembler, text: str, where: Target, name: str) -> Assembly:
    run = _by_binary if assembler.path else _by_nvjitlink
    cubin, log, failed = run(assembler, text, where)
    if failed:
        raise AssembleError(_failure(text, log, where, assembler, name))
    return Assembly(cubin, where, parse_resources(log), str(assembler), log)


def _named_target(text: str, name: str) -> Target:
    found = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    if found is None:
        raise AssembleError(f"{name}: has no .target; --target, or target=, says what to assemble for")
    try:
        return parse_target(found[1])
    except TargetError as unknown:
        raise AssembleError(f"{name}: {unknown}") from None


# -- what is installed -------------------------------------------------------------------------------------------------


@cache
def available_assemblers() -> tuple[Assembler, ...]:
    """The assemblers found here, in the order they are tried: PTXGEN_PTXAS, nvJitLink, pathfinder's, PATH's.

    Raises `AssembleError` where `PTXGEN_PTXAS` names no ptxas.
    """
    found = []
    named = os.environ.get(VARIABLE)
    if named:
        version = _binary_version(named)
        if version is None:
            raise AssembleError(f"{VARIABLE}: must be the path of a ptxas that runs (got {brief(named)})")
        found.append(Assembler("ptxas", version, named))
    library = _nvjitlink()
    if library is not None:
        found.append(Assembler("nvJitLink", library.version()))
    for path in dict.fromkeys(filter(None, (_pathfinder(), shutil.which("ptxas")))):
        version = _binary_version(path) if path != named else None
        if version is not None:
            found.append(Assembler("ptxas", version, path))
    return tuple(found)


def installed() -> str | None:
    """The name and version of the assembler that `assemble` tries first, or None."""
    return next((str(assembler) for assembler in available_assemblers()), None)


@cache
def supported_targets(assembler: Assembler) -> frozenset[Target]:
    """The targets of this package that an assembler makes cubins for."""
    from ptxgen.targets import ALL_TARGETS

    if assembler.path:
        shown = _run([assembler.path, "--help"]).stdout
        names = set(re.findall(r"'(sm_\d+[af]?)'", shown))  # the values of --gpu-name; prose names others
        return frozenset(t for t in ALL_TARGETS if t.name in names)
    return frozenset(t for t in ALL_TARGETS if _nvjitlink_knows(t))


def _nvjitlink() -> Any:
    """The module of the nvJitLink bindings when they and the library are there."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except Exception:  # absent package, absent library, wrong version: each means that there is none
        return None
    return nvjitlink


def _nvjitlink_knows(target: Target) -> bool:
    nvjitlink = _nvjitlink()
    try:
        handle = nvjitlink.create(1, [f"-arch={target}"])
    except nvjitlink.nvJitLinkError:
        return False
    nvjitlink.destroy(handle)
    return True


def _pathfinder() -> str | None:
    try:
        from cuda import pathfinder
    except ImportError:
        return None
    find = getattr(pathfinder, "find_nvidia_binary_utility", None)
    return find("ptxas") if find else None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def _binary_version(path: str) -> tuple[int, int] | None:
    try:
        shown = _run([path, "--version"]).stdout
    except OSError:
        return None
    found = re.search(r"release (\d+)\.(\d+)", shown)
    return (int(found[1]), int(found[2])) if found else None


# -- the two ways ------------------------------------------------------------------------------------------------------


def _by_nvjitlink(_: Assembler, text: str, target: Target) -> tuple[bytes, str, bool]:
    nvjitlink = _nvjitlink()
    options = [f"-arch={target}", "-verbose", *_line_info(text)]
    handle = nvjitlink.create(len(options), options)
    try:
        data = text.encode()
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "ptx")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = _log(handle, nvjitlink.get_error_log_size, nvjitlink.get_error_log)
            return b"", log or str(error), True
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), _log(handle, nvjitlink.get_info_log_size, nvjitlink.get_info_log), False
    finally:
        nvjitlink.destroy(handle)


def _line_info(text: str) -> list[str]:
    """The option that keeps the lines of a text's `.loc` in the cubin; it changes no code."""
    return ["-lineinfo"] if has_line_info(text) else []


def _log(handle: int, size_of: Any, fill: Any) -> str:
    buffer = bytearray(size_of(handle))
    if len(buffer) > 1:
        fill(handle, buffer)
    return buffer.split(b"\0", 1)[0].decode(errors="replace").strip()


def _by_binary(assembler: Assembler, text: str, target: Target) -> tuple[bytes, str, bool]:
    with tempfile.TemporaryDirectory(prefix="ptxgen-") as directory:
        source, cubin = Path(directory, "ptx.ptx"), Path(directory, "ptx.cubin")
        source.write_text(text, encoding="utf-8")
        done = _run([assembler.path, f"-arch={target}", "-v", *_line_info(text), str(source), "-o", str(cubin)])
        log = (done.stdout + done.stderr).replace(str(source), "ptx").strip()
        failed = done.returncode != 0 or not cubin.is_file()
        return (b"" if failed else cubin.read_bytes()), log, failed


# -- what they say -----------------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_OF = re.compile(r"Function properties for '?([^':\s]+)")
_FIELDS: tuple[tuple[str, str], ...] = (
    ("registers", r"[Uu]sed (\d+) registers"),
    ("barriers", r"used (\d+) barriers"),
    ("stack", r"(\d+) bytes stack frame"),
    ("spill_stores", r"(\d+) bytes spill stores"),
    ("spill_loads", r"(\d+) bytes spill loads"),
    ("shared", r"(\d+) bytes smem"),
)


def parse_resources(log: str) -> dict[str, Resources]:
    """Resources of each entry in a verbose log of nvJitLink or ptxas. Fields that a version leaves out count 0."""
    entries = dict.fromkeys(_ENTRY.findall(log))
    found: dict[str, dict[str, int]] = {name: {} for name in entries}
    current = ""
    for line in log.splitlines():
        named = _ENTRY.search(line) or _OF.search(line)
        if named:
            current = named[1]
        if current not in found:
            continue
        fields = found[current]
        for field, pattern in _FIELDS:
            number = re.search(pattern, line)
            if number:  # the compiler's line comes first; the linker's adds what the system reserves
                fields.setdefault(field, int(number[1]))
        banks = re.findall(r"(\d+) bytes cmem\[\d+\]", line)
        if banks and "registers" in line:  # elsewhere they are the module's
            fields.setdefault("constant", sum(map(int, banks)))
    return {name: Resources(**{f: fields.get(f, 0) for f in Resources.__slots__}) for name, fields in found.items()}


def _failure(text: str, log: str, target: Target, assembler: Assembler, name: str) -> str:
    """The assembler's message with the PTX lines that it names, and where they come from."""
    return f"{name or 'PTX'}: {assembler} refused it for {target}\n{quoted(text, log)}"
