"""From accumulators to the output: sums change places in shared memory, so that a lane has four outputs of a token.

Without split k every warp does so for itself, some tokens at a time. With it a CTA of the cluster leaves all its sums,
and each CTA adds up those of its share of the rows over all CTAs, in the order of their ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.activation import activate
from ptxgen.idioms.threads import split
from ptxgen.products.wgmma.geometry import BANK_PAD, RESULT_BUFFERS, Geometry
from ptxgen.products.wgmma.outlets import VECTOR, RowsOut, TilesOut
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

MOST_TAKEN = 64  # sums of other CTAs that a thread has asked for at once
OCTET = 8  # tokens of a group of accumulators


class Results:
    """Fragments `begin_results`, and `results`; with split k `leave_sums`, `find_share`, and `add<n>`, `store<n>`."""

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, sums: Sequence[Sequence[Reg]]
    ) -> None:
        self.b, self.spec, self.at, self.ring, self.sums = b, spec, at, ring, sums
        self.split = at.shape.split > 1
        self.area_rows = at.rows if self.split else at.rows // at.warps  # of a part in an area of shared memory
        self.pitch = 4 * (self.area_rows + BANK_PAD)
        self.part_bytes = self.pitch * at.result_tokens
        self.together = 32 * VECTOR // self.area_rows  # tokens of a warp's load
        loads = 0 if self.split else at.result_tokens // self.together
        self.values = [
            [b.array(f"result{load}_{part}_", "f32", VECTOR) for part in range(at.parts)] for load in range(loads)
        ]
        self.buffer_bytes = at.parts * self.part_bytes
        self.before = b.array("before", "f32", VECTOR) if spec.residual else None
        self.bias = b.array("bias_value", "f32", VECTOR) if spec.bias else None

    def build(self, tasks: Tasks) -> None:
        """All fragments."""
        b, at = self.b, self.at
        thread, lane, warp, split_rank, share_rank = (
            tasks.thread, tasks.lane, tasks.warp, tasks.split_rank, tasks.share_rank
        )  # fmt: skip
        with b.fragment("begin_results", "where this lane leaves its sums, and where it takes results up"):
            area = b.op("mov.u32", "results_place", self.ring.memory)
            if not self.split:
                b.op("add.u32", area, area, at.stages * at.stage_bytes)
            row = b.op("shr.u32", "result_row", lane, 2)
            self.mine = b.op("and.b32", "leave_at", lane, 3)
            b.op("mul.lo.u32", self.mine, self.mine, 2 * self.pitch)
            b.op("mad.lo.u32", self.mine, row, 4, self.mine)
            rows_of_warp = at.rows // at.warps
            b.op(
                "mad.lo.u32",
                self.mine,
                warp,
                4 * rows_of_warp if self.split else RESULT_BUFFERS * self.buffer_bytes,
                self.mine,
            )
            b.op("add.u32", self.mine, self.mine, area)
            self.token, self.column = b.reg("taken_token", "u32"), b.reg("taken_column", "u32")
            self.taken = b.reg("take_at", "u32")
            if not self.split:
                token, quad = split(b, "taken_token_", "taken_quad", lane, rows_of_warp // VECTOR)
                b.op("mov.u32", self.token, token)
                b.op("mul.lo.u32", self.column, quad, VECTOR)
                b.op("mad.lo.u32", self.taken, self.token, self.pitch, area)
                b.op("mad.lo.u32", self.taken, self.column, 4, self.taken)
                b.op("mad.lo.u32", self.taken, warp, RESULT_BUFFERS * self.buffer_bytes, self.taken)
                b.op("mad.lo.u32", self.column, warp, rows_of_warp, self.column)
            self.left, self.stored = b.reg("tokens_left", "s32"), b.reg("stores", "pred")
            self.inside = b.reg("column_inside", "pred")
            self.outlet = (TilesOut if self.spec.packed_out else RowsOut)(b, self.spec, at)
            if self.bias is not None:
                self.bias_from = b.ld_param("bias")
        self.group, self.token_tile, self.count = tasks.group, tasks.token_tile, tasks.count
        if self.split:
            assert split_rank is not None
            with b.fragment("leave_sums", "this CTA's sums to shared memory"):
                for octet in range(at.tokens // OCTET):
                    self._leave(octet, octet)
            self._share(thread, split_rank, share_rank, area)
        else:
            b.without("leave_sums")
            with b.fragment("results", "sums change places, some tokens at a time, and are stored"):
                self._find_output()
                self._leave_some(0)
                for first in range(0, at.tokens, at.result_tokens):
                    self._round(first)
                if at.result_tokens == at.tokens:
                    b.op("bar.warp.sync", -1, note="before the next tile's are left there")

    def _leave(self, octet: int, place: int, first: int = 0) -> None:
        b, at = self.b, self.at
        for block, sums in enumerate(self.sums):
            offset = first + block * (self.part_bytes if at.parts > 1 else 4 * TILE_ROWS)
            b.note(f"tokens {OCTET * octet} to {OCTET * (octet + 1) - 1} of the tile, block {block}", after=convert.RUN)
            for half in (0, 1):
                for token in (0, 1):
                    where = offset + 32 * half + (OCTET * place + token) * self.pitch
                    b.op("st.shared.f32", self.mine[where], sums[4 * octet + 2 * half + token])

    def _find_output(self) -> None:
        """The lane's outputs of its first token, and how many tokens there are from that on."""
        b, spec, at = self.b, self.spec, self.at
        row = b.op("mad.lo.u32", convert.scratch(b, "result_row_out", "u32"), self.token_tile, at.tokens, self.token)
        column = b.op("mad.lo.u32", convert.scratch(b, "result_column", "u32"), self.group, at.rows, self.column)
        self.outlet.find(self.token_tile, self.token, row, column)
        b.op("sub.s32", self.left, self.count, row)
        b.op("setp.lt.u32", self.inside, column, spec.n)
        b.op("selp.s32", self.left, self.left, 0, self.inside)
        if self.bias is not None:
            at_bias = b.op("mad.wide.u32", convert.scratch(b, "bias_at", "u64"), column, 4, self.bias_from)
            convert.clear(b, self.bias)
            self.outlet.move("ld.global.nc", self.bias, at_bias, self.inside)

    def _buffer(self, first: int) -> int:
        """Where the sums of some tokens from `first` on are left."""
        return first // self.at.result_tokens % RESULT_BUFFERS * self.buffer_bytes

    def _leave_some(self, first: int) -> None:
        for place in range(self.at.result_tokens // OCTET):
            self._leave(first // OCTET + place, place, self._buffer(first))
        self.b.op("bar.warp.sync", -1)

    def _round(self, first: int) -> None:
        """Take up what was left, leave the next, and store."""
        b, at = self.b, self.at
        b.note(f"results of tokens {first} to {first + at.result_tokens - 1} of the tile", after=convert.RUN)
        for load, parts in enumerate(self.values):
            for part, values in enumerate(parts):
                offset = self._buffer(first) + part * self.part_bytes + load * self.together * self.pitch
                convert.load_words(b, values, self.taken, offset, space="shared")
        if first + at.result_tokens < at.tokens:
            self._leave_some(first + at.result_tokens)
        for load, parts in enumerate(self.values):
            self._finish(first + load * self.together, parts)

    def _share(self, thread: Reg, split_rank: Reg, share_rank: Reg | None, area: Reg) -> None:
        """All loads of a batch are on their way before the first sum is taken."""
        b, at = self.b, self.at
        vectors = at.rows // at.shape.split // VECTOR
        passed = 32 * at.warps // vectors  # tokens from one item of a thread to its next
        assert passed * vectors == 32 * at.warps
        with b.fragment("find_share", "this CTA's share of the rows, which it adds up over the cluster"):
            own, quad = split(b, "taken_token_", "taken_quad", thread, vectors)
            b.op("mov.u32", self.token, own)
            b.op("mad.lo.u32", self.column, split_rank, vectors, quad)
            b.op("mul.lo.u32", self.column, self.column, VECTOR)
            b.op("mad.lo.u32", self.taken, own, self.pitch, area)
            b.op("mad.lo.u32", self.taken, self.column, 4, self.taken)
            self._find_output()
            theirs = b.array("theirs", "u32", at.shape.split)
            for peer, place in enumerate(theirs):
                rank: Reg | int = peer
                if share_rank is not None:
                    rank = b.op("add.u32", convert.scratch(b, "their_rank", "u32"), share_rank, peer * at.shape.share)
                b.op("mapa.shared::cluster.u32", place, self.taken, rank)
        tokens = range(0, at.tokens, passed)
        batch = max(1, MOST_TAKEN // (VECTOR * at.parts * at.shape.split))
        got = b.array("got", "f32", VECTOR * at.parts * at.shape.split * min(batch, len(tokens)))
        shares = []
        for first in range(0, len(tokens), batch):
            some = tokens[first : first + batch]
            with b.fragment(f"add{first // batch}", f"tokens {some[0]} on: sums in the order of ranks") as add:
                there = self._add(theirs, some, passed, got)
            with b.fragment(f"store{first // batch}", f"tokens {some[0]} on: finished, and to memory") as store:
                for index, token in enumerate(some):
                    if there is not None and token + passed > at.tokens:
                        b.op("selp.s32", self.left, self.left, 0, there)
                        b.op("and.pred", self.inside, self.inside, there)
                    parts = [self._got(got, index, part, 0) for part in range(at.parts)]
                    self._finish(token, parts)
            shares.append((add, store))
        b.expose(shares=shares)

    def _got(self, got: Sequence[Reg], index: int, part: int, peer: int) -> Sequence[Reg]:
        """What a CTA left of a batch's item."""
        first = VECTOR * ((index * self.at.parts + part) * self.at.shape.split + peer)
        return got[first : first + VECTOR]

    def _add(self, theirs: Sequence[Reg], tokens: Sequence[int], passed: int, got: Sequence[Reg]) -> Reg | None:
        """Load a batch and add it up; where the last item may lie past the tile, whether it does not."""
        b, at, there = self.b, self.at, None
        for index, token in enumerate(tokens):
            if token + passed > at.tokens:
                there = b.op("setp.lt.u32", "item_there", self.token, at.tokens - token)
            for part in range(at.parts):
                for peer, place in enumerate(theirs):
                    values = self._got(got, index, part, peer)
                    if there is not None:
                        convert.clear(b, values)
                    offset = part * self.part_bytes + token * self.pitch
                    convert.load_words(b, values, place, offset, space="shared::cluster", pred=there)
        for index in range(len(tokens)):
            for part in range(at.parts):
                total = self._got(got, index, part, 0)
                for peer in range(1, at.shape.split):
                    for value, more in zip(total, self._got(got, index, part, peer), strict=True):
                        b.op("add.f32", value, value, more)
        return there

    def _finish(self, token: int, parts: Sequence[Sequence[Reg]]) -> None:
        """What stands around the product, and the store; `token`: from the lane's first."""
        b, spec = self.b, self.spec
        values = parts[0]
        b.op("setp.gt.s32", self.stored, self.left, token)
        if self.bias is not None:
            for value, bias in zip(values, self.bias, strict=True):
                b.op("add.f32", value, value, bias)
        if spec.activation:
            activate(b, spec.activation, values)
        if spec.gated:
            for value, factor in zip(values, parts[1], strict=True):
                b.op("mul.f32", value, value, factor)
        self.outlet.go_to(token)
        if spec.residual:
            assert self.before is not None
            self.outlet.add_before(values, self.before, self.stored)
        self.outlet.store(values, self.stored, self.inside)
