"""setmaxnreg: warps give registers back to the pool of their CTA, and wait until it has as many as they ask for."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.native.layout import PARK_REGISTERS
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT
from ptxgen.runtime.cpu.support.register_pool import APART, DIFFERENT, PARTIAL, WRONG_WAY, asked

_LEAST, _MOST, _STEP = 24, 256, 8
_ALL = "all warps of a warpgroup must execute the same setmaxnreg"
_BROKEN = {
    APART: "the warps of a warpgroup must synchronise between one setmaxnreg and the next: some have not executed the "
    "one before",
    PARTIAL: "all lanes of the warp must take part",
    DIFFERENT: f"{_ALL}: one of them has executed another",
}
_ENDED = f"{_ALL}: some of them have ended without"


@emits("setmaxnreg", outputs=0, converges=True, retries=True)
def set_registers(e: Emitter, op: Op) -> None:
    """The lanes go on when their warp has as many registers a thread."""
    count, more = op.operands[0], "inc" in op.words
    if not isinstance(count, nodes.Immediate) or not _allowed(int(count.value)):
        raise e.error(f"operand {count}: must be a multiple of {_STEP} from {_LEAST} to {_MOST}")
    number = int(count.value)
    e.converge("-1")
    site = e.new_site(_ENDED) if e.check else 0
    if e.check:
        _rules(e, number, more, site)
    ready = e.c(f"call i32 @registers.{'take' if more else 'give'}(ptr %w, i32 {e.mask}, i32 {number})")
    e.wait_here(ready, PARK_REGISTERS, "0", "0", count=number)
    if e.check:
        e.c.do(f"call void @registers.asked(ptr %w, i32 {site})")


def _allowed(count: int) -> bool:
    return _LEAST <= count <= _MOST and count % _STEP == 0


def _rules(e: Emitter, count: int, more: bool, site: int) -> None:
    """A finding where PTX leaves the outcome undefined."""
    broken = e.c(f"call i32 @registers.broken(ptr %w, i32 {e.mask}, i32 {asked(count, more)}, i32 {site})")
    has = f"the warp has {'more' if more else 'fewer'} than {count} registers a thread"
    wrong_way = f"setmaxnreg.{'inc' if more else 'dec'} to {count}: {has}"
    for bit, remark in {WRONG_WAY: wrong_way, **_BROKEN}.items():
        holds = e.c(f"icmp ne i32 {e.c(f'and i32 {broken}, {bit}')}, 0")
        e.fault_if(e.c(f"select i1 {holds}, i32 {e.mask}, i32 0"), FAULT_ASSERT, remark=remark)
