"""The table of instruction emitters: the first words of an opcode → a function that emits LLVM IR.

## How to add a family
Write `emit/families/<name>.py` and add its name to `_FAMILIES`. In it, for every instruction:

    @emits("shfl", outputs=1, converges=True)
    def shfl(e: Emitter, op: Op) -> None:
        kind = op.words[-1]                                   # words of the opcode: ("shfl", "sync", "bfly", "b32")
        value = e.src(op.operands[1], kind)                   # "<32 x i32>": the operand in all lanes
        e.dst(op.operands[0], e.c(f"add <32 x i32> {value}, {value}"), kind)

- The longest registered run of words wins: `@emits("bar.arrive")` before `@emits("bar")`.
- `e.c` is the `Code` of the warp function; `e.c("…")` appends an LLVM instruction and returns its name. Lanes outside
  the mask may compute anything, so whatever can trap (division) or touch memory must be guarded: `e.exec_mask()` is
  the i32 of lanes that execute, the guard included. `e.dst` handles the guard by itself.
- `outputs`: how many leading operands are destinations (liveness depends on it). An operand that is read and written
  is listed in `inout`.
- Native state is reached through `e.warp`, `e.cta`, `e.thread`, `e.launch` (pointers) and the offsets in `layout.py`;
  the `ext` fields there are for new families, zeroed when a CTA, warp or gang starts.
- Heavy code belongs in a support function (`support/`): noinline IR, shared by all sites; calls are found by name.
- A call to `e.fault(mask, kind, …)` reports a finding; the warp stops at its next branch and every access until then
  is still checked, so it is enough to go on with zeros.

## Instructions that wait
- `converges=True`: runs once all lanes of its member mask are there; call `e.converge(mask)` first. It begins a block.
- `blocks=True`: ends its block. The emitter parks the lanes (`e.park(…)` or a support function that calls `park`) with
  `e.resume_block()` as the place to continue; a helper that makes progress calls `unpark(cta, kind, id, argument)`.
  With `result=True` the destination is written when the lanes wake: register a second emitter under `("wake", …)`.
- `retries=True`: begins a block and may wait right there: `e.wait_here(ready, kind, id, argument)` lets ready lanes
  pass and parks the others, which run the instruction again once `unpark` wakes them (mbarrier.try_wait).
- A loop that polls without parking is rotated behind other lanes and warps after its budget, and ends as "no progress".

A guard on an instruction of these kinds becomes a branch around it.

## Check mode
Where `e.check` holds, every access of memory tells the shadow before it happens: `shadow.read.shared`, `shadow.write.…`
(see `check/shadow.py`). An object that orders warps (an mbarrier) is told of by `shadow.leave.shared` on its own
bytes at the arrival, and by `shadow.take.shared` at the wait that succeeds. A copy that lands later calls
`shadow.issue.…` when issued and `shadow.land.…` when it lands, and then, if it completes on an mbarrier, `clock.leave`
on that, for the warp that issued it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., None])  # (e: Emitter, op: Op) -> None

_FAMILIES = (
    "move", "integer", "logic", "floating", "approximate", "half", "compare", "convert", "load_store", "atomic",
    "control", "warp", "barrier", "matrix", "cluster", "mbarrier", "async_copy", "tensor", "wgmma",
    "registers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """An emitter, and what the block builder has to know of its instruction: the flags of `emits`."""

    function: Callable[..., None]
    outputs: int = 1
    inout: tuple[int, ...] = ()
    converges: bool = False
    blocks: bool = False
    result: bool = False
    retries: bool = False
    pure: bool = False  # an unwritten source only makes the result unwritten: nothing is sent or decided with it


# An unwritten register is reported where it matters: as an address, a guard, stored or sent data, not in arithmetic.
_PURE = frozenset({"move", "integer", "logic", "floating", "approximate", "half", "compare", "convert"})
_EMITTERS: dict[tuple[str, ...], Family] = {}


def emits(
    *opcodes: str,
    outputs: int = 1,
    inout: tuple[int, ...] = (),
    converges: bool = False,
    blocks: bool = False,
    result: bool = False,
    retries: bool = False,
    pure: bool = False,
) -> Callable[[Function], Function]:
    """Register an emitter for opcodes that begin with these words."""

    def register(function: Function) -> Function:
        for opcode in opcodes:
            words = tuple(opcode.split("."))
            assert words not in _EMITTERS, opcode
            carries = pure or function.__module__.rpartition(".")[2] in _PURE
            _EMITTERS[words] = Family(function, outputs, inout, converges, blocks, result, retries, carries)
        return function

    return register


@lru_cache(maxsize=1)
def _load() -> None:
    for name in _FAMILIES:
        import_module(f"ptxgen.runtime.cpu.emit.families.{name}")


@lru_cache(maxsize=4096)
def family_of(words: tuple[str, ...]) -> Family | None:
    """The emitter of an opcode, by its longest registered beginning."""
    _load()
    for length in range(len(words), 0, -1):
        found = _EMITTERS.get(words[:length])
        if found is not None:
            return found
    return None


def opcodes() -> list[str]:
    """Every registered beginning of an opcode, for documents and tests."""
    _load()
    return sorted(".".join(words) for words in _EMITTERS if not words[0].startswith("$") and words[0] != "wake")
