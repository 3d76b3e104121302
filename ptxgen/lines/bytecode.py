"""Compiled templates between processes, kept as Python keeps its own modules: in `__pycache__` beside the file, or
where `PYTHONPYCACHEPREFIX` says; never written under `PYTHONDONTWRITEBYTECODE`, nor where the folder is read-only.
Those of an installed package lie in the user's cache instead, in files of this user alone, as pip removes what it put
there, and Python's own files. Each place where a package is installed has its own, as code holds its file's name for
tracebacks; those written first go when there are many.

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
from pathlib import Path
from types import CodeType

from ptxgen.files.user_cache import default_directory, read_own, write_own, write_whole

_COMPILERS = ("compiler", "environment", "idtracking", "lexer", "nodes", "parser")  # of Jinja
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_DIGEST = hashlib.sha256().digest_size
_MOST = 600  # files in the user's cache; a package has some 120


def kept(
    source: str, name: str, file: str, part: str, options: Iterable[str], compiled: Callable[[], CodeType]
) -> CodeType:
    """The code of a template's source, from its file in `__pycache__` or compiled, and then written there.

    `part` tells apart what is compiled of one file, letters and digits; `options` are files that decide what a source
    is compiled to.
    """
    place, own = _place(file, part)
    if place is None:
        return compiled()
    digest = hashlib.sha256(repr((_versions(tuple(options)), name, file, part, source)).encode()).digest()
    with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
        data = read_own(place) if own else place.read_bytes()
        made = data[2 * _DIGEST :]
        if data[: 2 * _DIGEST] == digest + hashlib.sha256(made).digest():
            code = marshal.loads(made)
            if isinstance(code, CodeType):
                return code
    code = compiled()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            made = marshal.dumps(code)
            _write(place, own, digest + hashlib.sha256(made).digest() + made)
    return code


def _place(file: str, part: str) -> tuple[Path | None, bool]:
    """Where the code is kept (nowhere where it cannot be), and whether that has to be this user's own."""
    if sys.pycache_prefix is None and _INSTALLED.search(file):
        folder = _users_folder()
        name = hashlib.sha256(repr((MAGIC_NUMBER, file, part)).encode()).hexdigest()
        return folder and folder / f"{name}.pyc", True
    try:
        return Path(cache_from_source(file, optimization=part)), False
    except (NotImplementedError, ValueError):  # no cache in this interpreter
        return None, False


@lru_cache(maxsize=1)
def _users_folder() -> Path | None:
    """The folder of this user's compiled templates, which need not be there; nothing where the cache is off."""
    directory = default_directory()
    return directory and directory / "templates"


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


def _write(place: Path, own: bool, data: bytes) -> None:
    """Nothing is synced: what a crash leaves of a file is not believed."""
    if own:
        write_own(place, data, sync=False)
        _prune(place.parent)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, data, sync=False)


@lru_cache(maxsize=1)
def _prune(folder: Path) -> None:
    """Remove the files written first, those left half written among them; once a process, at what it writes first."""
    found = [(file.lstat().st_mtime_ns, file) for file in folder.iterdir()]
    for _, file in sorted(found)[: max(0, len(found) - _MOST)]:
        with contextlib.suppress(OSError):
            file.unlink()
