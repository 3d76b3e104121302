"""CUDA C++ to PTX in process, by NVRTC: no GPU, no nvcc. Owns no launch; the bindings are imported when first used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxgen.errors import AssembleError
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target

_HOW_TO_GET_IT = "install it with: pip install 'ptxgen[nvrtc]'"


def compile_cuda(
    source: str, target: str | Target, *, options: Sequence[str] = (), include: Sequence[str] = (),
    name: str = "cuda.cu", line_info: bool = True,
) -> str:  # fmt: skip
    """The PTX that NVRTC makes of a CUDA C++ source for a target (`sm_80`), with source lines in it (`line_info`).

    Headers of CUDA and of CUB, libcu++ and cooperative groups are found where their wheels are installed
    (`nvidia-cuda-runtime`, `nvidia-cuda-cccl`); `include` adds folders, `options` what NVRTC takes besides
    (`-std=c++20`, `-G`, `-use_fast_math`). `name` stands for the file. Kernels that are not `extern "C"` have mangled
    names. Raises `AssembleError` with NVRTC's log, or with what to install.
    """
    nvrtc = _nvrtc()
    where = parse_target(target)
    chosen = [
        f"--gpu-architecture=compute_{where.major}{where.minor}{where.suffix}",
        *(["-lineinfo"] if line_info else []),
    ]
    chosen += [f"-I{folder}" for folder in (*include, *_headers())]
    chosen += [option for option in ["-std=c++17"] if not any(o.startswith(("-std", "--std")) for o in options)]
    chosen += options
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, None, None))[0]
    try:
        (failed,) = nvrtc.nvrtcCompileProgram(program, len(chosen), [option.encode() for option in chosen])
        if failed != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise AssembleError(f"{name}: NVRTC refused it for {where}\n{_log(nvrtc, program)}")
        (size,) = _checked(nvrtc, nvrtc.nvrtcGetPTXSize(program))
        text = b" " * size
        _checked(nvrtc, nvrtc.nvrtcGetPTX(program, text))
        return str(text.rstrip(b"\0"), "utf-8")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as missing:  # an absent package or library, or one of another version
        reason = (str(missing).splitlines() or [type(missing).__name__])[0]  # the rest lists folders
        raise AssembleError(f"compile_cuda: NVRTC cannot be used ({reason}); {_HOW_TO_GET_IT}") from None
    return nvrtc


def _headers() -> list[str]:
    """The folders of CUDA's headers that are installed."""
    from cuda import pathfinder

    found = []
    for library in ("cudart", "cccl"):
        try:
            folder = pathfinder.find_nvidia_header_directory(library)
        except Exception:  # nothing of that name is installed
            folder = None
        found += [str(folder)] if folder else []
    return found


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise AssembleError(f"compile_cuda: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
    return result[1:]


def _log(nvrtc: Any, program: Any) -> str:
    (size,) = _checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
    text = b" " * size
    _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, text))
    return str(text.rstrip(b"\0"), "utf-8", "replace").strip()


__all__ = ["compile_cuda"]
