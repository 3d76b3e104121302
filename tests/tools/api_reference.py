"""Writes docs/api.md, the reference of the public names, from their docstrings.

    python -m tests.tools.api_reference           write it
    python -m tests.tools.api_reference --check   exit 1 where it is not what is written; it may lack new kernel types

Public is what `dir()` of `ptxgen`, `ptxgen.kernels` and `ptxgen.runtime` shows, and what `AUTHORS` names of other
modules. Of a class public is what has no underscore before it. A public name without a docstring is an error; the
docstring of a constant or an alias is the string below it.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.report.sentence import show_help

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
MODULES = ("ptxgen", "ptxgen.runtime", "ptxgen.kernels")
# What users import besides: modules and which of their names; none: what `dir()` shows.
AUTHORS: dict[str, tuple[str, ...]] = {
    "ptxgen.kernel": ("Arrays", "Spread", "field"),
    "ptxgen.launch": ("buffer", "scalar", "workspace"),
    "ptxgen.dtypes": (
        "f64", "f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64",
    ),
    "ptxgen.lengths": ("Past", "past_lengths", "past_pages", "written_rows"),
    "ptxgen.rules": (),
    "ptxgen.builder": ("Builder",),
    "ptxgen.builder.values": ("Addr", "Not", "Reg", "RegArray", "Shared", "Table"),
    "ptxgen.idioms": (),
    "ptxgen.attention.variant": ("PerHead", "Scores", "Step", "Variant"),
    "ptxgen.finding": ("Finding", "Spot"),
    "ptxgen.models": (),
    "ptxgen.models.files": ("ModelFile", "TensorInfo", "open_model", "quantised"),
    "ptxgen.models.program": ("Op", "Part", "Program", "Ref", "Tensor"),
    "ptxgen.weights": (),
    "ptxgen.tuning": ("in_force", "own_path", "shipped", "using"),
    "ptxgen.runtime.tools.checker": ("Launch", "Report", "Run", "Seen", "check"),
    "ptxgen.runtime.tools.isolate": ("Limits", "isolated"),
    "ptxgen.runtime.tools.trial": ("Trial", "trial"),
    "ptxgen.testing": (),
    "ptxgen.testing.numba_kernel": ("NumbaKernel", "NumbaText", "compile_numba"),
    "ptxgen.testing.raw_kernel": ("RawKernel", "RawModule"),
    "ptxgen.testing.triton": ("Driver", "install", "install_from_environment", "uninstall"),
    "ptxgen.testing.triton_compile": ("TritonKernel", "compile_kernel"),
    "ptxgen.transformers": ("growing_cache", "install"),
    "ptxgen.vllm": ("register",),
}  # fmt: skip
# Modules that need what may not be installed: they are read, not imported, and have the functions that they define.
READ = ("ptxgen.torch",)
HEAD = """# API reference

Written from the docstrings by `python -m tests.tools.api_reference`; do not edit.

`ptxgen`, `ptxgen.runtime` and `ptxgen.kernels` are what one uses to generate and to run. From `ptxgen.kernel` on stands
what authors of kernel types need besides; then come models and weights, tuning, checks of any PTX, other compilers'
kernels under test, and the operators for torch.
"""


def page(like: str | None = None) -> str:
    """The whole document; only with those kernel types that the page `like` has, where it is given.

    Raises `SystemExit` with every public name that has no docstring.
    """
    silent: list[str] = []
    lines = [HEAD]
    for name in MODULES:
        entries = list(_module(importlib.import_module(name), silent))
        if like is not None and name == "ptxgen.kernels":
            titles = set(re.findall(r"^### \w+", like, re.MULTILINE))
            entries = [entry for entry in entries if not entry.startswith("### ") or entry.partition("(")[0] in titles]
        lines += entries
    for name, chosen in AUTHORS.items():
        module = importlib.import_module(name)
        lines += _module(module, silent, chosen)
        for part, own in ((part, _own(part)) for part in (_modules_of(module) if name == "ptxgen.idioms" else ())):
            lines += _module(part, silent, own) if own or hasattr(part, "__path__") else ()
    for name in READ:
        lines += _read(name, silent)
    if silent:
        raise SystemExit("public names without a docstring: " + ", ".join(silent))
    return "\n".join(lines).rstrip() + "\n"


def _modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """The modules of a package and of its packages."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def _own(module: ModuleType) -> tuple[str, ...]:
    """The public functions and classes that a module defines."""
    there = (
        name for name, value in sorted(vars(module).items()) if getattr(value, "__module__", "") == module.__name__
    )
    return tuple(name for name in there if callable(getattr(module, name)) and not name.startswith("_"))


def _module(module: ModuleType, silent: list[str], names: tuple[str, ...] = ()) -> Iterator[str]:
    """A module's head, and the entries of these names, or of all that it shows."""
    yield f"## {module.__name__}\n\n{_first(module)}\n"
    for name in names or dir(module):
        value = getattr(module, name, None)  # an alias may be there for annotations alone
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if inspect.isclass(value) or inspect.isroutine(value):
            yield from _entry(f"{module.__name__}.{name}", name, value, silent)
        elif text := _facts(value) or _below(module.__name__, name):
            yield f"### {name}\n\n{_prose(text)}\n"
        else:
            silent.append(f"{module.__name__}.{name}")


def _facts(value: Any) -> str:
    """An element type in a line; nothing for other values."""
    from ptxgen.dtypes import DType

    return f"{value.bits} bits; `{value.numpy_name}` in NumPy." if isinstance(value, DType) else ""


def _tree(name: str) -> ast.Module:
    """The source of a module, which is not imported."""
    found = find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit(f"{name}: is not there")
    return ast.parse(Path(found.origin).read_text(encoding="utf-8"))


def _below(module: str, name: str) -> str:
    """The string below the assignment of a name."""
    for node in ast.walk(_tree(module)):
        body: list[ast.stmt] = getattr(node, "body", [])
        for one, below in pairwise(body) if isinstance(body, list) else ():
            named = isinstance(one, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in one.targets)
            if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                return inspect.cleandoc(str(below.value.value))
    return ""


def _read(module: str, silent: list[str]) -> Iterator[str]:
    """A module's head, and its public functions, from the source."""
    tree = _tree(module)
    yield f"## {module}\n\n{_prose(ast.get_docstring(tree) or '')}\n"
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        if text := ast.get_docstring(node):
            yield f"### {node.name}({ast.unparse(node.args)})\n\n{_prose(text)}\n"
        else:
            silent.append(f"{module}.{node.name}")


def _entry(path: str, name: str, value: Any, silent: list[str]) -> Iterator[str]:
    text = inspect.getdoc(value)
    if not text:
        silent.append(path)
        return
    yield f"### {name}{_signature(value)}\n\n{_prose(text)}\n"
    if inspect.isclass(value) and not issubclass(value, BaseException) and _methods_shown(value):
        for member, what, doc in _members(value):
            if not doc:
                silent.append(f"{path}.{member}")
                continue
            yield f"- **`{member}{what}`** {_prose(doc, indent='  ').strip()}"
        yield ""


def _methods_shown(cls: type) -> bool:
    """Of a kernel type only the fields are its users'; what it overrides is in the base's entry."""
    from ptxgen.kernel import KernelType

    return cls is KernelType or not issubclass(cls, KernelType)


def _members(cls: type) -> Iterator[tuple[str, str, str | None]]:
    """Its own, and those of bases in the same library that have no entry of their own."""
    modules = [importlib.import_module(name) for name in MODULES]
    shown = {id(getattr(module, name, None)) for module in modules for name in dir(module)}
    ours = [base for base in cls.__mro__ if base.__module__.startswith("ptxgen.")]
    bases = [base for base in ours if base is cls or id(base) not in shown]
    for name in sorted({name for base in bases for name in vars(base)}):
        value = inspect.getattr_static(cls, name)
        if name.startswith("_") or name in getattr(cls, "__dataclass_fields__", {}):
            continue
        if isinstance(value, property):
            yield name, "", inspect.getdoc(value)
        elif isinstance(value, classmethod | staticmethod):
            yield name, _signature(value.__func__), inspect.getdoc(value.__func__)
        elif inspect.isfunction(value):
            yield name, _signature(value), inspect.getdoc(getattr(cls, name))


def _signature(value: Any) -> str:
    """As one would write it: names, and the defaults of what has one."""
    if inspect.isclass(value) and dataclasses.is_dataclass(value):
        parameters = [
            f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default!r}"
            for f in dataclasses.fields(value)
            if f.init
        ]
        return f"({', '.join(parameters)})"
    if getattr(value, "_is_protocol", False):
        return ""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values() if p.name != "self"]
    text = str(found.replace(parameters=shown, return_annotation=inspect.Signature.empty))
    return re.sub(r"<[^<>]*(<\w+>)?[^<>]* at 0x[0-9a-f]+>", "…", text)  # what has no text but its address


def _first(value: Any) -> str:
    return _prose(inspect.getdoc(value) or "")


def _prose(text: str, indent: str = "") -> str:
    return "\n".join(f"{indent}{line}".rstrip() for line in text.strip().splitlines())


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    if "--check" in arguments:
        there = PAGE.read_text() if PAGE.exists() else ""
        same = there == page(like=there)
        print(f"{PAGE.name}: " + ("as written" if same else "differs; python -m tests.tools.api_reference writes it"))
        return 0 if same else 1
    made = page()
    PAGE.write_text(made)
    print(f"{PAGE.name}: {made.count(chr(10) + '### ')} names")
    return 0


if __name__ == "__main__":
    show_help(__doc__)
    sys.exit(main(sys.argv[1:]))
