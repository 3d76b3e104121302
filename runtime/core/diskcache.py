"""Bytes kept between processes: one file an entry, with magic, length and checksum. Owns no meaning of the bytes.

There are no locks: a writer makes a temporary file, syncs it and renames it; a reader takes only what its checksum
confirms. As some of it is run as machine code, a directory or a file counts only if it is this user's own and no other
user may write there. A file system that fails costs one warning, after which the entries concerned stay in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakSet

from ptxgen.errors import CacheWarning
from ptxgen.files.user_cache import read_own, write_own

_MAGIC = b"PTXGENC\x01"
_HEAD = struct.Struct("<8sIQ32s")  # magic, key length, payload length, SHA-256 of key and payload
_STALE_SECONDS = 3600.0  # a temporary file this old belongs to a process that died
_SHARE = 16  # of the cap: a process that wrote this part of it looks what others wrote
DEFAULT_CAP_BYTES = 1 << 30

File = tuple[int, int, str]  # last use (or write) in ns, bytes, path
_caches: WeakSet[DiskCache] = WeakSet()


def key_of(parts: Iterable[object]) -> bytes:
    """One key from several parts (`bytes` as they are, all else by `repr`); kind and length keep them apart."""
    key = bytearray()
    for part in parts:
        piece = part if isinstance(part, bytes) else repr(part).encode()
        key += struct.pack("<?Q", isinstance(part, bytes), len(piece)) + piece
    return bytes(key)


class DiskCache:
    """Payloads by key, least recently used first to go once they exceed `cap_bytes`.

    `directory` None keeps everything in memory. `get` and `put` never raise for a reason of the file system. While n
    processes write, there may be (n - 1) / 16 more than `cap_bytes` on disk, and a file of each that was killed, for an
    hour.
    """

    def __init__(self, directory: Path | None, *, cap_bytes: int = DEFAULT_CAP_BYTES, suffix: str = ".bin") -> None:
        if cap_bytes <= 0:
            raise ValueError(f"DiskCache.cap_bytes: must be at least 1 (got {cap_bytes})")
        self.directory = directory
        self.cap_bytes = cap_bytes
        self.suffix = suffix
        self.read_only = False  # entries are found there, and kept in memory
        self.hits = 0
        self.misses = 0
        self._memory: OrderedDict[bytes, bytes] = OrderedDict()
        self._on_disk = cap_bytes  # bytes, as far as this process knows; it looks at its first write
        self._written = 0  # bytes of them since it looked
        self._warned = False
        self._lock = threading.Lock()
        _caches.add(self)

    def path(self, key: bytes) -> Path | None:
        """Where the entry of a key lies or would lie."""
        if self.directory is None:
            return None
        return self.directory / (hashlib.sha256(key).hexdigest() + self.suffix)

    def get(self, key: bytes) -> bytes | None:
        """The payload, or None: unknown, truncated, altered, or unreadable."""
        with self._lock:
            kept = self._memory.get(key)
            if kept is not None:
                self._memory.move_to_end(key)
        payload = kept if kept is not None else self._read(key)
        if payload is None:
            self.misses += 1
        else:
            self.hits += 1
        return payload

    def __contains__(self, key: bytes) -> bool:
        """Whether there is an entry, which `get` may yet find damaged."""
        path = self.path(key)
        return key in self._memory or (path is not None and os.path.exists(path))

    def put(self, key: bytes, payload: bytes) -> None:
        """Keep a payload. Another process that writes the same key at the same time does no harm."""
        data = _HEAD.pack(_MAGIC, len(key), len(payload), _checksum(key, payload)) + key + payload
        if self.directory is None or self.read_only or len(data) > self._kept:
            self._remember(key, payload)
            return
        try:
            self._write(key, data)
        except OSError as failure:
            self._warn(failure)
            self._remember(key, payload)

    def clear(self) -> None:
        """Forget every entry, those on disk included."""
        with self._lock:
            self._memory.clear()
        for _, _, path in self._files()[0]:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def size(self) -> tuple[int, int]:
        """(entries, bytes) on disk and in memory now."""
        sizes = [size for _, size, _ in self._files()[0]] + [len(p) for p in self._memory.values()]
        return len(sizes), sum(sizes)

    def _read(self, key: bytes) -> bytes | None:
        path = self.path(key)
        if path is None:
            return None
        try:
            data = read_own(path)
        except FileNotFoundError:
            return None
        except OSError as failure:
            self._warn(failure)
            return None
        payload = _checked(key, data)
        if self.read_only:
            return payload
        with contextlib.suppress(OSError):
            if payload is None:
                path.unlink()  # damaged: it would be read again at every look-up
            else:
                os.utime(path)  # its place in the order of use
        return payload

    @property
    def _kept(self) -> int:
        """Bytes on disk to which an eviction goes back; a larger entry would be gone as soon as it was written."""
        return self.cap_bytes * 9 // 10

    def _write(self, key: bytes, data: bytes) -> None:
        path = self.path(key)
        assert path is not None
        write_own(path, data)
        self._account(len(data))

    def _account(self, added: int) -> None:
        """Look at the directory when it may hold more than the cap, by this process's writes or by others'."""
        with self._lock:
            self._on_disk += added
            self._written += added
            if self._on_disk > self.cap_bytes or self._written > self.cap_bytes // _SHARE:
                self._on_disk, self._written = self._tidy(), 0

    def _tidy(self) -> int:
        """Remove temporaries of dead writers, and what exceeds the cap, down to nine tenths of it; the bytes left."""
        entries, temporaries = self._files()
        dead = (time.time() - _STALE_SECONDS) * 1e9
        gone = [path for written, _, path in temporaries if written < dead]
        total = sum(size for _, size, _ in entries)
        if total > self.cap_bytes:
            for _, size, path in sorted(entries):
                if total <= self._kept:
                    break
                gone.append(path)
                total -= size
        for path in gone:
            with contextlib.suppress(OSError):
                os.unlink(path)
        return total

    def _files(self) -> tuple[list[File], list[File]]:
        """Entries and temporaries; those that vanish meanwhile are left out."""
        entries: list[File] = []
        temporaries: list[File] = []
        if self.directory is not None:
            self._list(self.directory, entries, temporaries)
        return entries, temporaries

    def _list(self, directory: Path, entries: list[File], temporaries: list[File]) -> None:
        with contextlib.suppress(OSError), os.scandir(directory) as listing:
            for item in listing:
                name = item.name
                if name.startswith("."):
                    kind = temporaries if name.endswith(".tmp") and f"{self.suffix}." in name else None
                else:
                    kind = entries if name.endswith(self.suffix) else None
                if kind is not None:
                    with contextlib.suppress(OSError):
                        status = item.stat()
                        kind.append((status.st_mtime_ns, status.st_size, item.path))

    def _remember(self, key: bytes, payload: bytes) -> None:
        with self._lock:
            self._memory[key] = payload
            self._memory.move_to_end(key)
            total = sum(map(len, self._memory.values()))
            while total > self.cap_bytes and len(self._memory) > 1:
                total -= len(self._memory.popitem(last=False)[1])

    def _warn(self, failure: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"cache directory {self.directory}: {failure.strerror or failure}; entries stay in memory "
                "(set PTXGEN_CACHE_DIR to a writable directory of your own, or to 'off')",
                CacheWarning,
                stacklevel=4,
            )


def _checksum(key: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(key + payload).digest()


def _checked(key: bytes, data: bytes) -> bytes | None:
    """The payload of a file's bytes, if every field of its head agrees."""
    if len(data) < _HEAD.size:
        return None
    magic, key_length, length, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC or len(data) != _HEAD.size + key_length + length:
        return None
    body = data[_HEAD.size :]
    if body[:key_length] != key or hashlib.sha256(body).digest() != checksum:
        return None
    return body[key_length:]


def _after_fork() -> None:
    """A thread that held a lock is not in the child."""
    for cache in list(_caches):
        cache._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
