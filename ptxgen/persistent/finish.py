"""The end of a step: the last CTA to leave turns the slots on for the next one."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.persistent.begin import Begin
from ptxgen.persistent.plan import SLOTS, Plan


class Finish:
    """Fragments `leave`, `turn_on`: one thread's."""

    def __init__(self, b: Builder, plan: Plan, begin: Begin) -> None:
        with b.fragment("leave", "a ticket: who leaves last"):
            drawn = b.reg("ticket", "u32")
            b.op("atom.acq_rel.gpu.global.inc.u32", drawn, begin.exchange[4], plan.spec.ctas - 1)
            b.op("setp.eq.u32", "is_last", drawn, plan.spec.ctas - 1)
        with b.fragment("turn_on", "the next step's first layer follows this one's last"):
            turn = b.op("ld.global.u32", "next_turn", begin.exchange[0])
            b.op("add.u32", turn, turn, plan.spec.n_layers)
            b.op("rem.u32", turn, turn, SLOTS)
            b.op("st.global.u32", begin.exchange[0], turn)
