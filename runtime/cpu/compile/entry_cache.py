"""Compiled entries on disk: found by the PTX bytes, without parsing them. Owns keys and the form of the payload."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from ptxgen import nodes
from ptxgen.errors import UNREADABLE, IsaError, PtxgenError, VersionWarning, unreadable
from ptxgen.gc_pause import GcPause
from ptxgen.runtime.core.diskcache import key_of
from ptxgen.runtime.cpu.compile import support_objects
from ptxgen.runtime.cpu.compile.entry import Entry, emit_entry, module_text, needed_by
from ptxgen.runtime.cpu.compile.variable_images import GlobalVariable, describe
from ptxgen.runtime.cpu.native import layout
from ptxgen.runtime.cpu.native.host import Host, Linked, compile_ir

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.compile.counting import Counts

_LONG_FUNCTION = 50_000  # lines of IR: frames of about a megabyte
_MANY_BRANCHES = 20_000  # labels that branches name: seconds of optimised codegen, which grow faster than they do
# how a payload fails that was not written by this version: in its form, or in LLVM's linker (RuntimeError)
_UNUSABLE = (ValueError, LookupError, TypeError, AttributeError, struct.error, RuntimeError)
_EXPORTS = ["warp", "thread.run", "resume.run"]


@dataclass(frozen=True, slots=True)
class Objects:
    """An entry's object code: of its warp function, and of the support functions that this calls."""

    entry: Entry
    names: tuple[str, ...]  # of the support functions
    warp: bytes
    support: tuple[bytes, ...]
    good: bool  # whether they are all optimised

    def to_bytes(self) -> bytes:
        """As bytes for the disk cache."""
        head = json.dumps({"entry": asdict(self.entry), "names": self.names, "good": self.good}, separators=(",", ":"))
        return _joined([head.encode(), self.warp, *self.support])

    @classmethod
    def from_bytes(cls, data: bytes) -> Objects:
        """The inverse of `to_bytes`."""
        head, warp, *support = _split(data)
        fields = json.loads(head)
        return cls(Entry.from_dict(fields["entry"]), tuple(fields["names"]), warp, tuple(support), fields["good"])


@dataclass(frozen=True, slots=True)
class LazyText:
    """PTX text that is parsed, and checked if `verify` says so, when something is not in the cache."""

    text: str
    file: str
    verify: bool = False


@dataclass(frozen=True, slots=True)
class _Index:
    """What a module holds, and what to warn of whenever it is loaded: known text is not parsed again."""

    entries: tuple[str, ...]
    variables: list[GlobalVariable]  # by symbol number
    newer: str  # a `.version` above the table's, a `.target` below it


class CompiledCache:
    """Entries of one module: from the disk, or compiled and put there."""

    def __init__(self, module: nodes.Module | LazyText, host: Host) -> None:
        self.host = host
        self._module = module
        self.file = module.file
        self.text = module.text if isinstance(module, LazyText) else module.source or str(module)
        self._digest = hashlib.sha256(self.text.encode()).digest()
        self._known: _Index | None = None
        self._refused: dict[str, str] = {}  # entries of foreign text, and why
        self._emitted: nodes.Module | None = None
        self._canonical: nodes.Module | None = None  # until it is emitted
        self._foreign = False

    @staticmethod
    def lazy(text: str, file: str, verify: bool = False) -> LazyText:
        """A stand-in for a parsed module."""
        return LazyText(text, file, verify)

    @property
    def module(self) -> nodes.Module:
        """The parsed module, as it is written."""
        if isinstance(self._module, LazyText):
            from ptxgen.parser import parse

            self._foreign = self._module.verify
            self._module = parse(self._module.text, self._module.file)
        return self._module

    @property
    def emitted(self) -> nodes.Module:
        """The module that is compiled: foreign text in the table's notation, and in instructions that have emitters."""
        if self._emitted is None:
            self._emitted = self.module
            if self._foreign:
                from ptxgen.foreign import lowered

                self._emitted, self._canonical = lowered(self.canonical), None
        return self._emitted

    @property
    def canonical(self) -> nodes.Module:
        """Foreign text in the table's notation."""
        if self._canonical is None:
            from ptxgen.foreign import canonical

            self._canonical = canonical(self.module)
        return self._canonical

    def _key(self, *what: object) -> bytes:
        return key_of([layout.FORMAT, support_objects.sources_digest(), self._digest, self.host, *what])

    @property
    def _index(self) -> _Index:
        """What the module holds. (A `cached_property` of Python 3.10 has a lock for all objects.)"""
        if self._known is None:
            with self._readable(), GcPause():
                self._known = self._looked_up()
            if self._known.newer:
                warnings.warn(self._known.newer, VersionWarning, stacklevel=2)
        return self._known

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Whatever Python raises for a text beyond all bounds becomes an `IsaError`."""
        try:
            yield
        except PtxgenError:
            raise
        except UNREADABLE as wrong:
            if isinstance(wrong, RecursionError):
                raise IsaError(f"{self.file}: functions, scopes or expressions nest too deeply") from None
            raise IsaError(f"{self.file}: {unreadable(wrong)}") from None

    def _looked_up(self) -> _Index:
        verify = self._foreign or (isinstance(self._module, LazyText) and self._module.verify)
        key = self._key("index", verify, self.file)  # the file's name stands in what is warned of
        found = support_objects.disk().get(key)
        if found is not None:
            with contextlib.suppress(*_UNUSABLE):
                data = json.loads(found)
                variables = [GlobalVariable(**{**v, "image": bytes.fromhex(v["image"])}) for v in data["variables"]]
                return _Index(tuple(data["entries"]), variables, data["newer"])
        newer = ""
        if verify:
            from ptxgen.runtime.cpu.compile import foreign_text

            newer, self._refused = foreign_text.noted(self.module), foreign_text.verify(self.canonical)
        index = _Index(tuple(self.module.entries), describe(self.emitted), newer)
        rows = [{f.name: getattr(v, f.name) for f in fields(v)} | {"image": v.image.hex()} for v in index.variables]
        if not self._refused:  # the next version may know what this one does not
            data = {"entries": index.entries, "variables": rows, "newer": newer}
            support_objects.disk().put(key, json.dumps(data).encode())
        return index

    def entries(self) -> tuple[str, ...]:
        """Names of the entries."""
        return self._index.entries

    def variables(self) -> list[GlobalVariable]:
        """The module's variables by symbol number."""
        return self._index.variables

    def load(self, name: str, check: bool) -> tuple[Objects, Linked]:
        """An entry, linked into this process. `IsaError` for one that holds what is unknown or not supported."""
        if name in self._refused:
            raise IsaError(self._refused[name])
        found = support_objects.disk().get(self._key("entry", name, check))
        if found is not None:
            with contextlib.suppress(*_UNUSABLE):  # compiled again, whatever its checksum says
                objects = Objects.from_bytes(found)
                return objects, self._link(objects, check)
        objects = self._compiled(name, check)
        try:
            return objects, self._link(objects, check)
        except RuntimeError:  # of the linker: support functions that were on disk are no object code
            support_objects.of(self.host, check).distrust()
        objects = self._compiled(name, check)
        return objects, self._link(objects, check)

    def counting(self, name: str) -> tuple[Entry, Linked, Counts]:
        """An entry in fast mode that counts what it executes; it is never kept."""
        from ptxgen.runtime.cpu.compile.counting import counting

        if name in self._refused:
            raise IsaError(self._refused[name])
        with self._readable():
            return counting(self.emitted, name, self.host, _EXPORTS)

    def _compiled(self, name: str, check: bool) -> Objects:
        """An entry, compiled and kept."""
        with self._readable():
            entry, text = emit_entry(self.emitted, name, check, self.host)
        names = tuple(needed_by(text, check))
        warp = compile_ir(module_text([text]), self.host, _level(text))
        groups = support_objects.of(self.host, check).quick(names)
        objects = Objects(entry, names, warp, tuple(g.image for g in groups), all(g.good for g in groups))
        support_objects.disk().put(self._key("entry", name, check), objects.to_bytes())
        return objects

    def improve(self, objects: Objects, check: bool) -> tuple[Objects, Linked]:
        """The same with optimised support functions; kept in the place of what was there."""
        groups = support_objects.of(self.host, check).good(objects.names)
        better = replace(objects, support=tuple(g.image for g in groups), good=True)
        support_objects.disk().put(self._key("entry", objects.entry.name, check), better.to_bytes())
        return better, self._link(better, check)

    def _link(self, objects: Objects, check: bool) -> Linked:
        core = support_objects.of(self.host, check).core()
        return Linked([core, *objects.support, objects.warp], _EXPORTS)


def _level(text: str) -> int:
    """Warp functions run as fast without optimisation, whose codegen takes half the time; but their frames grow, with
    the length of their blocks rather than the number of these."""
    return 0 if text.count("\n") < _LONG_FUNCTION or text.count(" label %") > _MANY_BRANCHES else 1


def _joined(parts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def _split(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        parts.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return parts
