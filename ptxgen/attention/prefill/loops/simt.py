"""The main loop on plain FMA in f32: for f32 keys, and for targets before sm_80.

`lanes` (16) threads share a row: a thread owns `r` neighbouring rows, every 16th key of the tile, and every 16th quad
of the accumulator's columns. Inner loops are PTX loops over head_dim and over the keys, so the text stays short.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.copies import pitch
from ptxgen.attention.prefill.loops.keys import KeyTiles
from ptxgen.attention.prefill.loops.queries import QueryTile
from ptxgen.attention.prefill.loops.softmax import RunningSoftmax
from ptxgen.attention.prefill.loops.tiles import SimtTile, dynamic
from ptxgen.attention.prefill.rows import Rows
from ptxgen.attention.prefill.softmax import Owned, Score
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch
from ptxgen.lines.words import counted

QUAD = 4  # f32 values of a 16-byte access


class SimtLoop:
    """Builds every fragment of `attention/multi_head_attention_simt.ptx.j2`."""

    def __init__(self, b: Builder, spec: Prefill, tile: SimtTile) -> None:
        self.b, self.spec, self.tile = b, spec, tile
        self.pitch = pitch(4 * spec.dim)
        self.quads = spec.dim // QUAD
        self.groups = -(-self.quads // self.tile.lanes)  # quads of columns that a thread owns
        self.turn = QUAD if self.groups <= 8 else 1  # keys of a turn of the loop over V, by the registers left
        self.rows = Rows(b, spec, tile.rows, tile.keys)
        self.queries = QueryTile(b, spec, self.rows, tile.threads, f32)
        self.kv = KeyTiles(b, spec, self.rows, tile.threads, tile.stages, f32)

    def build(self) -> None:
        """Build the fragments of the FMA loop, in the order of the template."""
        t = self.tile
        self.rows.locate()
        self.score = self.b.array("score", "f32", t.r * t.c)
        self.acc = self.b.array("acc", "f32", t.r * self.groups * QUAD)
        self.softmax = RunningSoftmax(
            self.b, self.spec, self.rows, [self._scores_of(r) for r in range(t.r)], t.lanes, range(t.r), self._own
        )
        self._aim()
        self.queries.stage(self.base)
        self.kv.fetch()
        self.b.expose(tile_copied=self.kv.copy.direct)
        self._clear()
        self._look_ahead()
        self._scores()
        self.softmax.vary(self.tile_start)
        self.softmax.look_for_mask(self.tile_start)
        self.softmax.mask(self.tile_start)
        self.softmax.raise_maxima(self._accumulators())
        self._probabilities()
        self._values()
        self._advance()
        self._finish()

    # -- registers -----------------------------------------------------------------------------------------------------

    def _scores_of(self, row: int) -> list[Score]:
        c = self.tile.c
        return [Score(self.score[row * c + i], self.tile.lanes * i) for i in range(c)]

    def _own(self) -> Owned:
        return Owned(self.first_of_thread, self.lane)

    def _acc(self, row: int, group: int) -> tuple[Reg, ...]:
        first = (row * self.groups + group) * QUAD
        return tuple(self.acc[first : first + QUAD])

    def _accumulators(self) -> list[tuple[Reg, ...]]:
        each = self.groups * QUAD
        return [tuple(self.acc[r * each : (r + 1) * each]) for r in range(self.tile.r)]

    def _guard(self, group: int) -> Reg | None:
        """The predicate that this lane owns a quad in a group of 16; None where every lane does."""
        last = self.quads % self.tile.lanes and group == self.groups - 1
        return self.owns_last if last else None

    # -- fragments -----------------------------------------------------------------------------------------------------

    def _aim(self) -> None:
        b, t = self.b, self.tile
        nbytes = t.shared_bytes(self.spec.dim)
        arena = b.shared("tiles", nbytes, dynamic=dynamic(nbytes) > 0)
        with b.fragment("aim", "this thread's places in shared memory, and its first chunks of K and V"):
            self.base = b.op("mov.u32", "q_base", arena)
            kv_base = b.op("add.u32", "kv_base", self.base, t.rows * self.pitch)
            p_base = b.op("add.u32", "p_base", kv_base, t.stages * self.kv.stage_bytes)
            self.kv.aim(kv_base)
            b.note(f"{t.lanes} lanes to {counted(t.r, 'row')}; a lane takes every {t.lanes}th key and quad of columns")
            self.lane = b.op("and.b32", b.reg("lane", "s32"), self.rows.thread, self.tile.lanes - 1)
            row = b.op("shr.u32", "local_row", self.rows.thread, self.tile.lanes.bit_length() - 1)
            b.op("mul.lo.u32", row, row, t.r)
            self.first_of_thread = b.op("add.s32", "thread_row", row, self.rows.first_row)
            self.q_at = b.op("mad.lo.u32", "q_rows_at", row, self.pitch, self.base)
            self.p_at = b.op("mad.lo.u32", "p_rows_at", row, t.probabilities_pitch(), p_base)
            self.k_lane = b.op("mad.lo.u32", "k_lane", self.lane, self.pitch, kv_base)
            self.v_lane = b.op("mad.lo.u32", "v_lane", self.lane, 4 * QUAD, kv_base)
            b.op("add.u32", self.v_lane, self.v_lane, self.kv.tile_bytes)
            if self.quads % self.tile.lanes:
                self.owns_last = b.op("setp.lt.s32", "owns_last", self.lane, self.quads % self.tile.lanes)
            self.tile_start = b.op("mov.s32", "tile_start", self.rows.key_begin)

    def _clear(self) -> None:
        b = self.b
        self.v_quad = b.array("v_quad", "f32", self.groups * QUAD)
        with b.fragment("clear", "nothing seen so far: maxima, sums and accumulators"):
            self.softmax.clear()
            for value in (*self.acc, *self.v_quad):
                b.op("mov.f32", value, 0.0)

    def _look_ahead(self) -> None:
        b = self.b
        with b.fragment("look_ahead"):
            following = self.next_start = b.op("add.s32", "next_start", self.tile_start, self.tile.keys)
            b.op("setp.lt.s32", "has_next", following, self.rows.key_end)

    def _scores(self) -> None:
        """Fragments around and in the loop over head_dim, four columns a turn."""
        b, t = self.b, self.tile
        with b.fragment("enter_scores", "clear the scores; the first columns of q and K"):
            for score in self.score:
                b.op("mov.f32", score, 0.0)
            q_at = b.op("mov.u32", "q_quad_at", self.q_at)
            k_at = b.op("mov.u32", "k_quad_at", self.kv.read_at("k_at", self.k_lane))
            end = b.op("add.u32", "q_quad_end", self.q_at, 4 * self.spec.dim)
        q, k = b.array("q_quad", "f32", QUAD), b.array("k_quad", "f32", t.c * QUAD)
        with b.fragment("score_quad", "scores += q * K over four columns"):
            for i in range(t.c):
                convert.load_words(b, k[QUAD * i : QUAD * (i + 1)], k_at, t.lanes * i * self.pitch, space="shared")
            for r in range(t.r):
                convert.load_words(b, q[:], q_at, r * self.pitch, space="shared")
                for i in range(t.c):
                    score = self.score[r * t.c + i]
                    for d in range(QUAD):
                        b.op("fma.rn.f32", score, q[d], k[QUAD * i + d], score)
            b.op("add.u32", q_at, q_at, 16)
            b.op("add.u32", k_at, k_at, 16)
            b.op("setp.lt.u32", "more_columns", q_at, end)

    def _probabilities(self) -> None:
        b, t = self.b, self.tile
        with b.fragment("probabilities", "scores to probabilities, into shared memory"):
            at = b.op("mad.lo.u32", "p_lane_at", self.lane, 4, self.p_at)
            for r in range(t.r):
                row = self.softmax.scores[r]
                self.softmax.exponentiate(r, row, self.softmax.total[r])
                for score in row:
                    b.op("st.shared.f32", at[r * t.probabilities_pitch() + 4 * score.column], score.reg)

    def _values(self) -> None:
        """Fragments around and in the loop over the tile's keys, `turn` keys a turn."""
        b, t = self.b, self.tile
        p = b.array("p_quad", "f32", t.r * self.turn)
        with b.fragment("enter_values"):
            b.note("the lanes of a row have written its probabilities")
            b.op("bar.warp.sync", -1)
            p_at = b.op("mov.u32", "p_quad_at", self.p_at)
            v_at = b.op("mov.u32", "v_row_at", self.kv.read_at("v_at", self.v_lane))
            end = b.op("add.u32", "p_quad_end", self.p_at, 4 * t.keys)
        with b.fragment("value_quad", "accumulators += probabilities * V over some keys"):
            for r in range(t.r):
                at = r * t.probabilities_pitch()
                convert.load_words(b, p[self.turn * r : self.turn * (r + 1)], p_at, at, space="shared")
            for key in range(self.turn):
                b.note(f"key {key} of the turn", after=4 * convert.RUN)
                for g in range(self.groups):
                    at = key * self.pitch + g * self.tile.lanes * 16
                    quad = self.v_quad[QUAD * g : QUAD * (g + 1)]
                    convert.load_words(b, quad, v_at, at, space="shared", pred=self._guard(g))
                for r in range(t.r):
                    for g in range(self.groups):
                        for acc, value in zip(self._acc(r, g), self.v_quad[QUAD * g : QUAD * (g + 1)], strict=True):
                            b.op("fma.rn.f32", acc, p[self.turn * r + key], value, acc)
            b.op("add.u32", p_at, p_at, 4 * self.turn)
            b.op("add.u32", v_at, v_at, self.turn * self.pitch)
            b.op("setp.lt.u32", "more_keys", p_at, end)

    def _advance(self) -> None:
        b = self.b
        with b.fragment("advance"):
            b.op("mov.s32", self.tile_start, self.next_start)
            self.kv.advance()

    def _finish(self) -> None:
        b, spec, dtype = self.b, self.spec, self.spec.attention.problem.q_dtype
        with b.fragment("finish", "accumulators over their sums"):
            self.softmax.finish(self._accumulators())
        lse = None
        with b.fragment("store_out", "store the rows of out"):
            out = b.ld_param("out")
            if spec.lse:
                lse = b.ld_param("lse")
                first = b.op("setp.eq.s32", "first_lane", self.lane, 0)
            exists, writes = b.reg("out_exists", "pred"), b.reg("out_writes", "pred")
            words = convert.word_array(b, "out_word", self.acc, dtype)
            per_quad = QUAD * dtype.bytes // 4
            for r in range(self.tile.r):
                row = b.op("add.s32", scratch(b, "out_row", "s32"), self.first_of_thread, r)
                b.op("setp.lt.s32", exists, row, self.rows.n_rows)
                index, at = self.rows.address("out_at", row, out, spec.attention.problem.output_bytes)
                if lse is not None:
                    lse_at = scratch(b, "lse_at", "u64")
                    b.op("mad.lo.u64", lse_at, index, 4, lse)
                    b.op("and.pred", writes, exists, first)
                    b.op("st.global.f32", lse_at[0], self.softmax.log_sum(r), pred=writes)
                b.op("mad.wide.u32", at, self.lane, QUAD * dtype.bytes, at)
                for g in range(self.groups):
                    number = r * self.groups + g
                    packed = words[per_quad * number : per_quad * (number + 1)]
                    convert.pack(b, packed, self._acc(r, g), dtype)
                    guard, pred = self._guard(g), exists
                    if guard is not None:
                        pred = b.op("and.pred", writes, exists, guard)
                    convert.store_words(b, at, packed, g * self.tile.lanes * QUAD * dtype.bytes, pred=pred)
