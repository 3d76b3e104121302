"""Compiled entries on disk: found by the PTX bytes, without parsing them. Owns keys and the form of the payload."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from dataclasses import asdict, dataclass

from ptxgen import nodes
from ptxgen.runtime.cpu import layout
from ptxgen.runtime.cpu.entry import Entry, compile_entry, core_text
from ptxgen.runtime.cpu.globals import GlobalVariable, describe
from ptxgen.runtime.cpu.host import Host, Linked, compile_ir
from ptxgen.runtime.diskcache import DiskCache, default_directory, key_of

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


@functools.lru_cache(maxsize=4)
def core_object(host: Host) -> bytes:
    """Object code of what every entry links to."""
    key = key_of(["core", layout.FORMAT, _emitter_digest(), host])
    found = disk().get(key)
    if found is None:
        found = compile_ir(core_text(), host)
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
            entry, image = compile_entry(self.module, name, check, self.host)
            described = entry.to_json().encode()
            disk().put(key, struct.pack("<Q", len(described)) + described + image)
        else:
            (length,) = struct.unpack_from("<Q", found)
            entry, image = Entry.from_json(found[8 : 8 + length].decode()), found[8 + length :]
        return entry, Linked([core_object(self.host), image], _EXPORTS, self.host)
