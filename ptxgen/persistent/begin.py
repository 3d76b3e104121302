"""The start of a persistent step: places of threads, tables of ops and of the CTA's shares, mbarriers, angles."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ptxgen.attention.persistent.plan import Region
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.polls import Polls
from ptxgen.idioms.rope import rotation as rope
from ptxgen.persistent.plan import (
    BATCH,
    HEADER,
    KIND_BYTES,
    OP_BYTES,
    SLOTS,
    SUM_BYTES,
    THREADS,
    WARPS,
    Plan,
)  # fmt: skip
from ptxgen.weights.format import TILE_ROWS

MBARRIER_BYTES = 16  # of a slot: full, and empty


@dataclass(frozen=True)
class Share:
    """A CTA's part of a kind of product, as words of a row of the table."""

    first: Reg
    count: Reg
    tiles: Reg
    units: Reg
    cols: Reg
    padded: Reg
    x: Reg
    out: Reg
    rows: Reg
    copy_bytes: Reg
    last_bytes: Reg
    record_bytes: Reg


class Begin:
    """Fragments `begin`, `init_ring`, `fill_ops`, `fill_shares`, `angles`; variables of shared memory."""

    def __init__(self, b: Builder, plan: Plan) -> None:
        self.b, self.plan, self.polls = b, plan, Polls(b)
        at = plan.spec
        self.memory: Shared = b.shared("memory", plan.dynamic_bytes, 128, dynamic=True)
        self.sums = b.shared("sums", 2 * BATCH * TILE_ROWS * SUM_BYTES)
        self.squares = b.shared("squares", 2 * 4 * WARPS)
        self.ops = b.shared("ops", OP_BYTES * plan.ops)
        self.caches = b.shared("caches", 16 * at.n_layers)
        self.kinds = b.shared("kinds", KIND_BYTES * len(plan.products))
        self.bells = b.shared("bells", MBARRIER_BYTES * plan.stages, 8)
        self.turns = b.shared("trig", 8 * plan.spec.rotation.half)

    def build(self) -> None:
        """Build what a CTA does before the first layer."""
        b, plan = self.b, self.plan
        with b.fragment("begin", "the thread's place: warp, lane, and of a fragment row and quarter"):
            self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            self.warp, self.lane = b.op("shr.u32", "warp", self.thread, 5), b.op("and.b32", "lane", self.thread, 31)
            self.row, self.quad = b.op("shr.u32", "lane_row", self.lane, 2), b.op("and.b32", "quad", self.lane, 3)
            self.cta = b.op("mov.u32", "cta", b.special("ctaid.x"))
            self.ring = b.op("mov.u32", "ring", self.memory)
            self.bell = b.op("mov.u32", "bell_base", self.bells)
            self.exchange = b.ld_param("exchange")
            self.counter = b.ld_param("position")
            self.position = b.op("ld.global.u32", "token_position", self.counter[0])
            self.leads = b.op("setp.eq.u32", "leads", self.thread, 0)
            b.op("setp.eq.u32", "fills_ops", self.thread, 32)
            b.op("setp.eq.u32", "fills_shares", self.thread, 64)
            turner = b.op("sub.u32", "angle_number", self.thread, 96)
            b.op("setp.lt.u32", "finds_angle", turner, plan.spec.rotation.half)
            b.op("setp.ge.u32", "brings", self.thread, THREADS)
            self.angle = turner
        with b.fragment("init_ring", "a slot is full when its bytes are there, and empty when every warp has read it"):
            for stage in range(plan.stages):
                b.op("mbarrier.init.shared::cta.b64", self.bells[MBARRIER_BYTES * stage], 1)
                b.op("mbarrier.init.shared::cta.b64", self.bells[MBARRIER_BYTES * stage + 8], WARPS)
            b.op("fence.mbarrier_init.release.cluster")
        self._fill_ops()
        self._fill_shares()
        with b.fragment("angles", "cosine and sine of a pair at the token's position"):
            rotation = plan.spec.rotation
            table = b.op("mov.u64", "turns_at", rope.turns_table(b, rotation))
            b.op("mad.wide.u32", table, turner, 8, table)
            turn = b.op("ld.global.nc.b64", "turn", table[0])
            wide = b.op("cvt.s64.s32", "wide_position", self.position)
            cos, sin = rope.cos_sin(b, rotation, wide, turn)
            place = b.op("mov.u32", "angle_at", self.turns)
            b.op("mad.lo.u32", place, turner, 8, place)
            b.op("st.shared.v2.f32", place[0], (cos, sin))

    def _fill_ops(self) -> None:
        """The parameters that differ from layer to layer, where an index finds them."""
        b, plan = self.b, self.plan
        with b.fragment("fill_ops", "addresses of the ops' weights, norms and biases, and of the layers' caches"):
            for index in range(plan.ops):
                for column, name in enumerate(plan.spec.op_params(index)):
                    if name:
                        b.op("st.shared.u64", self.ops[OP_BYTES * index + 8 * column], b.ld_param(name))
            for layer in range(plan.spec.n_layers):
                for side, name in enumerate(("k_cache", "v_cache")):
                    b.op("st.shared.u64", self.caches[16 * layer + 8 * side], b.ld_param(f"{name}_{layer}"))

    def _fill_shares(self) -> None:
        b, plan = self.b, self.plan
        with b.fragment("fill_shares", "the CTA's records of every kind of product, in equal parts"):
            copy = b.op("rem.u32", "copy", self.cta, plan.copies)
            apart, first, end = (b.reg(name, "u32") for name in ("cta_apart", "share_first", "share_end"))
            reads, words = b.reg("share_reads", "u32"), b.array("share_word", "u32", 4)
            b.op("max.u32", apart, self.cta, plan.alone)
            b.op("sub.u32", apart, apart, plan.alone)
            none = b.op("setp.lt.u32", "has_no_qkv", self.cta, plan.alone)
            for number, product in enumerate(plan.products):
                alone = plan.alone and product.name == "qkv"
                mine, ctas = (apart, plan.spec.ctas - plan.alone) if alone else (self.cta, plan.spec.ctas)
                records = product.records(plan.kind)
                b.note(f"{product.name}: {records} {'pairs of ' if product.gated else ''}records of 16 rows")
                b.op("mul.lo.u32", first, mine, records)
                b.op("add.u32", end, first, records)
                b.op("div.u32", first, first, ctas)
                b.op("div.u32", end, end, ctas)
                b.op("sub.u32", end, end, first)
                if alone:
                    b.op("mov.u32", end, 0, pred=none)
                if product.gated:
                    b.op("shl.b32", first, first, 1)
                    b.op("shl.b32", end, end, 1)
                tiles = plan.kind.tiles(product.cols)
                units = -(-tiles // WARPS)
                at = KIND_BYTES * number
                x = plan.regions[product.x]
                copies = product.x != "qkv"
                b.op("mul.lo.u32", reads, copy, 4 * x.pitch if copies else 0)
                b.op("add.u32", reads, reads, 4 * x.offset)
                b.op("mov.u32", words[0], tiles)
                b.op("mov.u32", words[1], units)
                b.op("st.shared.v4.u32", self.kinds[at], (first, end, words[0], words[1]))
                out = plan.regions[product.out] if product.out else Region(0, 0)
                b.op("mov.u32", words[0], product.cols)
                b.op("mov.u32", words[1], tiles * plan.kind.tile_k)
                b.op("mov.u32", words[2], 4 * out.offset)
                b.op("st.shared.v4.u32", self.kinds[at + 16], (words[0], words[1], reads, words[2]))
                last = (tiles - WARPS * (units - 1)) * plan.kind.tile_bytes
                numbers = (product.rows, 4 * out.pitch, last, plan.kind.record_bytes(product.cols))
                for word, number_ in zip(words, numbers, strict=True):
                    b.op("mov.u32", word, number_)
                b.op("st.shared.v4.u32", self.kinds[at + 32], words.regs)

    def share(self, name: str, kind_at: Reg) -> Share:
        """The words of a kind's row in registers `<name>_<word>`; part of an open fragment."""
        b = self.b
        registers = [b.reg(f"{name}_{field.name}", "u32") for field in fields(Share)]
        for first in range(0, len(registers), 4):
            b.op("ld.shared.v4.u32", tuple(registers[first : first + 4]), kind_at[4 * first])
        return Share(*registers)

    def slot(self, turn: Reg, out: Reg, ahead: int) -> None:
        """The address of the slot of a layer that many turns on; part of an open fragment."""
        b = self.b
        index = convert.scratch(b, "slot_index", "u32")
        b.op("add.u32", index, turn, ahead)
        b.op("rem.u32", index, index, SLOTS)
        b.op("mad.wide.u32", out, index, 4 * self.plan.slot_words, self.exchange)
        b.op("add.u64", out, out, 4 * HEADER)
