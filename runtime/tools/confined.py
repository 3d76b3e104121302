"""The process that `isolate` starts: takes a call, limits itself, makes the call, answers. Owns those limits."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pickle
import sys
import warnings
from typing import TYPE_CHECKING, Any

from ptxgen.errors import PtxgenError, unreadable
from ptxgen.runtime.cpu.compile import support_objects

if TYPE_CHECKING:
    from ptxgen.runtime.tools.isolate import Limits

_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # Landlock's system calls, alike on all architectures
_WRITES = 0x7FF3  # starting programs, writing, removing, making of every kind, linking, truncating; not reading
_NO_NEW_PRIVILEGES = 38


def main() -> None:
    """Read a call from stdin and write its answer to what was stdout; what is printed goes to stderr."""
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        limits, function, arguments, named = pickle.load(sys.stdin.buffer)
        with contextlib.suppress(PtxgenError):
            support_objects.prepare(True)
        support_objects.disk().read_only = True
        confine(limits)
        found = _called(function, arguments, named)
        sys.stdout.flush()
        answer.write(found)


def _called(function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> bytes:
    """("value" or why there is none, it, warnings), pickled."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            kind, value = "value", function(*arguments, **named)
        except PtxgenError as error:
            starved = isinstance(error.__context__, MemoryError) or unreadable(MemoryError()) in str(error)
            kind, value = ("memory", None) if starved else ("raised", error)
        except MemoryError:
            kind, value = "memory", None
        except Exception as error:
            starved = getattr(error, "errno", 0) == errno.ENOMEM or "failed to map segment" in str(error)
            kind, value = ("memory", None) if starved else ("failed", f"{type(error).__name__}: {error}")
    return pickle.dumps((kind, value, [(_category(each.category), str(each.message)) for each in seen]))


def _category(category: type[Warning]) -> type[Warning]:
    """Of a warning, as the other process may know it."""
    return category if category.__module__.partition(".")[0] in ("builtins", "ptxgen") else UserWarning


def confine(limits: Limits) -> None:
    """Limit this process for good: memory, CPU time, no core dump, and no byte written to a file."""
    try:
        import resource
    except ImportError:  # Windows has none: wall time is the parent's
        return
    _lower(resource.RLIMIT_AS, limits.memory + _address_space())
    _lower(resource.RLIMIT_CPU, limits.cpu_seconds + int(sum(os.times()[:2])), 2)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_CORE, 0)
    with contextlib.suppress(OSError, AttributeError):
        _landlock()


def _lower(which: int, most: int, more: int = 0) -> None:
    """A limit of `most`, and `more` until the process is killed; one that is lower already stays."""
    import resource

    hard = resource.getrlimit(which)[1]
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with contextlib.suppress(OSError, ValueError):  # macOS knows no limit of address space
        resource.setrlimit(which, (value, value + more if hard == resource.RLIM_INFINITY else min(value + more, hard)))


def _address_space() -> int:
    """Bytes of address space in use, as far as the system says it."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64)]


def _landlock() -> None:
    """Where Linux has Landlock: no file is written, made or removed, no TCP, no signal to another process."""
    if not sys.platform.startswith("linux"):
        return
    system = ctypes.CDLL(None, use_errno=True)
    call = system.syscall
    call.restype = ctypes.c_long
    version = call(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return
    writes = _WRITES & ((1 << (13 if version < 2 else 14 if version < 3 else 15)) - 1)
    rules = _Ruleset(writes, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = call(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0)
    if ruleset >= 0 and system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0:
        call(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
