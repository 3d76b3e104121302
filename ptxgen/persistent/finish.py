"""The end of a step: the likeliest token of all CTAs, and the counters of the next step, by the last CTA to leave."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.idioms.sampling.order import largest_of_warp
from ptxgen.persistent.begin import Begin
from ptxgen.persistent.plan import SLOTS, WARPS, Plan
from ptxgen.persistent.steps import Steps

TURN, TICKET, BEST = 0, 4, 8  # bytes of the exchange's header


class Finish:
    """Fragments `best_of_warp`, then one thread's: `leave`, `choose`."""

    def __init__(self, b: Builder, plan: Plan, at: Begin, steps: Steps) -> None:
        slots = b.shared("bests", 8 * WARPS, 8)
        with b.fragment("best_of_warp", "the warp's best logit; of equal ones the first row's"):
            low = b.op("not.b32", "best_low", steps.best_row)
            largest_of_warp(b, steps.best, low)
            place = b.op("mov.u32", "best_at", slots)
            b.op("mad.lo.u32", place, at.warp, 8, place)
            b.op("st.shared.v2.b32", place[0], (low, steps.best), pred=steps.first_lane)
        with b.fragment("leave", "the CTA's best to all, and a ticket: who leaves last"):
            keys = b.array("cta_best", "u64", WARPS)
            for warp, key in enumerate(keys):
                b.op("ld.shared.u64", key, slots[8 * warp])
            for key in keys[1:]:
                b.op("max.u64", keys[0], keys[0], key)
            b.op("red.relaxed.gpu.global.max.u64", at.exchange[BEST], keys[0])
            drawn = b.reg("ticket", "u32")
            b.op("atom.acq_rel.gpu.global.inc.u32", drawn, at.exchange[TICKET], plan.spec.ctas - 1)
            b.op("setp.eq.u32", "is_last", drawn, plan.spec.ctas - 1)
        with b.fragment("choose", "the token, the next position, and the slot after this step's last one"):
            best = b.op("ld.relaxed.gpu.global.u64", "best_of_all", at.exchange[BEST])
            token, key = b.array("best_word", "b32", 2)
            b.op("mov.b64", (token, key), best)
            b.op("not.b32", token, token)
            b.op("st.global.b32", b.ld_param("chosen")[0], token)
            b.op("st.global.u64", at.exchange[BEST], 0)
            counts = b.op("setp.lt.u32", "counts", at.position, plan.spec.max_len)
            for name, place in (("position", at.counter), ("length", b.ld_param("length"))):
                value = b.op("ld.global.u32", f"{name}_now", place[0])
                b.op("add.u32", value, value, 1)
                b.op("st.global.u32", place[0], value, pred=counts)
            turn = b.op("ld.global.u32", "next_turn", at.exchange[TURN])
            b.op("add.u32", turn, turn, plan.spec.n_layers)
            b.op("rem.u32", turn, turn, SLOTS)
            b.op("st.global.u32", at.exchange[TURN], turn)
