"""What a consumer thread holds: scores, output and probabilities of two rows, and the matrix descriptors.

Accumulators are those of wgmma.m64nN: of a warp's 16 rows row lane / 4 and 8 further, columns 2 · (lane % 4) and the
next of every 8. Two neighbouring groups of 8 columns, packed to 16 bits, are the A fragment of the second product; so
are four of them, packed to 8 bits, if V has its keys in the order of `turned.KEYS_IN_ORDER`.
Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions", register fragments and matrix descriptor.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.softmax import Owned, Score
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.tile import K_STEP, ONES, ROWS, SWIZZLED_ROW, WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import scratch

K_STEP_8 = 32  # on 8-bit types
UNIT = 16  # bytes: addresses and offsets of a descriptor count these
ROWS_8 = 8 * SWIZZLED_ROW  # bytes from 8 rows to the next 8
SWIZZLE_128 = 1 << 30  # in the upper word
HIGH_WORD = SWIZZLE_128 | ROWS_8 // UNIT
STEPS_OF_COLUMN = 4  # of 16 elements in a swizzled row


class ConsumerRegisters:
    """Of a warpgroup's 64 rows and a tile of keys, of 16-bit type `dtype`."""

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, dtype: DType) -> None:
        self.b, self.spec, self.tile, self.items, self.dtype = b, spec, tile, items, dtype
        self.steps = tile.width // (K_STEP_8 if spec.fp8 else K_STEP)
        self.high: Reg  # the upper word of every descriptor
        self.score = b.array("score", "f32", tile.keys // 2)
        self.acc = b.array("acc", "f32", tile.width // 2)
        self.packed = b.array("probability", "b32", tile.keys // (8 if tile.turned else 4))
        self.sums = b.array("sum", "f32", ONES // 2) if tile.turned else ()
        self.q_held = b.array("q_held", "b32", 4 * self.steps) if tile.q_in_registers else ()
        self.scores = [
            [Score(self.score[4 * n + 2 * row + i], 8 * n + i) for n in range(tile.keys // 8) for i in range(2)]
            for row in range(2)
        ]
        self.rows = [
            [self.acc[4 * n + 2 * row + i] for n in range(tile.width // 8) for i in range(2)] for row in range(2)
        ]

    def locate(self, smem: Reg) -> None:
        """This warp, and the descriptors of its q and of the first stages of K and V; part of an open fragment."""
        b, tile = self.b, self.tile
        b.note("through shuffles, so that the assembler knows that a warp's lanes agree")
        self.lane = b.op("and.b32", b.reg("lane", "u32"), self.items.thread, 31)
        warp = b.op("shr.u32", "warp", self.items.thread, 5)
        b.op("shfl.sync.idx.b32", warp, warp, 0, 31, -1)
        self.warp = b.op("and.b32", b.reg("warp_of_group", "u32"), warp, 3)
        self.group = b.op("shr.u32", "warpgroup", warp, 2)
        b.op("sub.u32", self.group, self.group, tile.producers)
        self.is_first_lane = b.op("setp.eq.u32", "is_first_lane", self.lane, 0)
        q_rows = self.q_rows = b.op("mad.lo.u32", "q_rows_at", self.group, tile.q_bytes, smem)
        if not tile.q_in_registers:
            self.q_descriptor = self._descriptor("q_descriptor", q_rows, 0, UNIT)
        self.k_descriptor = self._descriptor("k_descriptor", smem, tile.k_at, UNIT)
        leading = UNIT if tile.turned else tile.keys * SWIZZLED_ROW
        self.v_descriptor = self._descriptor("v_descriptor", smem, tile.v_at, leading)

    def _descriptor(self, name: str, base: Reg, offset: int, leading: int) -> Reg:
        """The lower word of a matrix descriptor: the address, and the bytes from a column of 64 to the next."""
        b = self.b
        out: Reg = b.op("add.u32", name, base, offset)
        b.op("shr.u32", out, out, UNIT.bit_length() - 1)
        b.op("add.u32", out, out, leading // UNIT << 16)
        return out

    def descriptor(self, name: str, low: Reg, offset: int) -> Reg:
        """A whole descriptor `offset` bytes past that of the lower word `low`; part of an open fragment."""
        b = self.b
        word = b.op("add.u32", scratch(b, f"{name}_low", "b32"), low, offset // UNIT) if offset else low
        out: Reg = b.op("mov.b64", scratch(b, name, "u64"), (word, self.high))
        return out

    def own(self) -> Owned:
        """The first of this thread's rows, and its first column; where they are needed, as registers are scarce."""
        b = self.b
        thread = b.op("mov.u32", scratch(b, "own_thread", "u32"), b.special("tid.x"))
        row, column = scratch(b, "own_row", "s32"), scratch(b, "first_column", "s32")
        b.op("shr.u32", row, thread, 5)
        b.op("mul.lo.u32", row, row, ROWS // 4)
        quad = b.op("bfe.u32", scratch(b, "own_quad", "u32"), thread, 2, 3)
        b.op("add.s32", row, row, quad)
        b.op("sub.s32", row, row, self.tile.producers * ROWS)
        b.op("add.s32", row, row, self.items.first_row)
        b.op("and.b32", column, thread, 3)
        b.op("shl.b32", column, column, 1)
        return Owned(row, column)
