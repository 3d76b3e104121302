"""Compiled templates between processes, kept as Python keeps its own modules: in `__pycache__` beside the file, or
where `PYTHONPYCACHEPREFIX` says; never written under `PYTHONDONTWRITEBYTECODE`, nor where the folder is read-only.
Those of an installed package lie in the user's cache instead: pip removes what it put there, and Python's own files.

A file has two digests, then the code. The first is of all that the code comes from: the source, the template's name
and the place of its file, Python's magic number, and time and size of the files of Jinja and of this package that
compile it. The second is of the code itself, so that damage is not believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.util import MAGIC_NUMBER, cache_from_source
from types import CodeType

from ptxgen.files.user_cache import default_directory, demand_own_directory, make_private

_COMPILERS = ("compiler", "environment", "idtracking", "lexer", "nodes", "parser")  # of Jinja
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_DIGEST = hashlib.sha256().digest_size


def kept(
    source: str, name: str, file: str, part: str, options: Iterable[str], compiled: Callable[[], CodeType]
) -> CodeType:
    """The code of a template's source, from its file in `__pycache__` or compiled, and then written there.

    `part` tells apart what is compiled of one file, letters and digits; `options` are files that decide what a source
    is compiled to.
    """
    place = _place(file, part)
    if not place:
        return compiled()
    digest = hashlib.sha256(repr((_versions(tuple(options)), name, file, part, source)).encode()).digest()
    with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
        with open(place, "rb") as found:
            data = found.read()
        made = data[2 * _DIGEST :]
        if data[: 2 * _DIGEST] == digest + hashlib.sha256(made).digest():
            code = marshal.loads(made)
            if isinstance(code, CodeType):
                return code
    code = compiled()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            made = marshal.dumps(code)
            _write(place, digest + hashlib.sha256(made).digest() + made)
    return code


def _place(file: str, part: str) -> str:
    """Where the code is kept; nothing where it cannot be."""
    if sys.pycache_prefix is None and _INSTALLED.search(file):
        name = hashlib.sha256(repr((MAGIC_NUMBER, file, part)).encode()).hexdigest()
        return os.path.join(folder, f"{name}.pyc") if (folder := _users_folder()) else ""
    try:
        return cache_from_source(file, optimization=part)
    except (NotImplementedError, ValueError):  # no cache in this interpreter
        return ""


@lru_cache(maxsize=1)
def _users_folder() -> str:
    """The folder of this user's compiled templates, made where it is not there; nothing where others may write."""
    directory = default_directory()
    if directory is None:
        return ""
    directory /= "templates"
    try:
        if not sys.dont_write_bytecode:
            make_private(directory)
        demand_own_directory(directory)
    except OSError:
        return ""
    return str(directory)


@lru_cache(maxsize=1)
def _versions(options: tuple[str, ...]) -> str:
    """Python's magic number, and time and size of the files that compile templates, by which Python tells its own."""
    import jinja2

    folder = os.path.dirname(jinja2.__file__ or "")
    files = (*(os.path.join(folder, f"{name}.py") for name in _COMPILERS), __file__, *options)
    return repr((MAGIC_NUMBER, [(s.st_mtime_ns, s.st_size) for s in map(_stat, files) if s]))


def _stat(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)
    except OSError:  # inside an archive
        return None


def _write(place: str, data: bytes) -> None:
    """Write a file that others may be reading or writing: whole, or not at all."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    before = f"{place}.{os.getpid()}.{id(data)}"
    try:
        with open(before, "xb") as file:
            file.write(data)
        os.replace(before, place)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(before)
        raise
