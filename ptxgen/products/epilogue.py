"""After a record's last tile: sums over lanes and warps in a fixed order, norm, bias, activation, residual, store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.idioms.threads import split
from ptxgen.products.activation import activate
from ptxgen.products.geometry import Geometry
from ptxgen.products.stage import Stage
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.fma import FmaLoop
    from ptxgen.products.product import Product


class Epilogue:
    """Fragments `locate_result`, `publish`, `combine`, `finish`, `store`, `turn`.

    Warps leave their sums in shared memory, `[buffer, row warp, k warp, part, token, 16]`; two buffers in turn where a
    CTA has more than one group, so that one barrier a group is enough.
    """

    def __init__(self, b: Builder, spec: Product, at: Geometry) -> None:
        self.b, self.spec, self.at = b, spec, at
        self.buffers = 1 if at.groups <= at.ctas else 2
        self.warp_bytes = 4 * TILE_ROWS * at.tokens * spec.parts
        self.buffer_bytes = self.warp_bytes * at.warps
        self.slots = b.shared("sums", self.buffers * self.buffer_bytes)

    def build(self, loop: FmaLoop, stage: Stage) -> None:
        """All fragments."""
        self._locate(loop)
        self._publish(loop)
        self._combine()
        self._finish(stage)
        if self.buffers > 1:
            b = self.b
            with b.fragment("turn"):
                for address in (self.mine, self.theirs):
                    b.op("add.u32", address, address, self.to_other)
                b.op("sub.u32", self.to_other, 0, self.to_other)

    def _locate(self, loop: FmaLoop) -> None:
        b, at = self.b, self.at
        with b.fragment("locate_result"):
            b.note("a result of this CTA for each of the first threads: row warp, token, row")
            rest, row = split(b, "result_rest", "result_row", loop.thread, TILE_ROWS)
            if at.tokens > 1:
                self.owner, self.token = split(b, "result_owner", "result_token", rest, at.tokens)
            else:
                self.owner, self.token = rest, None
            self.row = row
            self.has = b.op("setp.lt.u32", "has_result", loop.thread, at.row_warps * at.tokens * TILE_ROWS)
            slots = b.op("mov.u32", "slots", self.slots)
            self.mine = b.op("mad.lo.u32", "publish_at", b.registers["warp"], self.warp_bytes, slots)
            b.op("mad.lo.u32", self.mine, loop.row, 4, self.mine)
            self.theirs = b.op("mad.lo.u32", "combine_at", self.owner, at.k_warps * self.warp_bytes, slots)
            b.op("mad.lo.u32", self.theirs, row, 4, self.theirs)
            if self.token is not None:
                b.op("mad.lo.u32", self.theirs, self.token, 4 * TILE_ROWS, self.theirs)
            self.is_writer = b.op("setp.eq.u32", "is_writer", loop.quad, 0)
            self.out_group = loop.out_group
            if self.buffers > 1:
                self.to_other = b.op("mov.u32", "to_other_buffer", self.buffer_bytes)

    def _publish(self, loop: FmaLoop) -> None:
        b, at, spec = self.b, self.at, self.spec
        with b.fragment("publish"):
            other = b.reg("other_lane", "f32")
            for part in range(spec.parts):
                for token in range(at.tokens):
                    for half in (0, 1):
                        total = loop.sum(part, half, token)
                        for distance in (1, 2):
                            b.op("shfl.sync.bfly.b32", other, total, distance, 31, 0xFFFFFFFF)
                            b.op("add.f32", total, total, other)
                        offset = 4 * ((part * at.tokens + token) * TILE_ROWS + 8 * half)
                        b.op("st.shared.f32", self.mine[offset], total, pred=self.is_writer)

    def _combine(self) -> None:
        b, at, spec = self.b, self.at, self.spec
        self.results = b.array("result", "f32", spec.parts)
        with b.fragment("combine"):
            one = b.reg("of_warp", "f32")
            for part, result in enumerate(self.results):
                offset = 4 * part * at.tokens * TILE_ROWS
                b.op("ld.shared.f32", result, self.theirs[offset])
                for warp in range(1, at.k_warps):
                    b.op("ld.shared.f32", one, self.theirs[offset + warp * self.warp_bytes])
                    b.op("add.f32", result, result, one)

    def _finish(self, stage: Stage) -> None:
        b, at, spec = self.b, self.at, self.spec
        with b.fragment("finish"):
            if spec.norm:
                self._divide_by_root(stage)
            record = b.op("mad.lo.u32", "result_record", self.out_group, at.row_warps, self.owner)
            record = b.op("min.u32", "out_record", record, spec.kind.records(spec.n))
            out_row = b.op("mad.lo.u32", "out_row", record, TILE_ROWS, self.row)
            b.op("setp.lt.u32", "row_in_matrix", out_row, spec.n)
            out = b.ld_param("out")
            if self.token is not None:
                first, count = b.registers["first_row"], b.registers["rows_counted"]
                token = b.op("add.u32", "out_token", first, self.token)
                b.op("setp.lt.and.u32", b.registers["row_in_matrix"], token, count, b.registers["row_in_matrix"])
                wide = b.op("mul.wide.u32", "out_offset", token, 4 * spec.n)
                b.op("add.u64", out, out, wide)
            b.op("mad.wide.u32", out, out_row, 4, out)
        with b.fragment("store"):
            result = self.results[0]
            if spec.bias:
                bias = b.ld_param("bias")
                b.op("mad.wide.u32", bias, out_row, 4, bias)
                value = b.op("ld.global.nc.f32", "bias_value", bias[0])
                b.op("add.f32", result, result, value)
            if spec.activation:
                activate(b, result, spec.activation)
            if spec.gated:
                b.op("mul.f32", result, result, self.results[1])
            if spec.residual:
                before = b.op("ld.global.f32", "before", out[0])
                b.op("add.f32", result, result, before)
            b.op("st.global.f32", out[0], result)

    def _divide_by_root(self, stage: Stage) -> None:
        """The squares of all warps in order, and the results over their root."""
        b, at, spec = self.b, self.at, self.spec
        assert stage.squares is not None
        total, one = b.reg("square", "f32"), b.reg("one_square", "f32")
        slot = b.op("mov.u32", "root_from", stage.squares)
        if self.token is not None:
            b.op("mad.lo.u32", slot, self.token, 4, slot)
        b.op("ld.shared.f32", total, slot[0])
        for warp in range(1, at.warps):
            b.op("ld.shared.f32", one, slot[4 * at.tokens * warp])
            b.op("add.f32", total, total, one)
        b.op("fma.rn.f32", total, total, 1.0 / spec.k, spec.eps)
        b.op("sqrt.rn.f32", total, total)
        for result in self.results:
            b.op("div.rn.f32", result, result, total)
