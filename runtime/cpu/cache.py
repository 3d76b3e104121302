"""Compiled entries on disk: found by the PTX bytes, without parsing them. Owns keys and the form of the payload."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from dataclasses import asdict, dataclass

from ptxgen import nodes
from ptxgen.runtime.cpu import layout
from ptxgen.runtime.cpu.entry import Entry, core_text, emit_entry, module_text, needed_by
from ptxgen.runtime.cpu.globals import GlobalVariable, describe
from ptxgen.runtime.cpu.host import Host, Linked, compile_ir
from ptxgen.runtime.cpu.support import function_text
from ptxgen.runtime.diskcache import DiskCache, default_directory, key_of

_LONG_FUNCTION = 50_000  # lines of IR: frames of about a megabyte
_EXPORTS = ["warp", "thread.run", "resume.run"]


@functools.lru_cache(maxsize=1)
def disk() -> DiskCache:
    """The cache of this process."""
    directory = default_directory()
    return DiskCache(None if directory is None else directory / "cpu", suffix=".ptxobj")


@functools.lru_cache(maxsize=1)
def _emitter_digest() -> bytes:
    """A digest of the executor's own sources: code that emits differently must not find old objects."""
    from pathlib import Path

    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted(here.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


@functools.lru_cache(maxsize=1024)
def support_object(name: str, host: Host) -> bytes:
    """Object code of one support function, or (`""`) of the core that every entry is linked with."""
    key = key_of(["support", name, layout.FORMAT, _emitter_digest(), host])
    found = disk().get(key)
    if found is None:
        text = module_text([function_text(name)]) if name else core_text()
        found = compile_ir(text, host, level=1 if name else 0)  # the core is large, and runs once a warp or a CTA
        disk().put(key, found)
    return found


@dataclass(frozen=True, slots=True)
class LazyText:
    """PTX text that is parsed when something is not in the cache."""

    text: str
    file: str


class CompiledCache:
    """Entries of one module: from the disk, or compiled and put there."""

    def __init__(self, module: nodes.Module | LazyText, host: Host) -> None:
        self.host = host
        self._module = module
        self.file = module.file
        self.text = module.text if isinstance(module, LazyText) else module.source or str(module)
        self._digest = hashlib.sha256(self.text.encode()).digest()

    @staticmethod
    def lazy(text: str, file: str) -> LazyText:
        """A stand-in for a parsed module."""
        return LazyText(text, file)

    @property
    def module(self) -> nodes.Module:
        """The parsed module."""
        if isinstance(self._module, LazyText):
            from ptxgen.parser import parse

            self._module = parse(self._module.text, self._module.file)
        return self._module

    def _key(self, *what: object) -> bytes:
        return key_of([layout.FORMAT, _emitter_digest(), self._digest, self.host, *what])

    @functools.cached_property
    def _index(self) -> tuple[tuple[str, ...], list[GlobalVariable]]:
        key = self._key("index")
        found = disk().get(key)
        if found is not None:
            data = json.loads(found)
            variables = [GlobalVariable(**{**v, "image": bytes.fromhex(v["image"])}) for v in data["variables"]]
            return tuple(data["entries"]), variables
        entries, variables = tuple(self.module.entries), describe(self.module)
        rows = [{**asdict(v), "image": v.image.hex()} for v in variables]
        disk().put(key, json.dumps({"entries": entries, "variables": rows}).encode())
        return entries, variables

    def entries(self) -> tuple[str, ...]:
        """Names of the entries."""
        return self._index[0]

    def variables(self) -> list[GlobalVariable]:
        """The module's variables by symbol number."""
        return self._index[1]

    def load(self, name: str, check: bool) -> tuple[Entry, Linked]:
        """An entry, linked into this process."""
        key = self._key("entry", name, check)
        found = disk().get(key)
        if found is None:
            entry, text = emit_entry(self.module, name, check, self.host)
            images = [support_object(part, self.host) for part in needed_by(text)]
            images.append(compile_ir(module_text([text]), self.host, _level(text)))
            disk().put(key, _joined([entry.to_json().encode(), *images]))
        else:
            described, *images = _split(found)
            entry = Entry.from_json(described.decode())
        return entry, Linked([support_object("", self.host), *images], _EXPORTS, self.host)


def _level(text: str) -> int:
    """Warp functions run as fast without optimisation, whose codegen takes half the time; but their frames grow."""
    return 0 if text.count("\n") < _LONG_FUNCTION else 1


def _joined(parts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def _split(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        parts.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return parts
