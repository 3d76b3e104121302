"""From accumulators to the output: sums change places in shared memory, so that a lane has four outputs of a token.

Every warp does so for itself, some tokens at a time; or two do that have a record each, of gate and of up: then their
warpgroup meets where a warp would, and one of the two takes up what both have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.activation import activate
from ptxgen.idioms.division import split
from ptxgen.products.wgmma.epilogue.outlets import Outlet, RowsOut, TilesOut
from ptxgen.products.wgmma.epilogue.transpose_rounds import build_rounds
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import BANK_PAD, OCTET, VECTOR, WARPS, Geometry
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

PROCESSOR_REGISTERS, MOST_REGISTERS = 1 << 16, 255  # of a multiprocessor, of a thread
# loads of a lane of what results are added to, on their way together; registers that results take beside sums and these
RESIDUAL_LOADS, BESIDE_SUMS = 6, 72


def _loads_ahead(at: Geometry) -> int:
    """Loads of what results are added to that a lane has on its way, as far as there are registers."""
    groups = -(-at.threads // (32 * WARPS))  # ptxas gives as many as whole warpgroups could have
    most = min(MOST_REGISTERS, PROCESSOR_REGISTERS // (32 * WARPS * groups * at.shape.resident))
    if at.wide:
        most = at.shares_of_registers[1]
    return max(1, min(RESIDUAL_LOADS, (most - at.sums // 2 - BESIDE_SUMS) // VECTOR))


class Results:
    """Fragments `begin_results` and `results`."""

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, sums: Sequence[Sequence[Reg]]
    ) -> None:
        self.b, self.spec, self.at, self.ring, self.sums = b, spec, at, ring, sums
        self.area_rows = at.rows // at.row_warps * at.mates  # of a part in an area of shared memory
        self.pitch = 4 * (self.area_rows + BANK_PAD)
        self.part_bytes = self.pitch * at.result_tokens
        self.together = 32 * VECTOR // self.area_rows  # tokens of a warp's load
        loads = at.result_tokens // self.together
        self.values = [
            [b.array(f"result{load}_{part}_", "f32", VECTOR) for part in range(at.parts)] for load in range(loads)
        ]
        self.buffer_bytes = at.parts * self.part_bytes
        self.loads = at.out_tokens // self.together  # of a tile
        self.ahead = min(self.loads, _loads_ahead(at)) if spec.residual else 0
        self.before = [b.array(f"before{load}_", "f32", VECTOR).regs for load in range(self.ahead)]
        self.bias = b.array("bias_value", "f32", VECTOR) if spec.bias else None

    def build(self, tasks: Tasks) -> None:
        """Build the fragments that bring sums to shared memory, and from there in whole rows to out."""
        b, at = self.b, self.at
        lane, warp = tasks.lane, tasks.warp
        with b.fragment("begin_results", "where this lane leaves its sums, and where it takes results up"):
            area = b.op("mov.u32", "results_place", self.ring.memory)
            b.op("add.u32", area, area, at.results_at)
            if at.mates > 1:
                warp = self._find_mate(warp, area)
            row = b.op("shr.u32", "result_row", lane, 2)
            self.mine = b.op("and.b32", "leave_at", lane, 3)
            b.op("mul.lo.u32", self.mine, self.mine, 2 * self.pitch)
            b.op("mad.lo.u32", self.mine, row, 4, self.mine)
            b.op("mad.lo.u32", self.mine, warp, at.result_buffers * self.buffer_bytes, self.mine)
            b.op("add.u32", self.mine, self.mine, area)
            if at.mates > 1:
                b.op("mad.lo.u32", self.mine, self.mate, self.part_bytes, self.mine)
            self.token, self.column = b.reg("taken_token", "u32"), b.reg("taken_column", "u32")
            self.taken = b.reg("take_at", "u32")
            token, quad = split(b, "taken_token_", "taken_quad", lane, self.area_rows // VECTOR)
            b.op("mov.u32", self.token, token)
            b.op("mul.lo.u32", self.column, quad, VECTOR)
            b.op("mad.lo.u32", self.taken, self.token, self.pitch, area)
            b.op("mad.lo.u32", self.taken, self.column, 4, self.taken)
            b.op("mad.lo.u32", self.taken, warp, at.result_buffers * self.buffer_bytes, self.taken)
            rows_of = warp if tasks.slice is None else tasks.row_warp
            b.op("mad.lo.u32", self.column, rows_of, self.area_rows, self.column)
            self.token = tasks.own_token(self.token, at.out_tokens)
            self.left, self.stored = b.reg("tokens_left", "s32"), b.reg("stores", "pred")
            self.inside = b.reg("column_inside", "pred")
            self.outlet = self._make_outlet()
            if self.bias is not None:
                self.bias_from = b.ld_param("bias")
            self._begin_beside(lane)
        self.group, self.token_tile, self.count, self.takes = tasks.group, tasks.token_tile, tasks.count, tasks.takes
        self.finished, self.limit = tasks.finished, tasks.limit
        self._ask_early()
        if at.mates > 1:
            self._in_rounds()
            return
        with b.fragment("results", "sums change places, some tokens at a time, and are stored"):
            self._find_output()
            self._ask_first()
            self._leave_some(0)
            for first in range(0, at.out_tokens, at.result_tokens):
                self._round(first)
            again = at.shape.slices == 1 and not at.one_tile  # warpgroups that share k meet before the next tile's
            if again and (at.result_buffers == 1 or at.result_tokens == at.out_tokens):
                b.op("bar.warp.sync", -1, note="before the next tile's are left there")
        b.expose(result_rounds=())

    def _in_rounds(self) -> None:
        """Fragment `find_output`, and those of rounds, between which warps meet."""
        b, at = self.b, self.at
        with b.fragment("find_output", "the lane's first token and its outputs"):
            self._find_output()
            self._ask_first()
        build_rounds(b, at, self.meeting, "sums", self._leave_all, self._take_all, alone=at.result_buffers == 1)

    def _take_all(self, first: int) -> None:
        self._load(first)
        self._finish_all(first)

    def _find_mate(self, warp: Reg, area: Reg) -> Reg:
        """Which part this warp has; the area of both warps, as if it were a warp's."""
        b = self.b
        self.mate = b.op("and.b32", "mate", warp, self.at.mates - 1)
        self.takes_up = b.op("setp.eq.u32", "takes_up", self.mate, 0)
        self.meeting = b.op("shr.u32", "meeting", warp, WARPS.bit_length() - 1)
        b.op("add.u32", self.meeting, self.meeting, 1)
        pair: Reg = b.op("shr.u32", "pair_of_warps", warp, self.at.mates.bit_length() - 1)
        return pair

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
        token = self.finished(self.token)
        row, column = self._find_place(token)
        self.outlet.find(self.token_tile, token, row, column)
        b.op("sub.s32", self.left, self.count, row)
        self.limit(self.left, self.token)
        b.op("setp.lt.u32", self.inside, column, spec.n)
        if self.takes is not None:
            b.op("and.pred", self.inside, self.inside, self.takes)
        if at.mates > 1:
            b.op("and.pred", self.inside, self.inside, self.takes_up)
        b.op("selp.s32", self.left, self.left, 0, self.inside)
        if self.bias is not None:
            at_bias = b.op("mad.wide.u32", convert.scratch(b, "bias_at", "u64"), column, 4, self.bias_from)
            convert.clear(b, self.bias)
            self.outlet.move("ld.global.nc", self.bias, at_bias, self.inside)
        self._find_beside(row, column)

    def _make_outlet(self) -> Outlet:
        """Where results go; part of `begin_results`."""
        return (TilesOut if self.spec.packed_out else RowsOut)(self.b, self.spec, self.at)

    def _find_place(self, token: Reg | None = None) -> tuple[Reg, Reg]:
        """Row and column of the lane's outputs of a token of the tile, None: of its first; part of an open fragment."""
        b, at = self.b, self.at
        row = b.op(
            "mad.lo.u32", convert.scratch(b, "result_row_out", "u32"), self.token_tile, at.tokens, token or self.token
        )
        column = b.op(
            "mad.lo.u32", convert.scratch(b, "result_column", "u32"), self.group, at.rows // at.shape.units, self.column
        )
        return row, column

    def _ask_early(self) -> None:
        """What results need that is asked for before a tile is multiplied: a fragment of its own."""

    def _begin_beside(self, lane: Reg) -> None:
        """What else goes to memory beside results."""

    def _find_beside(self, row: Reg, column: Reg) -> None:
        """Where that goes, of the lane's first token."""

    def _keep_beside(self, values: Sequence[Reg], token: int) -> None:
        """Store what goes beside a token's results, which are stored already; `values` may be overwritten."""

    def _ask_first(self) -> None:
        """Ask for what the first results are added to."""
        for load in range(self.ahead):
            self._ask(load, 0)

    def _ask(self, load: int, now: int) -> None:
        """The lane's row of a load, as it is, where the output points at load `now`: one after the other, each would
        take as long as memory does."""
        if load >= self.loads:
            return
        asks = convert.scratch(self.b, "asks_before", "pred")
        self.b.op("setp.gt.s32", asks, self.left, load * self.together)
        self.outlet.load(self.before[load % self.ahead], asks, (load - now) * self.together)

    def _buffer(self, first: int) -> int:
        """Where the sums of some tokens from `first` on are left."""
        return first // self.at.result_tokens % self.at.result_buffers * self.buffer_bytes

    def _leave_some(self, first: int) -> None:
        self._leave_all(first)
        self.b.op("bar.warp.sync", -1)

    def _leave_all(self, first: int) -> None:
        for place in range(self.at.result_tokens // OCTET):
            self._leave(first // OCTET + place, place, self._buffer(first))

    def _round(self, first: int) -> None:
        """Take up what was left, leave the next, and store."""
        b, at = self.b, self.at
        b.note(f"results of tokens {first} to {first + at.result_tokens - 1} of the tile", after=convert.RUN)
        self._load(first)
        if first + at.result_tokens < at.out_tokens:
            if at.result_buffers == 1:
                b.op("bar.warp.sync", -1, note="before the next are left there")
            self._leave_some(first + at.result_tokens)
        self._finish_all(first)

    def _load(self, first: int) -> None:
        for load, parts in enumerate(self.values):
            for part, values in enumerate(parts):
                offset = self._buffer(first) + part * self.part_bytes + load * self.together * self.pitch
                convert.load_words(self.b, values, self.taken, offset, space="shared")

    def _finish_all(self, first: int) -> None:
        for load, parts in enumerate(self.values):
            self._finish(first + load * self.together, parts)

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
            load = token // self.together
            for value, was in zip(values, self.before[load % self.ahead], strict=True):
                b.op("add.f32", value, value, was)
            self._ask(load + self.ahead, load)
        self.outlet.store(values, self.stored, self.inside)
        self._keep_beside(values, token)
