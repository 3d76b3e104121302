"""After a record's last tile: sums over lanes and warps in a fixed order, norm, bias, activation, residual, store."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.activation import activate
from ptxgen.idioms.division import split
from ptxgen.products.geometry.groups import Geometry
from ptxgen.products.geometry.runs import Runs
from ptxgen.products.mainloop.loop import TileLoop
from ptxgen.products.mainloop.stream import Stream, Turn
from ptxgen.products.problem.product import Tokens
from ptxgen.products.problem.weighted import Surrounded
from ptxgen.products.prologue.prepare import Prepare
from ptxgen.products.prologue.squares import Squares
from ptxgen.products.prologue.stage import Stage
from ptxgen.products.split_k.cluster import Join
from ptxgen.products.split_k.slots import RunSlots, add_in_pairs
from ptxgen.weights.format import TILE_ROWS


class Epilogue:
    """Fragments `locate_slot`, `publish`, `first_result`, `locate_result`, `combine`, `finish`, `store`, `next_result`,
    `turn`.

    Warps leave their sums in shared memory, `[buffer, row warp, k warp, part, token, 16]`; two buffers in turn where a
    CTA has more than one group, so that one barrier a group is enough. A thread has one result, or several in turn.
    """

    def __init__(self, b: Builder, spec: Surrounded, at: Geometry | Runs, slots: RunSlots | None = None) -> None:
        self.b, self.spec, self.at = b, spec, at
        self.tokens: Tokens | None = None
        self.token: Reg | None = None
        self.loop: TileLoop | Stream
        self.before: Reg | None = None  # of the residual stream, where it is asked for early
        if isinstance(at, Runs):
            self.run_slots = slots or RunSlots(b, at)
            self.results = at.results
            self.turns = -(-self.results // at.threads)
            return
        self.buffers = 1 if at.groups <= at.ctas else 2
        self.warp_bytes = 4 * TILE_ROWS * at.tokens * spec.parts
        self.buffer_bytes = self.warp_bytes * at.warps
        self.slots = b.shared("sums", self.buffers * self.buffer_bytes)
        self.results = at.row_warps * at.tokens * TILE_ROWS
        self.turns = -(-self.results // at.threads)

    def build(self, loop: TileLoop, norm: Stage | Squares | None, tokens: Tokens | None) -> None:
        """All fragments. `norm` has the sums of squares."""
        self.tokens = tokens
        self.loop = loop
        self.begin()
        self._locate(loop)
        self._publish(loop)
        self._find_result(loop)
        self._combine()
        self._finish(norm)
        self._next_result()
        b = self.b
        if self.buffers > 1:
            with b.fragment("turn"):
                for address in (self.mine, self.others):
                    b.op("add.u32", address, address, self.to_other)
                b.op("sub.u32", self.to_other, 0, self.to_other)
        else:
            b.without("turn")

    def build_stream(self, stream: Stream, requests: Sequence[Fragment], stage: Prepare) -> list[Turn]:
        """The same after a `Stream`, with its fragments; the slots are `RunSlots`."""
        b, at, spec = self.b, self.at, self.spec
        assert isinstance(at, Runs)
        self.loop = stream
        join = Join(b, at, self.results, spec.parts + bool(spec.norm)) if at.split > 1 else None
        slots = self.run_slots.locate(stream)
        with b.fragment("first_result", "results of the CTA, one a thread"):
            self.result = b.op("mov.u32", "result_index", stream.thread)
            self.has_result = b.op("setp.lt.u32", "has_result", self.result, self.results)
            takes = join.find(stream, self.has_result) if join is not None else None
            inside = self.inside = b.op("setp.lt.u32", "row_in_matrix", self.result, 0)
            self.out_row = b.op("mov.u32", "out_row", 0)
        with b.fragment("locate_result", "the unit of the CTA, the row, and their slots"):
            self.owner, self.row = split(b, "result_owner", "result_row", self.result, TILE_ROWS)
            units = stream.units_of_cta()
            b.op("setp.lt.u32", inside, self.owner, units)
            last = b.op("sub.u32", "last_owner", units, 1) if isinstance(units, Reg) else units - 1
            b.op("min.u32", self.owner, self.owner, last)
            self.run_slots.find(stream, self.owner, self.row)
            record = b.op("add.u32", "result_record", stream.first_unit, self.owner)
            b.op("mad.lo.u32", self.out_row, record, TILE_ROWS, self.row)
            b.op("setp.lt.and.u32", inside, self.out_row, spec.n, inside)
            if takes is not None:
                b.op("and.pred", inside, inside, takes)
        self.begin()
        turns = stream.build(requests, stage.digits, slots)
        self.values = b.array("result", "f32", spec.parts)
        square = None
        with b.fragment("combine", "add the sums of the warps along k"):
            self.run_slots.combine(self.values)
            if spec.norm and join is not None:
                square = self._square(stage)
        if join is not None:
            join.build(stream, self.result, [*self.values, *([square] if square is not None else [])])
        else:
            b.without("make_bell", "send_sums", "poll_sums", "take_sums")
        with b.fragment("finish", f"{'divide by the root mean square; ' if spec.norm else ''}the result's address"):
            if spec.norm:
                self._times_root(square or self._square(stage))
            self.place(self.out_row, inside)
        with b.fragment("store", "store the result"):
            self.store(self.out_row)
        self._next_result()
        return turns

    def _next_result(self) -> None:
        """Fragment `next_result`, where a thread has several in turn."""
        b = self.b
        if self.turns > 1:
            with b.fragment("next_result"):
                b.op("add.u32", self.result, self.result, self.at.threads)
                b.op("setp.lt.u32", "more_results", self.result, self.results)

    def _locate(self, loop: TileLoop) -> None:
        b = self.b
        with b.fragment("locate_slot", "where the warp puts its sums"):
            slots = b.op("mov.u32", "slots", self.slots)
            self.mine = b.op("mad.lo.u32", "publish_at", loop.warp, self.warp_bytes, slots)
            b.op("mad.lo.u32", self.mine, loop.row, 4, self.mine)
            self.others = b.op("mov.u32", "combine_base", slots)
            if self.buffers > 1:
                self.to_other = b.op("mov.u32", "to_other_buffer", self.buffer_bytes)

    def _publish(self, loop: TileLoop) -> None:
        with self.b.fragment("publish", "the warp's sums to shared memory"):
            loop.publish(self.mine, [4 * part * self.at.tokens * TILE_ROWS for part in range(self.spec.parts)])

    @property
    def _groups(self) -> Geometry:
        assert isinstance(self.at, Geometry)
        return self.at

    def _find_result(self, loop: TileLoop) -> None:
        b, at = self.b, self._groups
        with b.fragment("first_result"):
            self.result = b.op("mov.u32", "result_index", loop.thread)
            b.op("setp.lt.u32", "has_result", self.result, self.results)
        with b.fragment("locate_result"):
            b.note("row warp, token, row")
            rest, self.row = split(b, "result_rest", "result_row", self.result, TILE_ROWS)
            self.owner = rest
            if self.tokens is not None:
                self.owner, self.token = split(b, "result_owner", "result_token", rest, at.tokens)
            self.theirs = b.op("mad.lo.u32", "combine_at", self.owner, at.k_warps * self.warp_bytes, self.others)
            b.op("mad.lo.u32", self.theirs, self.row, 4, self.theirs)
            if self.token is not None:
                b.op("mad.lo.u32", self.theirs, self.token, 4 * TILE_ROWS, self.theirs)
        self.out_group = loop.out_group

    def _combine(self) -> None:
        b, at, spec = self.b, self._groups, self.spec
        self.values = b.array("result", "f32", spec.parts)
        with b.fragment("combine", "add the sums of the warps along k"):
            one = b.reg("of_warp", "f32")
            for part, result in enumerate(self.values):
                offset = 4 * part * at.tokens * TILE_ROWS
                b.op("ld.shared.f32", result, self.theirs[offset])
                for warp in range(1, at.k_warps):
                    b.op("ld.shared.f32", one, self.theirs[offset + warp * self.warp_bytes])
                    b.op("add.f32", result, result, one)

    def _finish(self, norm: Stage | Squares | None) -> None:
        b, at, spec = self.b, self._groups, self.spec
        with b.fragment("finish", f"{'divide by the root mean square; ' if norm else ''}the result's address"):
            if norm is not None:
                self._divide_by_root(norm)
            record = b.op("mad.lo.u32", "result_record", self.out_group, at.row_warps, self.owner)
            record = b.op("min.u32", "out_record", record, spec.kind.records(spec.n))
            out_row = b.op("mad.lo.u32", "out_row", record, TILE_ROWS, self.row)
            inside = b.op("setp.lt.u32", "row_in_matrix", out_row, spec.n)
            self.place(out_row, inside)
        with b.fragment("store", "store the result"):
            self.store(out_row)

    # -- what becomes of a result: other kinds of epilogue say it otherwise --------------------------------------------

    def begin(self) -> None:
        """Fragment `read_early`: what is asked for before x."""
        b, spec = self.b, self.spec
        if not (spec.residual and isinstance(self.at, Runs) and self.turns == 1):
            b.without("read_early")
            return
        with b.fragment("read_early", "the residual stream"):
            self._locate_out()
            self.before = b.op("ld.global.f32", "before", self.out[0], pred=self.inside)

    def place(self, out_row: Reg, inside: Reg) -> None:
        """Where the result goes, `values[0]` of row `out_row`; `inside`: the matrix has it. All threads that have a
        result are here, so that they may exchange."""
        b, spec = self.b, self.spec
        if self.before is not None:
            return
        self.out = out = b.ld_param("out")
        if self.tokens is not None and self.token is not None:
            token = b.op("add.u32", "out_token", self.tokens.first, self.token)
            b.op("setp.lt.and.u32", inside, token, self.tokens.rows, inside)
            wide = b.op("mul.wide.u32", "out_offset", token, 4 * spec.n)
            b.op("add.u64", out, out, wide)
        b.op("mad.wide.u32", out, out_row, 4, out)

    def store(self, out_row: Reg) -> None:
        """Bias, activation, gate, residual, and the store, by threads whose row the matrix has."""
        b, out, result = self.b, self.out, self.surround(out_row)
        if self.spec.residual:
            before = self.before or b.op("ld.global.f32", "before", out[0])
            b.op("add.f32", result, result, before)
        b.op("st.global.f32", out[0], result)

    def surround(self, out_row: Reg) -> Reg:
        """The result with bias, activation and gate."""
        b, spec = self.b, self.spec
        result = self.values[0]
        if spec.bias:
            bias = b.ld_param("bias")
            b.op("mad.wide.u32", bias, out_row, 4, bias)
            value = b.op("ld.global.nc.f32", "bias_value", bias[0])
            b.op("add.f32", result, result, value)
        if spec.activation:
            activate(b, spec.activation, (result,))
        if spec.gated:
            b.op("mul.f32", result, result, self.values[1])
        return result

    def end(self, loop: TileLoop | Stream) -> Sequence[tuple[str, str]]:
        """What follows when a thread has no more results: templates, and the builder's bodies that they place."""
        return ()

    def _locate_out(self) -> None:
        """The address of the thread's first result."""
        b = self.b
        self.out = b.ld_param("out")
        b.op("mad.wide.u32", self.out, self.out_row, 4, self.out)

    def _square(self, stage: Prepare) -> Reg:
        """The squares of all warps, in a fixed order."""
        b = self.b
        assert stage.squares is not None
        squares = b.array("warp_square", "f32", stage.at.warps)
        convert.load_words(b, squares.regs, stage.squares, space="shared")
        return add_in_pairs(b, squares.regs)

    def _times_root(self, total: Reg) -> None:
        """The results times the inverse of the root of the mean square, to f32's last bit but one."""
        b, spec = self.b, self.spec
        b.op("fma.rn.f32", total, total, 1.0 / spec.k, spec.eps)
        root, error = b.op("rsqrt.approx.f32", "root", total), b.reg("root_error", "f32")
        b.op("mul.f32", error, total, root)
        b.op("neg.f32", error, error)
        b.op("fma.rn.f32", error, error, root, 1.0)
        b.op("mul.f32", error, error, 0.5)
        b.op("fma.rn.f32", root, root, error, root)
        for result in self.values:
            b.op("mul.f32", result, result, root)

    def _divide_by_root(self, norm: Stage | Squares) -> None:
        """The squares of all warps in order, and the results over their root."""
        b, at, spec = self.b, self.at, self.spec
        assert norm.squares is not None
        total, one = b.reg("square", "f32"), b.reg("one_square", "f32")
        slot = b.op("mov.u32", "root_from", norm.squares)
        if self.token is not None:
            b.op("mad.lo.u32", slot, self.token, 4, slot)
        b.op("ld.shared.f32", total, slot[0])
        for warp in range(1, norm.warps):
            b.op("ld.shared.f32", one, slot[4 * at.tokens * warp])
            b.op("add.f32", total, total, one)
        b.op("fma.rn.f32", total, total, 1.0 / spec.k, spec.eps)
        b.op("sqrt.rn.f32", total, total)
        for result in self.values:
            b.op("div.rn.f32", result, result, total)
