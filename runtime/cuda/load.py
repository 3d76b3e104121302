"""From PTX text to a loaded module: cached cubin, the driver's compiler, an installed assembler. Owns that order."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxgen.errors import CudaError, ModuleLoadError, PtxgenError
from ptxgen.files.user_cache import default_directory
from ptxgen.lines.sources import has_line_info, is_of_warpgroups, quoted, sets_registers
from ptxgen.runtime.core.backend import Resources
from ptxgen.runtime.core.diskcache import DiskCache, key_of
from ptxgen.runtime.core.param_block import Slot, slots_of
from ptxgen.runtime.core.stream import Event, Stream
from ptxgen.runtime.cuda.driver import DriverError

if TYPE_CHECKING:
    from ptxgen.runtime.cuda.gpu import Gpu

log = logging.getLogger("ptxgen.runtime")
_FORMAT = 2  # of what a cached cubin is; raise it when its meaning changes
_LOG_BYTES = 16384
_INVALID_VALUE = 1
_FUNC_LOAD = 12040  # the first driver with cuFuncLoad and cuFuncGetParamInfo


class CudaFunction:
    """A CUfunction; `handle` is its address, `dynamic_shared` the largest dynamic size allowed so far."""

    def __init__(self, code: CudaCode, name: str, raw: Any) -> None:
        self.code = code  # the module lives as long as one of its functions is held
        self.name = name
        self.raw = raw
        self.handle = int(raw)
        self.dynamic_shared = 0
        device, attribute = code.device, code.device.api.CUfunction_attribute
        if device.driver.version >= _FUNC_LOAD and device.driver.has("cuFuncLoad"):
            device.call("cuFuncLoad", raw)  # with lazy loading (the default) the first launch would do it

        def value(what: str) -> int:
            return int(device.call("cuFuncGetAttribute", getattr(attribute, f"CU_FUNC_ATTRIBUTE_{what}"), raw))

        self.resources = Resources(
            value("NUM_REGS"),
            value("LOCAL_SIZE_BYTES"),
            value("SHARED_SIZE_BYTES"),
            value("MAX_THREADS_PER_BLOCK"),
        )
        self.slots = tuple(self._slots())

    def _slots(self) -> Iterator[Slot]:
        """The driver's own account of the parameters, for any PTX; a driver before 12.4 has none: then by the text."""
        device = self.code.device
        if not device.driver.has("cuFuncGetParamInfo") or device.driver.version < _FUNC_LOAD:
            from ptxgen.parser import parse

            yield from slots_of(parse(self.code.text).functions[self.name].params)
            return
        for index in count():
            code, result = device.ask("cuFuncGetParamInfo", self.raw, index)
            if code == _INVALID_VALUE:
                return
            if code:
                raise device.failed("cuFuncGetParamInfo", code)
            yield Slot(int(result[0]), int(result[1]))


class CudaCode:
    """A CUmodule, unloaded after the last reference to it or to one of its functions, when its last launch is done."""

    def __init__(self, device: Gpu, cubin: bytes, text: str, origin: str) -> None:
        self.device = device
        self.text = text
        self.origin = origin
        self.streams: dict[int, Stream] = {}  # that were given launches of it
        self.raw = device.call("cuModuleLoadData", cubin)

    def function(self, name: str) -> CudaFunction:
        """The entry of that name; `ModuleLoadError` names those there are."""
        try:
            raw = self.device.call("cuModuleGetFunction", self.raw, name.encode())
        except DriverError as error:
            entries = ", ".join(self.entries) or "none"
            raise ModuleLoadError(f"module: has no entry {name!r} (it has {entries}; {error})") from None
        return CudaFunction(self, name, raw)

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries."""
        return tuple(re.findall(r"\.entry\s+([\w$%]+)", self.text))

    def used_on(self, stream: Stream) -> None:
        """Remember that `stream` was given launches of this code."""
        self.streams[stream.handle] = stream

    def close(self, reason: str) -> None:
        """Unload now: no launch is left."""
        raw, self.raw = self.raw, None
        if raw is not None:
            self.device.quiet("cuModuleUnload", raw)

    def unload(self) -> None:
        """Drop the machine code as soon as no launch of it is left."""
        raw, self.raw = self.raw, None
        if raw is not None:
            self.device.retire(raw, tuple(self.streams.values()))

    def __del__(self) -> None:
        if getattr(self, "raw", None) is not None:
            with contextlib.suppress(CudaError, TypeError, AttributeError):  # at exit the interpreter is half gone
                self.unload()


class Retired:
    """Modules without an owner, until their launches are done: then they are unloaded.

    The driver does not say what becomes of a launch whose module is unloaded. May be used from any thread, and from
    finalisers, so that there are no locks here.
    """

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._waiting: deque[tuple[Any, tuple[Stream, ...], Event | None]] = deque()

    def add(self, raw: Any, streams: tuple[Stream, ...]) -> None:
        """Unload `raw` after the work submitted to `streams` so far."""
        if self._device.usable:
            self._waiting.append((raw, streams, None))
            self.reap()

    def reap(self) -> None:
        """Unload those whose launches are done."""
        if not self._waiting:
            return
        with self._device.relaxed():
            for _ in range(len(self._waiting)):
                try:
                    raw, streams, event = self._waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                event = event or (self._device.after(streams) if streams else None)
                if not streams or (event is not None and event.done()):
                    self._device.quiet("cuModuleUnload", raw)
                else:
                    self._waiting.append((raw, streams, event))


class Loader:
    """Loads PTX for one device. `cubins` is the disk cache of machine code."""

    def __init__(self, device: Gpu, cubins: DiskCache | None = None) -> None:
        self.device = device
        if cubins is None:
            root = default_directory()
            cubins = DiskCache(None if root is None else root / "cubin", suffix=".cubin")
        self.cubins = cubins

    def key(self, text: str) -> bytes:
        """Everything that the machine code depends on. (The options that the driver gets name buffers for its log.)

        What an assembler made, where the driver could not, stays until one of these changes, whatever is installed.
        """
        digest = hashlib.sha256(text.encode()).hexdigest()
        driver = self.device.driver
        lines = ("line info",) if has_line_info(text) else ()
        return key_of((_FORMAT, digest, self.device.capability, driver.version, driver.build, *lines))

    def load(self, text: str, label: str) -> CudaCode:
        """The loaded module, by the first way that works; one log line says which. See `Device._load`."""
        started = time.perf_counter()
        self.device.unload_retired()
        key = self.key(text)
        code = self._cached(key, text, label)
        failures: list[str] = []
        if code is None:
            for way in (self._by_driver, self._by_assembler):
                origin = way.__name__.removeprefix("_by_")
                try:
                    origin, cubin = way(text)
                    code = CudaCode(self.device, cubin, text, origin)
                except PtxgenError as error:
                    self.device.check()
                    failures.append(f"{origin}: {error}")
                else:
                    self.cubins.put(key, cubin)
                    break
        if code is None:
            raise self._error(text, label, failures)
        tried = f" (after {'; '.join(f.splitlines()[0] for f in failures)})" if failures else ""
        elapsed = (time.perf_counter() - started) * 1e3
        log.info("%s on %s: %s in %.1f ms%s", label, self.device.name, code.origin, elapsed, tried)
        return code

    def _cached(self, key: bytes, text: str, label: str) -> CudaCode | None:
        cubin = self.cubins.get(key)
        if cubin is None:
            return None
        try:
            return CudaCode(self.device, cubin, text, "cached cubin")
        except DriverError as error:
            self.device.check()
            log.warning("%s on %s: the cached cubin was refused (%s); compiling again", label, self.device.name, error)
            return None

    def _by_driver(self, text: str) -> tuple[str, bytes]:
        """Compile with the driver's compiler, for the device of the context, keeping the cubin.

        Where registers are set, the driver's linker would leave that out, and what wgmma reads would not be aligned:
        the text itself is loaded, and the driver has its own cache for what it makes of it.
        """
        if sets_registers(text) or is_of_warpgroups(text):
            return "driver", text.encode() + b"\0"
        device, option = self.device, self.device.api.CUjit_option
        info, errors = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
        options = {
            option.CU_JIT_INFO_LOG_BUFFER: info,
            option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
            option.CU_JIT_ERROR_LOG_BUFFER: errors,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
        }
        if has_line_info(text):
            options[option.CU_JIT_GENERATE_LINE_INFO] = 1
        state = device.call("cuLinkCreate", len(options), list(options), list(options.values()))
        try:
            source = text.encode() + b"\0"
            kind = device.api.CUjitInputType.CU_JIT_INPUT_PTX
            device.call("cuLinkAddData", state, kind, source, len(source), b"ptxgen", 0, [], [])
            address, size = device.call("cuLinkComplete", state)
            return "driver", ctypes.string_at(int(address), int(size))
        except DriverError as error:
            said = _text(errors) or _text(info) or "no log"
            raise ModuleLoadError(f"{error}\n{quoted(text, said)}") from None
        finally:
            device.quiet("cuLinkDestroy", state)

    def _by_assembler(self, text: str) -> tuple[str, bytes]:
        """Compile with nvJitLink or a ptxas, where one is installed: it may be newer than the driver."""
        from ptxgen.assembler import assemble

        major, minor = self.device.capability
        named = re.search(r"^\s*\.target\s+sm_\d+([af]?)", text, re.MULTILINE)
        made = assemble(text, f"sm_{major}{minor}{named[1] if named else ''}")
        return made.assembler, made.cubin

    def _error(self, text: str, label: str, failures: list[str]) -> ModuleLoadError:
        from ptxgen.requires import explain_load

        device = self.device
        version, target = (
            found[1] if (found := re.search(rf"^\s*\.{word}\s+(\S+)", text, re.MULTILINE)) else "missing"
            for word in ("version", "target")
        )
        driver = f"{device.driver.version // 1000}.{device.driver.version % 1000 // 10}"
        where = f"{device.name} ({device.model}, compute capability {device.capability[0]}.{device.capability[1]})"
        said = "\n".join(failures)
        try:
            verdict = explain_load(text, device.driver.version, device.capability).text
        except PtxgenError as unreadable:
            verdict = str(unreadable)
        return ModuleLoadError(
            f"{label}: cannot be loaded on {where}, driver {driver}; text: .version {version}, .target {target}\n"
            f"{verdict}\n{said}\n"
            f"{excerpt(text, said)}the text is in {dump(text)}"
        )


def _text(buffer: bytearray) -> str:
    return bytes(buffer).split(b"\0", 1)[0].decode(errors="replace").strip()


def excerpt(text: str, said: str, around: int = 2) -> str:
    """The lines of `text` around the first line number that a compiler's log names; empty when it names none."""
    found = re.search(r"\bline\s+(\d+)", said)
    if found is None:
        return ""
    at, lines = int(found[1]), text.splitlines()
    span = range(max(at - around, 1), min(at + around, len(lines)) + 1)
    return "".join(f"{'>' if n == at else ' '} {n:5d}  {lines[n - 1]}\n" for n in span)


def dump(text: str) -> str:
    """Write PTX to PTXGEN_DUMP_DIR (default: the directory for temporary files); the path, or why there is none."""
    directory = Path(os.environ.get("PTXGEN_DUMP_DIR") or tempfile.gettempdir())
    path = directory / f"ptxgen-{hashlib.sha256(text.encode()).hexdigest()[:12]}.ptx"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as failure:
        return f"no file ({directory}: {failure.strerror})"
    return str(path)
