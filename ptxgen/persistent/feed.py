"""The warp that brings weights: bulk copies into a ring that does not drain from one op to the next."""

from __future__ import annotations

from ptxgen.builder import SINK, Builder
from ptxgen.persistent.begin import MBARRIER_BYTES, Begin
from ptxgen.persistent.plan import EARLY, EARLY_UNITS, KIND_BYTES, OP_BYTES, Plan

COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"


class Feed:
    """Fragments `begin_feed`, `feed_op`, `find_room`, `slot_empty`, `count_flight`, `landed_one`, `oldest`, `bring`,
    `next_fed`, `next_fed_op`: one lane's."""

    def __init__(self, b: Builder, plan: Plan, begin: Begin) -> None:
        b_, at = b, begin
        with b.fragment("begin_feed", "the first op, and an empty ring"):
            b.op("setp.eq.u32", "brings_alone", at.lane, 0)
            op_at, kind_at = b.op("mov.u32", "fed_op_at", at.ops), b.op("mov.u32", "fed_kind_at", at.kinds)
            ops = b.op("mov.u32", "fed_ops", 0)
            slot, bell = b.op("mov.u32", "fed_slot", at.ring), b.op("mov.u32", "fed_bell", at.bell)
            b.note("no warp has read a slot yet: the phase before the first counts as over")
            phase = b.op("mov.u32", "fed_phase", 1)
            oldest, oldest_phase = b.op("mov.u32", "oldest_bell", at.bell), b.op("mov.u32", "oldest_phase", 0)
            flying = b.op("mov.u32", "flying", 0)
            policy = b.op("createpolicy.fractional.L2::evict_first.b64", "streams", 1.0)
            end = b.op("add.u32", "bell_end", at.bell, MBARRIER_BYTES * plan.stages)
        with b.fragment("feed_op", "the CTA's records of the op"):
            share = at.share("fed", kind_at)
            source = b.op("ld.shared.u64", "fed_from", op_at[0])
            b.op("mad.wide.u32", source, share.first, share.record_bytes, source)
            left = b.op("mul.lo.u32", "fed_left", share.count, share.units)
            in_record = b.op("mov.u32", "fed_units_left", share.units)
            fresh = b.op("mov.u32", "fresh", 0)
            b.op("setp.ne.u32", "feeds", left, 0)
        with b.fragment("slot_empty"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", "is_empty", bell[8], phase)
        with b.fragment("count_flight", "few bytes while an op's first units are fetched: others' values must pass"):
            is_early = b.op("setp.lt.u32", "is_early", fresh, EARLY_UNITS)
            most = b.op("selp.u32", "most_flying", EARLY, plan.stages, is_early)
            b.op("setp.ge.u32", "too_many", flying, most)
        with b.fragment("oldest_landed"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", "has_landed", oldest[0], oldest_phase)
        with b.fragment("count_landed", "one unit fewer is on its way"):
            b.op("sub.u32", flying, flying, 1)
            b.op("add.u32", oldest, oldest, MBARRIER_BYTES)
            wraps = b.op("setp.eq.u32", "oldest_wraps", oldest, end)
            b.op("mov.u32", oldest, at.bell, pred=wraps)
            b.op("xor.b32", oldest_phase, oldest_phase, 1, pred=wraps)
            b.op("setp.ge.u32", "still_too_many", flying, most)
        with b.fragment("bring", "a unit: tiles for all warps"):
            b.op("sub.u32", in_record, in_record, 1)
            ends = b.op("setp.eq.u32", "fed_record_ends", in_record, 0)
            size = b.op("selp.u32", "fed_bytes", share.last_bytes, plan.unit_bytes, ends)
            b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, bell[0], size)
            b.op(COPY, slot[0], source[0], size, bell[0], policy)
            b.op("mov.u32", in_record, share.units, pred=ends)
        with b.fragment("next_fed", "on to the next slot"):
            wide = b.op("cvt.u64.u32", "fed_bytes_wide", size)
            b.op("add.u64", source, source, wide)
            b.op("add.u32", flying, flying, 1)
            b.op("add.u32", fresh, fresh, 1)
            b.op("add.u32", slot, slot, plan.unit_bytes)
            b.op("add.u32", bell, bell, MBARRIER_BYTES)
            around = b.op("setp.eq.u32", "fed_wraps", bell, end)
            b.op("mov.u32", bell, at.bell, pred=around)
            b.op("mov.u32", slot, at.ring, pred=around)
            b.op("xor.b32", phase, phase, 1, pred=around)
            b.op("sub.u32", left, left, 1)
            b.op("setp.ne.u32", "feeds_more", left, 0)
        with b.fragment("next_fed_op"):
            next_op(b_, "fed", ops, op_at, kind_at, plan, at)


def next_op(b: Builder, name: str, done: object, op_at: object, kind_at: object, plan: Plan, at: Begin) -> None:
    """Count an op, and find the rows of the next one; predicate `<name>_ops_left`. Part of an open fragment."""
    b.op("add.u32", done, done, 1)
    b.op("add.u32", op_at, op_at, OP_BYTES)
    b.op("add.u32", kind_at, kind_at, KIND_BYTES)
    last = b.op("setp.eq.u32", f"{name}_is_head", done, plan.ops - 1)
    part = b.op("and.b32", f"{name}_of_layer", done, 3)
    again = b.op("setp.eq.and.u32", f"{name}_layer_begins", part, 0, ~last)
    b.op("mov.u32", kind_at, at.kinds, pred=again)
    b.op("setp.lt.u32", f"{name}_ops_left", done, plan.ops)
