"""Object code of the support functions, and where all object code is kept. Owns when they are optimised.

A first launch must not wait long: what it lacks is compiled together, without optimisation. Code that has run for a
while asks for each function optimised, which takes some three times as long and is kept on disk for every later kernel.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import ptxgen
from ptxgen.files.user_cache import default_directory
from ptxgen.runtime.core.diskcache import DiskCache, key_of
from ptxgen.runtime.cpu.compile.entry import core_text, module_text, needed_by
from ptxgen.runtime.cpu.flow import registry
from ptxgen.runtime.cpu.native import layout
from ptxgen.runtime.cpu.native.fork_safety import renewed_in_children
from ptxgen.runtime.cpu.native.host import Host, Linked, compile_ir, this_host
from ptxgen.runtime.cpu.support import function_text


@functools.lru_cache(maxsize=1)
def disk() -> DiskCache:
    """The cache of this process."""
    directory = default_directory()
    return DiskCache(None if directory is None else directory / "cpu", suffix=".ptxobj")


@functools.lru_cache(maxsize=1)
def sources_digest() -> bytes:
    """A digest of the executor's own sources: code that emits differently must not find old objects."""
    digest = hashlib.sha256()
    package = Path(ptxgen.__file__).parent
    for folder in (Path(__file__).parents[1], package / "foreign", package / "parser"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Group:
    """Functions that are in one object."""

    names: tuple[str, ...]
    image: bytes
    good: bool


class Library:
    """The support functions for one host, for check mode or for the others."""

    def __init__(self, host: Host, check: bool) -> None:
        self.host, self.check = host, check
        self._lock = threading.RLock()
        self._quick: dict[str, Group] = {}
        self._good: dict[str, Group] = {}
        self._core = b""
        self._trusts_disk = True
        renewed_in_children(self)

    def renew_lock(self) -> None:
        """Take a free lock: another thread may have held the old one when the process was forked."""
        self._lock = threading.RLock()

    def distrust(self) -> None:
        """What was on disk is no object code, whatever its checksum: compile all of it again, and keep that."""
        with self._lock:
            self._trusts_disk, self._core = False, b""
            self._quick.clear()
            self._good.clear()

    def _found(self, name: str) -> bytes | None:
        return disk().get(self._key(name)) if self._trusts_disk else None

    def core(self) -> bytes:
        """What every entry is linked with; it is large, and runs once a warp or a CTA, so it is never optimised."""
        with self._lock:
            if not self._core:
                self._core = self._kept("core", lambda: compile_ir(core_text(self.check), self.host, level=0))
            return self._core

    def quick(self, names: Sequence[str]) -> list[Group]:
        """Objects that hold these functions and all that those call, as soon as possible."""
        with self._lock:
            for name in names:
                if name not in self._quick and (found := self._found(name)) is not None:
                    self._good[name] = self._quick[name] = Group((name,), found, True)
            missing = tuple(name for name in names if name not in self._quick)
            if missing:
                image = compile_ir(module_text([function_text(n, self.check) for n in missing]), self.host, level=0)
                self._quick.update(dict.fromkeys(missing, Group(missing, image, False)))
            return self._with_all_they_call(names)

    def good(self, names: Iterable[str]) -> list[Group]:
        """An optimised object of each of these functions."""
        with self._lock:
            for name in names:
                if name not in self._good:
                    text = module_text([function_text(name, self.check)])
                    image = self._kept(name, lambda text=text: compile_ir(text, self.host, level=1))  # type: ignore[misc]
                    self._good[name] = Group((name,), image, True)
            return [self._good[name] for name in names]

    def _with_all_they_call(self, names: Sequence[str]) -> list[Group]:
        """A group may hold more than was asked for, which calls functions of other groups."""
        chosen: dict[str, Group] = {}  # by first name
        todo = list(names)
        while todo:
            group = self._quick[todo.pop()]
            if group.names[0] not in chosen:
                chosen[group.names[0]] = group
                for name in group.names:
                    todo += needed_by(function_text(name, self.check), self.check)
        return list(chosen.values())

    def _key(self, name: str) -> bytes:
        return key_of(["support", name, self.check, layout.FORMAT, sources_digest(), self.host])

    def _kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        found = self._found(name)
        if found is None:
            found = make()
            disk().put(self._key(name), found)
        return found


@functools.lru_cache(maxsize=16)
def of(host: Host, check: bool) -> Library:
    """The library of this process."""
    return Library(host, check)


def prepare(check: bool) -> None:
    """Do what no kernel need wait for: start the compiler, import what loads, have the core at hand, link once."""
    import_module("ptxgen.runtime.core.launches.module")
    registry.family_of(("ret",))
    sources_digest()
    library = of(this_host(), check)
    try:
        Linked([library.core()], ["thread.run"])  # a process's first link takes half a millisecond longer
    except RuntimeError:  # no object code
        library.distrust()
