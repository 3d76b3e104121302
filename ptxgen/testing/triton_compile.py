"""Triton's own compiler as far as PTX, for any target, without a GPU and without ptxas. Owns no launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ptxgen.errors import SpecError


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """What Triton made of a kernel: PTX, its entry, and what a launch of it needs.

    Behind the arguments that are no constants the entry has `hidden` pointers: to `scratch` bytes of global memory a
    program, and to a profiler's.
    """

    ptx: str
    entry: str
    warps: int
    shared: int
    ctas: int
    hidden: int
    scratch: int


def architecture(target: str) -> int:
    """Triton's number of a target: 90 of `sm_90` and of `sm_90a`."""
    found = re.fullmatch(r"sm_(\d+)[af]?", str(target))
    if found is None:
        raise SpecError(f"target: must be like sm_90 (got {target!r})")
    return int(found[1])


def compile_kernel(
    fn: Any, signature: Mapping[str, str], constants: Mapping[str, object], target: str, **options: object
) -> TritonKernel:
    """Compile a `@triton.jit` function for a target (`sm_75` …) to PTX.

    `signature` has the types of the arguments in Triton's notation (`*fp32`, `i32`; `1` for an integer that is 1),
    `constants` the values of `tl.constexpr` arguments, `options` Triton's (`num_warps`, `num_stages`, …). Pointers are
    taken to be multiples of 16, as Triton specialises them where they are. Needs triton; raises its errors.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compiled

    types = {name: signature.get(name, "constexpr") for name in fn.arg_names}
    fixed = dict(constants)
    for name, type_ in types.items():
        if type_ == "1":
            types[name], fixed[name] = "constexpr", 1
    aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(fn.arg_names) if types[name][:1] == "*"}
    with _until_ptx():
        source = ASTSource(fn=fn, signature=types, constexprs=fixed, attrs=aligned)
        made = compiled(source, target=GPUTarget("cuda", architecture(target), 32), options=dict(options))
    return described(made.asm["ptx"], made.metadata)


def described(ptx: str, metadata: Any) -> TritonKernel:
    """A text with Triton's metadata of it."""
    entry = metadata.name
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*\((.*?)\)", ptx, re.DOTALL)
    count = found[1].count(".param") if found else 0
    scratch = int(getattr(metadata, "global_scratch_size", 0) or 0)
    return TritonKernel(ptx, entry, _threads(ptx) // 32 or metadata.num_warps, metadata.shared, metadata.num_ctas,
                        min(count, 2), scratch)  # fmt: skip


def _threads(ptx: str) -> int:
    """The threads that the text asks for: more than `num_warps` where warps are specialised."""
    found = re.search(r"\.reqntid\s+(\d+)", ptx)
    return int(found[1]) if found else 0


def ptx_stage(*given: Any) -> Any:
    """Triton's `add_stages_inspection_hook`: the last stage keeps the PTX in the place of a cubin."""
    if not given:
        return "ptxgen", "ptxgen"
    stages = given[1]
    if "cubin" in stages:
        stages["cubin"] = lambda text, metadata: _named(text, metadata)
    return None


def _named(text: str, metadata: dict[str, Any]) -> bytes:
    found = re.search(r"\.visible\s+\.entry\s+([\w$]+)", text)
    if found:
        metadata["name"] = found[1]
    return text.encode()


@contextmanager
def _until_ptx() -> Iterator[None]:
    from triton import knobs

    before = knobs.runtime.add_stages_inspection_hook
    knobs.runtime.add_stages_inspection_hook = ptx_stage
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = before
