"""How many registers a thread has when its kernel begins, by the kernel's directives: where `setmaxnreg` starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ptxgen.runtime.cpu.flow.symbols import round_up

_STEP = 8  # registers come in so many a thread
_LEAST, _MOST = 24, 256
_QUARTERS = 4  # of a multiprocessor, among which warps are shared out
_OF_A_QUARTER = 512  # registers a thread, where a quarter holds one warp: 65,536 a multiprocessor
_MOST_WARPS = 64  # of a multiprocessor


def launch_registers(performance: Mapping[str, tuple[int, ...]], asked: Sequence[int]) -> int:
    """At most so many registers a thread has at the launch of a kernel that asks for these by `setmaxnreg`.

    0: the instruction has no effect, as nothing says how many there are (`.maxnreg`, or `.minnctapersm` with `.maxntid`
    or `.reqntid`). As ptxas 13.0 counts them; it takes no more than the most that is asked for.
    """
    bounds = []
    (most,) = performance.get("maxnreg", (0,))
    if 0 < most < _MOST:
        bounds.append(round_up(max(most, _LEAST), _STEP))
    threads = math.prod(performance.get("reqntid") or performance.get("maxntid") or (0,))
    (ctas,) = performance.get("minnctapersm", (0,))
    warps = -(-threads // 32) * ctas
    if 0 < warps <= _MOST_WARPS:
        bounds.append(min(_OF_A_QUARTER // -(-warps // _QUARTERS) // _STEP * _STEP, _MOST))
    return min(*bounds, max(asked)) if bounds and asked else 0
