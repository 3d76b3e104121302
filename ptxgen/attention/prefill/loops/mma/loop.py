"""The main loop on tensor cores: mma.m16n8k16 with K, V and Q from ldmatrix, after FlashAttention-2.

A warp owns 16·m_tiles rows. Scores stay in registers: two neighbouring accumulator tiles, packed to 16 bits, are the A
fragment of the second product. head_dim's last 8 columns, where it is no multiple of 16, go through mma.m16n8k8.
Source: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16 with floating point type" and "ldmatrix".
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.loops.keys import KeyTiles
from ptxgen.attention.prefill.loops.mma.merge import merged
from ptxgen.attention.prefill.loops.mma.output import output
from ptxgen.attention.prefill.loops.mma.registers import TensorRegisters
from ptxgen.attention.prefill.loops.queries import QueryTile
from ptxgen.attention.prefill.loops.tiles import TensorTile, dynamic
from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg
from ptxgen.dtypes import DType
from ptxgen.idioms import convert
from ptxgen.lines.words import counted


class TensorLoop(TensorRegisters):
    """Builds every fragment of `attention/multi_head_attention_tensor.ptx.j2`."""

    def __init__(self, b: Builder, spec: Prefill, tile: TensorTile, dtype: DType) -> None:
        super().__init__(b, spec, tile, dtype)
        self.queries = QueryTile(b, spec, self.rows, tile.threads, dtype)
        self.kv = KeyTiles(b, spec, self.rows, tile.threads, tile.stages, dtype)

    def build(self) -> None:
        """Build the fragments of the mma.sync loop, in the order of the template."""
        self.rows.locate()
        self.declare()
        self._aim()
        self.queries.stage(self.base)
        self.kv.fetch()
        self._tell_waits()
        self.kv.settle()
        self._clear()
        if self.q_held:
            self._load_q()
        else:
            self.b.without("load_q")
        self._look_ahead()
        self._scores()
        self.softmax.vary(self.tile_start)
        self.softmax.look_for_mask(self.tile_start)
        self.softmax.mask(self.tile_start)
        self.softmax.raise_maxima(self.accumulators)
        self._values()
        self._advance()
        if self.shares is not None:
            merged(self, self.shares)
        self.b.expose(splits_keys=self.spec.split_keys)
        output(self, self.queries, self.base)

    # -- fragments -----------------------------------------------------------------------------------------------------

    def _tell_waits(self) -> None:
        """Where copies must have come: of q before its registers are loaded, else with the first tile; of K and V at
        every tile, and before out takes their place unless q's wait came first."""
        query, keys = self.queries.copy.direct, self.kv.copy.direct
        first = query and bool(self.q_held)
        with_tile = keys or (query and not first)
        name = "tensor_tile_seen" if self._skips() else "tensor_tile"
        self.b.expose(
            query_copied=query,
            tile_copied=with_tile,
            all_copied=not first and (query or keys),
            tile_part=f"attention/prefill/{name}.ptx.j2",
        )

    def _aim(self) -> None:
        """Shared memory, where this thread writes and reads it, and the rows and columns it owns."""
        b, t = self.b, self.tile
        nbytes = t.shared_bytes(self.spec.dim)
        arena = b.shared("tiles", nbytes, dynamic=dynamic(nbytes) > 0)
        with b.fragment("aim", "this lane's places in shared memory, and its first chunks of K and V"):
            self.base = b.op("mov.u32", "q_base", arena)
            kv_base = b.op("add.u32", "kv_base", self.base, t.rows * self.pitch)
            self.kv.aim(kv_base)
            lane = b.op("and.b32", b.reg("lane", "u32"), self.rows.thread, 31)
            warp = b.op("shr.u32", "warp", self.rows.thread, 5)
            if t.column_groups > 1:
                b.note(f"{t.column_groups} warps share {16 * t.m_tiles} rows; each has {8 * self.columns} columns")
                self.column_group = b.op("and.b32", b.reg("column_group", "u32"), warp, t.column_groups - 1)
                b.op("shr.u32", warp, warp, t.column_groups.bit_length() - 1)
            b.op("mul.lo.u32", warp, warp, 16 * t.m_tiles)
            self._aim_matrices(lane, warp, kv_base)
            self.tile_start = b.op("mov.s32", "tile_start", self.rows.key_begin)
            if self._skips():
                last = b.op("add.s32", "warp_last", warp, self.rows.first_row)
                b.op("add.s32", last, last, 16 * t.m_tiles - 1)
                self.warp_last = self.rows.position("warp_last_position", last)

    def _aim_matrices(self, lane: Reg, warp_row: Reg, kv_base: Reg) -> None:
        """Where this lane's row of an ldmatrix lies in q, K and V; part of an open fragment.

        A lane names row lane % 8 of matrix lane // 8. The matrices of q and V go down 16 rows, then to the next 8
        columns; those of K to the next 8 columns first, so that the two registers of a B fragment are neighbours.
        """
        b = self.b
        row = b.op("and.b32", b.reg("lane_row", "u32"), lane, 15)
        column = b.op("shr.u32", "lane_column", lane, 4)
        down = b.op("mul.lo.u32", "lane_down", row, self.pitch)
        b.op("mad.lo.u32", down, column, 16, down)
        self.q_at = b.op("mad.lo.u32", "q_lane", warp_row, self.pitch, down)
        b.op("add.u32", self.q_at, self.q_at, self.base)
        self.v_lane = b.op("add.u32", "v_lane", kv_base, down)
        b.op("add.u32", self.v_lane, self.v_lane, self.kv.tile_bytes)
        if self.tail:
            self.k_tail_lane = b.op("add.u32", "k_tail_lane", kv_base, down)
        if self.tile.column_groups > 1:
            b.op("mad.lo.u32", self.v_lane, self.column_group, 16 * self.second_group(), self.v_lane)
        b.op("and.b32", row, lane, 7)
        b.op("mad.lo.u32", row, column, 8, row)
        b.op("bfe.u32", column, lane, 3, 1)
        across = b.op("mul.lo.u32", "lane_across", row, self.pitch)
        b.op("mad.lo.u32", across, column, 16, across)
        self.k_lane = b.op("add.u32", "k_lane", kv_base, across)

    def _skips(self) -> bool:
        """Whether some warps of a causal tile of rows see none of the last keys."""
        return self.spec.attention.variant.causal and self.tile.rows // self.rows.group >= self.tile.keys

    def _clear(self) -> None:
        b = self.b
        with b.fragment("clear", "nothing seen so far: maxima, sums and accumulators"):
            self.zero = b.op("mov.f32", "zero", 0.0)
            self.softmax.clear()
            for value in self.acc:
                b.op("mov.f32", value, 0.0)

    def _load_q(self) -> None:
        held = min(self.tile.q_steps, self.all_steps())
        with self.b.fragment("load_q"):
            self.b.note(f"{held} of {counted(self.all_steps(), 'step')} over the rows of q stay in registers")
            for m in range(self.tile.m_tiles):
                for step in range(held):
                    self._load_matrices(self._q_registers(m, step), self.q_at[m * 16 * self.pitch + step * 32])

    def _q_registers(self, m: int, step: int) -> tuple[Reg, ...]:
        """The A fragment of a row tile and a step over head_dim."""
        count = 4 if step < self.steps else 2
        if step >= self.tile.q_steps:
            return tuple(self.q_fragment[4 * m : 4 * m + count])
        first = m * self.held_words() + 4 * step
        return tuple(self.q_held[first : first + count])

    def _load_matrices(self, registers: tuple[Reg, ...], at: Addr, *, transposed: bool = False) -> None:
        trans = ".trans" if transposed else ""
        self.b.op(f"ldmatrix.sync.aligned.m8n8.x{len(registers)}{trans}.shared.b16", registers, at)

    def _mma(self, d: tuple[Reg, ...], a: tuple[Reg, ...], b: tuple[Reg, ...], c: tuple[Reg, ...]) -> None:
        k, type = 4 * len(a), self.dtype.name
        self.b.op(f"mma.sync.aligned.m16n8k{k}.row.col.f32.{type}.{type}.f32", d, a, b, c)

    def _look_ahead(self) -> None:
        b = self.b
        with b.fragment("look_ahead"):
            following = self.next_start = b.op("add.s32", "next_start", self.tile_start, self.tile.keys)
            b.op("setp.lt.s32", "has_next", following, self.rows.key_end)
            if self._skips():
                b.op("setp.le.s32", "warp_sees", self.tile_start, self.warp_last)

    def _scores(self) -> None:
        b, t = self.b, self.tile
        zero = (self.zero,) * 4
        with b.fragment("scores"):
            b.note(f"{t.keys} keys by {16 * t.m_tiles} rows a warp, over head_dim={self.spec.dim}")
            k_at = self.kv.read_at("k_at", self.k_lane)
            k_tail_at = self.kv.read_at("k_tail_at", self.k_tail_lane) if self.tail else k_at
            for step in range(self.all_steps()):
                if step >= t.q_steps:
                    for m in range(t.m_tiles):
                        self._load_matrices(self._q_registers(m, step), self.q_at[m * 16 * self.pitch + step * 32])
                for pair in range(t.keys // 16):
                    whole = step < self.steps
                    each = 2 if whole else 1
                    k = tuple(self.k_fragment[: 2 * each])
                    self._load_matrices(k, (k_at if whole else k_tail_at)[pair * 16 * self.pitch + step * 32])
                    for n in range(2):
                        for m in range(t.m_tiles):
                            d, b_operand = self.scores_of(m, 2 * pair + n), k[n * each : (n + 1) * each]
                            self._mma(d, self._q_registers(m, step), b_operand, d if step else zero)

    def _values(self) -> None:
        """Probabilities of 16 keys at a time, and their product with V; the next 16 are raised to powers meanwhile."""
        t = self.tile
        with self.b.fragment("values", "scores to probabilities, and accumulators += probabilities * V"):
            v_at = self.kv.read_at("v_at", self.v_lane)
            for step in range(t.keys // 16):
                self.b.note(f"keys {16 * step} to {16 * step + 15} of the tile", after=4 * convert.RUN)
                self._probabilities(step)
                for n in range(0, self.columns, 2):
                    pair = min(2, self.columns - n)
                    v = tuple(self.v_fragment[: 2 * pair])
                    self._load_matrices(v, v_at[step * 16 * self.pitch + n * 16], transposed=True)
                    for i in range(pair):
                        for m in range(t.m_tiles):
                            acc = self.acc_of(m, n + i)
                            self._mma(acc, tuple(self.p_fragment[4 * m : 4 * m + 4]), v[2 * i : 2 * i + 2], acc)

    def _probabilities(self, step: int) -> None:
        """Scores of keys 16·step … to probabilities, packed as the A fragment."""
        b, cvt = self.b, f"cvt.rn.{self.dtype.name}x2.f32"
        for m in range(self.tile.m_tiles):
            for half in range(2):
                row = self.softmax.scores[2 * m + half]
                n = 2 * m + half
                self.softmax.exponentiate(n, row[4 * step : 4 * step + 4], self.softmax.total[n])
            for i in range(4):
                low, high = self.scores_of(m, 2 * step + i // 2)[2 * (i % 2) : 2 * (i % 2) + 2]
                b.op(cvt, self.p_fragment[4 * m + i], high, low)

    def _advance(self) -> None:
        b = self.b
        with b.fragment("advance"):
            b.op("mov.s32", self.tile_start, self.next_start)
            self.kv.advance()
