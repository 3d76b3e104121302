"""K and V of 8 bits as 16-bit rows in memory, made by the launch itself before its products: once for all queries.
(Conversions on the way into shared memory are repeated for every tile of them.)

CTAs draw blocks of keys of a head from a counter until none is left, and wait until all are made. Who has drawn a block
runs, and makes it without waiting for anyone: so no CTA waits for one that has not begun. Counters are left at zero.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.sources import source_of
from ptxgen.attention.prefill.wgmma.blocks import Blocks
from ptxgen.attention.prefill.wgmma.copies import PairedCopy
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.tile import CHUNK, LANES, WgmmaTile
from ptxgen.attention.prefill.wgmma.variants import folds_scales
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import clear, scratch, store_words
from ptxgen.idioms.polls import Polls

DRAWN, MADE, LEFT = 0, 4, 8  # offsets of the counters
COUNTERS = 3


class Widened:
    """Fragments `begin_widening`; `draw`, ahead and again within the loop over blocks, of which are `tell`, `drawn` and
    `widen`; `made`, `wait_for_all` (a wait) and `leave`; `see_widened`, before the first copy."""

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, dtype: DType) -> None:
        self.b, self.spec, self.items, self.dtype = b, spec, items, dtype
        self.rows = tile.threads // (LANES // 2)  # keys of a block: a row for every four threads
        self.copy = PairedCopy(b, "wide", spec.dim, self.rows, tile.threads, dtype, spec.attention.problem.kv_dtype)
        self.blocks = Blocks(b, spec, tile, items, self.rows)
        self.source = source_of(b, spec, self.blocks, self.copy)

    def build(self) -> None:
        """Build every fragment named above."""
        b, items, blocks = self.b, self.items, self.blocks
        blocks.count()
        told = b.shared("block_told", 8, 4)
        with b.fragment("begin_widening", "K and V as 16-bit rows: a block is some keys of a head"):
            self.row, self.chunk = self.copy.aim(items.thread)
            blocks.begin()
            total = blocks.total
            items.wide = {x: b.ld_param(f"wide_{x}") for x in "kv"}
            if folds_scales(self.spec.attention.variant):
                items.k_scales = b.ld_param("k_scale")
            at = b.ld_param("widening")
            b.note("each CTA also draws one that is not there, the last of them sets the counter back")
            most = b.op("add.u32", "last_draw", total, items.ctas)
            b.op("sub.u32", most, most, 1)
            leads = b.op("setp.eq.u32", "leads", items.thread, 0)
            made = b.op("mov.u32", "blocks_made", 0)
            place = b.op("mov.u32", "told_at", told)
        drawn = b.reg("block_drawn", "u32")
        with b.fragment("draw", "ahead of when it is needed"):
            b.op("atom.relaxed.gpu.global.inc.u32", drawn, at[DRAWN], most, pred=leads)
        with b.fragment("tell"):
            b.op("st.shared.u32", place[0], drawn, pred=leads)
        with b.fragment("drawn", "the block that is next, if there is one"):
            block = b.op("ld.shared.u32", "block", place[0])
            b.note("no thread writes what another has still to read")
            b.op("xor.b32", place, place, 4)
            b.op("setp.lt.u32", "has_block", block, total)
            blocks.draw(block)
        blocks.find()
        with b.fragment("widen", f"{self.rows} keys and values"):
            self._block()
            b.op("add.u32", made, made, 1)
        with b.fragment("made", "after a barrier, so that it tells of what all threads have written"):
            b.op("red.release.gpu.global.add.u32", at[MADE], made, pred=leads)
            polls = Polls(b)
            polls.allow()
        with b.fragment("wait_for_all"):
            so_far = b.op("ld.acquire.gpu.global.u32", "all_made", at[MADE])
            b.op("setp.ge.u32", "are_made", so_far, total)
            polls.count()
        with b.fragment("leave", "the last to have seen it sets the counter back"):
            b.op("atom.acq_rel.gpu.global.inc.u32", drawn, at[LEFT], b.op("sub.u32", most, items.ctas, 1))
            last = b.op("setp.eq.u32", "is_last_to_leave", drawn, most)
            b.op("st.global.u32", at[MADE], 0, pred=last)
        with b.fragment("see_widened", "what other CTAs have written, seen by the copies from here on"):
            b.op("fence.proxy.async")

    def _block(self) -> None:
        """The rows of the block that was drawn; part of an open fragment."""
        b, blocks, source = self.b, self.blocks, self.source
        blocks.place()
        source.aim(self.row, self.chunk)
        source.start()
        source.row(0, source.exists(0))
        assert source.values.k_from is not None, "aimed, and at a row"
        b.note("rows lie as those of 8 bits do, twice as far apart")
        place = b.op("sub.u64", b.reg("wide_row_at", "u64"), source.values.k_from, source.values.k)
        b.op("shl.b64", place, place, 1)
        signs = self._signs(blocks.kv_head)
        loaded = {x: self._load(x) for x in "kv"}
        for x, (words, scales, exists) in loaded.items():
            to = b.op("add.u64", b.reg(f"wide_{x}_at", "u64"), place, self.items.wide[x])
            for column, (some, scale, pred) in enumerate(zip(words, scales, exists, strict=True)):
                wide = self.copy.widened(some, scale, signs if x == "k" else None)
                for half in range(2):
                    offset = column * LANES * CHUNK + half * CHUNK
                    store_words(b, to, wide[4 * half : 4 * half + 4], offset, pred=pred)

    def _load(self, x: str) -> tuple[list[tuple[Reg, ...]], list[Reg | None], list[Reg]]:
        """This thread's chunks of a row, their scales, and whether they exist; part of an open fragment."""
        b, copy, source = self.b, self.copy, self.source
        count, each = copy.spread.column_passes, copy.source_bytes // 4
        array = b.array(f"wide_{x}_word", "b32", count * each)
        words = [tuple(array[n * each : (n + 1) * each]) for n in range(count)]
        scales: list[Reg | None] = [None] * count
        if source.quantised:
            scales = [*b.array(f"wide_{x}_scale_of", "b16", count)]
        exists = source.exists(0)
        present: list[Reg] = []
        for column, takes_part in copy.passes(0):
            pred = exists
            if takes_part is not None:
                pred = b.op("and.pred", scratch(b, "wide_exists", "pred"), exists, takes_part)
            present.append(pred)
            clear(b, words[column])
            copy.load(words[column], source.chunk_at(x, 0, column), pred)
            if (scale := scales[column]) is not None:
                b.op("mov.b16", scale, 0)
                b.op("ld.global.nc.b16", scale, source.scale_at(x, 0, column), pred=pred)
        return words, scales, present

    def _signs(self, head: Reg) -> Reg | None:
        """The sign bits that K takes from its head's scale; part of an open fragment."""
        b, scales = self.b, self.items.k_scales
        if scales is None:
            return None
        at = b.op("mad.wide.u32", b.reg("wide_scale_at", "u64"), head, 4, scales)
        return sign_bits(b, b.op("ld.global.nc.f32", b.reg("wide_sign_of", "f32"), at[0]))


def sign_bits(b: Builder, scale: Reg) -> Reg:
    """The sign of an f32, as those of four bytes; part of an open fragment."""
    signs: Reg = b.op("mov.b32", b.reg("k_signs", "b32"), scale)
    b.op("and.b32", signs, signs, -0x80000000)
    upper = scratch(b, "k_sign", "b32")
    for distance in (16, 8):
        b.op("shr.u32", upper, signs, distance)
        b.op("or.b32", signs, signs, upper)
    return signs
