"""What a CTA of the tensor-core loop leaves of a part of the keys, and its merge: warps together, with one counter."""

from __future__ import annotations

from ptxgen.attention.prefill.loops.mma.registers import TensorRegisters
from ptxgen.attention.prefill.loops.tiles import TOLD_BYTES
from ptxgen.attention.prefill.merge import Merge
from ptxgen.attention.prefill.parts import Shares
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch


def merged(loop: TensorRegisters, shares: Shares) -> None:
    """Fragments `all_keys`; `leave_part`, `draw_part` and `see_parts`, with a barrier before each of the latter; and
    the pieces of the merge."""
    b, part = loop.b, loop.rows.part
    order = [value for m in range(loop.tile.m_tiles) for n in range(loop.columns) for value in loop.acc_of(m, n)]
    merge = Merge(b, shares, part, loop.softmax, loop.accumulators, order)
    told = b.shared("parts_told", TOLD_BYTES, 4)
    with b.fragment("all_keys", "the CTA of the only part with keys has seen all of them"):
        merge.begin()
    with b.fragment("leave_part", "what each warp has of its rows"):
        thread = b.op("mov.u32", scratch(b, "own_thread", "u32"), b.special("tid.x"))
        lane = b.op("and.b32", b.reg("part_lane", "u32"), thread, 31)
        warp = b.op("shr.u32", b.reg("part_warp", "u32"), thread, 5)
        merge.leave(warp, lane)
    with b.fragment("draw_part", "how many parts were there before"):
        leads: Reg = b.op("setp.eq.u32", "leads", thread, 0)
        before = merge.draw(1, 0, leads)
        b.op("st.shared.u32", told[0], before, pred=leads)
    with b.fragment("see_parts", "whether all others were"):
        b.op("ld.shared.u32", before, told[0])
        merge.see(before)
    merge.build()
