"""Where kernel types are found: our own by the names of the modules in `ptxgen/kernels`, those of other packages by the
entry point group of that name, with templates beside their modules.

A module that cannot be had costs a warning of one sentence; every other kernel type is there all the same.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from ptxgen.errors import PtxgenError, SpecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from pathlib import Path

GROUP = "ptxgen.kernels"  # our folder's name, too
OURS = "ptxgen"
_FOLDERS: dict[Path, str] = {}  # where templates lie -> the module that they are beside
_TRIED: set[str] = set()  # values of entry points, and names of modules of ours that cannot be had
_FAILED: list[str] = []


class KernelWarning(UserWarning):
    """A module of kernel types that cannot be had."""


def own_modules() -> list[str]:
    """Names of the modules in `ptxgen/kernels`, which are the snake-case names of our kernel types."""
    return sorted(module.name for module in pkgutil.iter_modules([os.path.join(os.path.dirname(__file__), "kernels")]))


def snake_case(name: str) -> str:
    """What the kernel type of a class is called: `top_k_mask` for `TopKMask`. A snake-case name stays as it is."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def class_name(module: str) -> str:
    """What the class in a module of ours is called: `TopKMask` in `top_k_mask`."""
    return "".join(word.capitalize() for word in module.split("_"))


def check_named(cls: type) -> None:
    """Raise `SpecError` where the class of a kernel type of ours has not the name that its module says."""
    module, given = cls.__module__.removeprefix(f"{GROUP}."), cls.__name__
    classes, modules = class_name(module), snake_case(given)
    if (classes, modules) != (given, module):
        ways = [f"class {classes}"] if snake_case(classes) == module else []
        ways += [f"module {modules}.py"] if class_name(modules) == given else []
        near = " or ".join(ways) or f"class {class_name(modules)} in {modules}.py"
        rule = "class and module must be named alike, as RmsNorm in rms_norm.py"
        raise SpecError(f"{given}: {rule} (got {module}.py; nearest: {near})")


def load_own(name: str, registered: Mapping[str, type]) -> None:
    """Import a module of ours. Raises `SpecError` where it cannot be had, or its kernel type is not `registered`."""
    try:
        importlib.import_module(f"{GROUP}.{name}")
    except (Exception, SystemExit) as wrong:
        raise SpecError(f"{GROUP}.{name}: {_cannot(wrong)}") from wrong
    if name not in registered:
        raise SpecError(f"{GROUP}.{name}: {_NONE}")


def load_every_own(registered: Mapping[str, type]) -> None:
    """Import every module of ours; warn, once, of each that cannot be had."""
    for name in own_modules():
        if name not in _TRIED and name not in registered:
            try:
                load_own(name, registered)
            except SpecError as wrong:
                _TRIED.add(name)
                _FAILED.append(str(wrong))
                warnings.warn(str(wrong), KernelWarning, stacklevel=3)


def package_of(cls: type) -> str:
    """The top-level package that a kernel type comes from."""
    return cls.__module__.partition(".")[0]


def admit(cls: type, name: str, known: type | None) -> None:
    """Let a class of another package in as the kernel type `name`: its templates are found from now on.

    Raises `SpecError` where the name, or that of a template, is taken.
    """
    from pathlib import Path  # slow to import, and needed by packages alone

    where = f"{cls.__module__}.{cls.__qualname__}"
    owner = f"{GROUP}.{name}" if name in own_modules() else known.__module__ if known else cls.__module__
    if owner != cls.__module__:
        raise SpecError(f"{where}: another kernel type is called {name}, in {owner}; give the class another name")
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    beside = Path(file).resolve().parent if file else None
    ours = templates_folder().resolve()  # beside a module in the root of a checkout, too
    for folder in (beside, beside / "templates") if beside else ():
        if folder not in _FOLDERS and folder.is_dir() and folder.resolve() != ours:
            for template in sorted(folder.glob("*.ptx.j2")):
                if taken := find_template(template.name):
                    raise SpecError(f"{where}: another template is called {template.name}, {taken}; rename {template}")
            _FOLDERS[folder] = cls.__module__


def find_template(name: str) -> Path | None:
    """The file of a template, ours or of another package."""
    return next((each / name for each in (templates_folder(), *_FOLDERS) if (each / name).is_file()), None)


def templates_folder() -> Path:
    """Where our own templates lie; a checkout without symbolic links has the folder beside the package only."""
    from pathlib import Path

    inside = Path(__file__).resolve().parent / "templates"
    return inside if inside.is_dir() else inside.parents[1] / "templates"


def template_folders() -> tuple[Path, ...]:
    """Where templates of other packages lie."""
    return tuple(_FOLDERS)


@cache
def _entries() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # slow to import, and needed where all kernel types are asked for

    return tuple(sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)))


def load_packages(registered: Mapping[str, type]) -> None:
    """Import the modules that installed packages name, each once; warn of each that cannot be had, or after which no
    kernel type of it is `registered`."""
    for entry in _entries():
        if entry.value not in _TRIED:
            _TRIED.add(entry.value)  # first: the module may ask for all kernel types itself
            if reason := _why_not(entry, registered):
                said = f"{entry.value} (entry point {entry.name!r} of {GROUP}): {reason}"
                _FAILED.append(said)
                warnings.warn(said, KernelWarning, stacklevel=3)


def _why_not(entry: EntryPoint, registered: Mapping[str, type]) -> str:
    try:
        entry.load()
    except (Exception, SystemExit) as wrong:
        return _cannot(wrong)
    modules = {cls.__module__ for cls in registered.values()}
    there = any(name == entry.module or name.startswith(f"{entry.module}.") for name in modules)
    return "" if there else _NONE


_NONE = "registers no kernel type (@kernel_type)"


def _cannot(wrong: BaseException) -> str:
    """Why a module cannot be imported, and its line where that is known; an error of ours says why by itself."""
    import traceback

    from ptxgen.places import shown_path

    lines = [frame for frame in traceback.extract_tb(wrong.__traceback__) if frame.name == "<module>"]
    place = f" ({shown_path(lines[-1].filename)}:{lines[-1].lineno})" if lines else ""
    why = "" if isinstance(wrong, PtxgenError) else f"cannot be imported: {type(wrong).__name__}: "
    return f"{why}{' '.join(str(wrong).split())}{place}"


def failures() -> tuple[str, ...]:
    """A sentence for each module that cannot be had."""
    return tuple(_FAILED)
