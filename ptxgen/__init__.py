"""ptxgen: PTX for LLM decoding, generated from a Python DSL and Jinja templates, run on a GPU or on a CPU.

Importing this package imports no third-party package; names are loaded when first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ptxgen.errors import (
    AssembleError,
    CapacityError,
    CudaError,
    ExecutionError,
    FileError,
    IsaError,
    LogitsError,
    ModuleLoadError,
    PtxgenError,
    SpecError,
    TargetError,
    TemplateError,
)

if TYPE_CHECKING:
    from ptxgen.assembler import assemble
    from ptxgen.dtypes import DType, dtype
    from ptxgen.generator import Ptx, generate
    from ptxgen.kernel import KernelType, Support, kernel_type, kernel_types, make_spec, supports
    from ptxgen.launch import Launch, Param
    from ptxgen.parser import parse
    from ptxgen.requires import Requirements, explain_load, requirements
    from ptxgen.targets import Target, target

__version__ = "0.2.0"

_HERE = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_HERE, "runtime")):  # a checkout without symbolic links
    __path__.append(os.path.dirname(_HERE))

_HOME = {
    "assemble": "assembler",
    "DType": "dtypes",
    "dtype": "dtypes",
    "Ptx": "generator",
    "generate": "generator",
    "KernelType": "kernel",
    "Support": "kernel",
    "kernel_type": "kernel",
    "kernel_types": "kernel",
    "make_spec": "kernel",
    "supports": "kernel",
    "Launch": "launch",
    "Param": "launch",
    "parse": "parser",
    "Requirements": "requires",
    "explain_load": "requires",
    "requirements": "requires",
    "Target": "targets",
    "target": "targets",
}

_PACKAGES = ("kernels", "runtime")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"ptxgen.{_HOME[name]}"), name)
    if name in _PACKAGES:
        return importlib.import_module(f"ptxgen.{name}")
    raise AttributeError(f"module 'ptxgen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])


__all__ = [
    "AssembleError",
    "CapacityError",
    "CudaError",
    "DType",
    "ExecutionError",
    "FileError",
    "IsaError",
    "KernelType",
    "Launch",
    "LogitsError",
    "ModuleLoadError",
    "Param",
    "Ptx",
    "PtxgenError",
    "Requirements",
    "SpecError",
    "Support",
    "Target",
    "TargetError",
    "TemplateError",
    "__version__",
    "assemble",
    "dtype",
    "explain_load",
    "generate",
    "kernel_type",
    "kernel_types",
    "make_spec",
    "parse",
    "requirements",
    "supports",
    "target",
]
