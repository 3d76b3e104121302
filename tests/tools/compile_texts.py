"""Compiles tests/evidence/compilers for three targets: `python -m tests.tools.compile_texts [COMPILER …]`.

Needs triton, numba-cuda, the NVRTC wheel, and nvcc on the PATH (the wheel nvidia-cuda-nvcc has one, and g++ is needed
beside it); no GPU. What an assembler here does not take is left out, and said.
"""

from __future__ import annotations

import importlib.metadata
import json
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report.sentence import in_a_sentence, show_help
from ptxgen.assembler import assemble
from ptxgen.errors import AssembleError
from tests.evidence.compilers.case import CASES, TEXTS, VERSIONS, Case, versions

CUDA = TEXTS.parent / "cuda" / "kernels.cu"
_TYPES: dict[Any, str] = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "i32": "int32"}


def _triton(case: Case, target: str) -> dict[str, Any]:
    import triton.language as tl

    from ptxgen.testing.triton_compile import compile_kernel
    from tests.evidence.compilers.triton_kernels import named

    how = case.how
    signature = dict(part.split(":") for part in how["signature"].split())
    constants = {name: _TYPES.get(value, value) for name, value in how["constants"].items()}
    constants = {name: getattr(tl, value) if value in _TYPES.values() else value for name, value in constants.items()}
    made = compile_kernel(named(how["kernel"]), signature, constants, target,
                          num_warps=how["warps"], num_stages=how["stages"])  # fmt: skip
    return dict(ptx=made.ptx, entry=made.entry, warps=made.warps, shared=made.shared, hidden=made.hidden,
                scratch=made.scratch)  # fmt: skip


def _cuda(case: Case) -> str:
    """The source of a case in CUDA C++."""
    parts = dict(re.findall(r"^//== (\w+)\n(.*?)(?=^//==|\Z)", CUDA.read_text(), re.DOTALL | re.MULTILINE))
    return parts[case.name]


def _nvrtc(case: Case, target: str) -> dict[str, Any]:
    from ptxgen.runtime import compile_cuda

    return dict(ptx=compile_cuda(_cuda(case), target, name=f"{case.name}.cu"), entry=case.name)


def _nvcc(case: Case, target: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{case.name}.cu"
        source.write_text(_cuda(case), encoding="utf-8")
        command = ["nvcc", "-ptx", "-lineinfo", "-std=c++17", f"-arch={target}", source.name, "-o", "made.ptx"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise AssembleError(f"{case.name}.cu: nvcc refused it for {target}\n{done.stderr}")
        return dict(ptx=(Path(folder) / "made.ptx").read_text(encoding="utf-8"), entry=case.name)


def _numba(case: Case, target: str) -> dict[str, Any]:
    import numba
    import numpy as np

    from ptxgen.testing.numba_kernel import compile_numba
    from tests.evidence.compilers import kernels_numba

    types = []
    for word in case.how["signature"].split():
        kind, _, dimensions = word.lstrip("=").partition(":")
        scalar = numba.from_dtype(np.dtype(kind))
        types.append(scalar if word[0] == "=" else numba.types.Array(scalar, int(dimensions or 1), "C"))
    made = compile_numba(getattr(kernels_numba, case.name), types, target, name=case.name)
    return dict(ptx=made.ptx, entry=made.entry)


_MAKERS: dict[str, Callable[[Case, str], dict[str, Any]]] = {
    "triton": _triton, "nvrtc": _nvrtc, "nvcc": _nvcc, "numba": _numba,
}  # fmt: skip
_PACKAGES = {"triton": "triton", "nvrtc": "nvidia-cuda-nvrtc", "numba": "numba-cuda"}


def _version(compiler: str) -> str:
    if compiler != "nvcc":
        return importlib.metadata.version(_PACKAGES[compiler])
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release [\d.]+, V([\d.]+)", said)
    assert found is not None, said
    return found[1]


def _without_debug(text: str) -> str:
    """A text without DWARF sections, whose paths are this machine's, and without what leads to them."""
    text = re.sub(r"\n\s*\.section\s+\.debug_\w+\s*\{.*?\n\s*\}", "", text, flags=re.DOTALL)
    text = re.sub(r", function_name \$L__info_string\d+, inlined_at [\d ]+", "", text)
    text = re.sub(r'(\.file\s+\d+\s+)"[^"]*/([^"/]+)"', r'\1"\2"', text)
    return re.sub(r"\A(//.*\n|\n)*", "", text)


def _made(compiler: str, target: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for case in CASES.values():
        if case.compiler != compiler or target not in case.targets:
            continue
        try:
            made = _MAKERS[compiler](case, target)
        except Exception as wrong:  # a compiler's own refusal
            print(f"{compiler} {target} {case.name}: {type(wrong).__name__}: {' '.join(str(wrong).split())[:200]}")
            continue
        made["ptx"] = _without_debug(made["ptx"])
        try:
            assemble(made["ptx"])
        except AssembleError as wrong:
            print(f"{compiler} {target} {case.name}: {' '.join(str(wrong).split())[:200]}")
            continue
        yield case.name, made


def main(compilers: list[str]) -> None:
    """Writes the texts of these compilers, or of all."""
    import tests.evidence.compilers.all_cases  # noqa: F401

    TEXTS.mkdir(exist_ok=True)
    for compiler in compilers or _MAKERS:
        version = _version(compiler)  # before anything is written: it says where there is none
        for target in ("sm_75", "sm_80", "sm_90"):
            found = dict(_made(compiler, target))
            data = lzma.compress(json.dumps(found, indent=0).encode(), preset=9 | lzma.PRESET_EXTREME)
            (TEXTS / f"{compiler}.{target}.json.xz").write_bytes(data)
            print(f"{compiler} {target}: {len(found)} texts, {len(data):,} bytes")
        known = versions() if VERSIONS.exists() else {}
        known[compiler] = version
        VERSIONS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    show_help(__doc__)
    in_a_sentence(lambda: main(sys.argv[1:]))
