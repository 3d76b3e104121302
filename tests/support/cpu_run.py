"""Small PTX kernels on the executor: a body with its pointers loaded, arrays in place, any mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.parser import parse
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.cpu.run.global_memory import Memory

MODES = ("fast", "random", "check")
_REGISTERS = """
  .reg .pred %p<20>; .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .f32 %f<20>; .reg .b64 %rd<40>; .reg .f64 %fd<20>;
  .reg .u32 %tid, %n, %lane, %warp; .reg .u64 %at4, %at8, %a<10>;
"""

SMALL = ".shared .align 16 .b8 small[64]; "  # before a body
_TILE = ".shared .align 128 .b8 tile[1024];\n.shared .align 8 .b64 bar[4];\n"
# Of a `launch`: the first lane initialises `bar`; all lanes wait for a phase of it
INIT = """
  setp.eq.u32 %p1, %lane, 0; setp.eq.and.u32 %p1, %warp, 0, %p1;
  @%p1 mbarrier.init.shared::cta.b64 [bar], COUNT;
  @%p1 fence.mbarrier_init.release.cluster;
"""
WAIT = "again{n}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [bar], {parity}; @!%p9 bra again{n};\n"


def u32(count: int, fill: int = 0) -> np.ndarray:
    """An array of so many, all the same."""
    return np.full(count, fill, np.uint32)


def text_of(body: str, arrays: int, before: str = "", target: str = "sm_90a", entry: str = "k") -> str:
    """A module with one entry. `%a0` … are the arrays' addresses, `%tid` the thread's number in the grid, `%at4` and
    `%at8` that number times 4 and 8, `%lane` and `%warp` its place in the CTA."""
    params = ", ".join(f".param .u64 a{n}" for n in range(arrays))
    loads = "\n".join(f"  ld.param.u64 %a{n}, [a{n}];" for n in range(arrays))
    return f""".version 8.6
.target {target}
.address_size 64
{before}
.visible .entry {entry}({params})
{{{_REGISTERS}{loads}
  mov.u32 %tid, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %lane, %tid.x;
  mad.lo.u32 %tid, %tid, %n, %lane;
  shr.u32 %warp, %lane, 5; and.b32 %lane, %lane, 31;
  mul.wide.u32 %at4, %tid, 4; mul.wide.u32 %at8, %tid, 8;
{body}
}}
"""


def run(
    body: str,
    *arrays: np.ndarray,
    grid: int | tuple[int, ...] = 1,
    block: int | tuple[int, ...] = 32,
    cluster: tuple[int, int, int] = (1, 1, 1),
    shared: int = 0,
    mode: str = "fast",
    seed: int = 0,
    threads: int = 1,
    before: str = "",
    memory: Memory | None = None,
    **options: object,
) -> None:
    """Launch a body once; the arrays are changed in place and are named `a0`, `a1`, … in findings."""
    text = text_of(body, len(arrays), before)
    program = Program(parse(text, "test.ptx"), mode=mode, seed=seed, threads=threads, **options)
    memory = memory or Memory(track=mode == "check")
    pointers = [memory.register(array, f"a{n}") for n, array in enumerate(arrays)]
    program.launch("k", grid, block, pointers, shared=shared, cluster=cluster, memory=memory)


def launch(body: str, *arrays: np.ndarray, mode: str = "fast", seed: int = 3, **given: Any) -> None:
    """`run` with 1024 bytes of shared memory, `tile`, and four mbarriers, `bar`."""
    run(body, *arrays, mode=mode, seed=seed, before=_TILE, **given)


def finding(match: str, body: str, *arrays: np.ndarray, mode: str = "check", **given: Any) -> None:
    """A `launch` must be stopped, with words that match."""
    with pytest.raises(ExecutionError, match=match):
        launch(body, *arrays, mode=mode, **given)


def said_of(body: str, *arrays: np.ndarray, mode: str = "check", **given: Any) -> str:
    """What a `run` is stopped with."""
    with pytest.raises(ExecutionError) as caught:
        run(body, *arrays, mode=mode, **given)
    return str(caught.value)


def clean(body: str, *arrays: np.ndarray, **given: Any) -> None:
    """A `run` in check mode without a finding."""
    run(body, *arrays, mode="check", **given)
