"""Where a thread's chunks of K and V lie in global memory: rows one after the other, or in pages.

V lies as K does, so only one address is kept from tile to tile: registers are scarce while a tile is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.attention.prefill.copies import RowCopy
from ptxgen.attention.prefill.rows import Rows, divide
from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg
from ptxgen.dtypes import f16
from ptxgen.idioms.convert import scratch
from ptxgen.scales import SCALE_GROUP, scale_groups

if TYPE_CHECKING:
    from ptxgen.kernels.multi_head_attention import MultiHeadAttention


class Source:
    """What both kinds share: sizes, and which keys exist. All methods are parts of an open fragment."""

    def __init__(self, b: Builder, spec: MultiHeadAttention, rows: Rows, copy: RowCopy) -> None:
        self.b, self.spec, self.rows, self.copy = b, spec, rows, copy
        self.row_bytes = spec.head_dim * spec.kv_dtype.bytes
        self.quantised = spec.kv_dtype.name == "s8"
        self.kinds = ("", "_scales") if self.quantised else ("",)

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of a row."""
        return scale_groups(self.spec.head_dim) * f16.bytes

    def aim(self, row: Reg, chunk: Reg) -> None:
        """Point this thread at its row and chunk of the first tile."""
        b = self.b
        self.chunk = chunk
        self.key = b.op("add.s32", "kv_key", self.rows.key_begin, row)
        b.op("sub.s32", "keys_left", self.rows.kv_len, self.key)
        for what in self.kinds:
            b.ld_param(f"k{what}")
            b.ld_param(f"v{what}")

    def exists(self, row_pass: int) -> Reg:
        """The predicate that this thread's key of a row pass is below kv_len."""
        exists = scratch(self.b, "key_exists", "pred")
        self.b.op("setp.gt.s32", exists, self.b.registers["keys_left"], row_pass * self.copy.spread.rows_per_pass)
        return exists

    def start(self) -> None:
        """Before the first row pass of a tile."""

    def row(self, row_pass: int, exists: Reg) -> None:
        """Before the chunks of a row pass."""

    def chunk_at(self, x: str, row_pass: int, column: int) -> Addr:
        """The address of a chunk of K or V."""
        return self._at(f"{x}_from", row_pass, column * self.copy.spread.lanes * self.copy.source_bytes)

    def scale_at(self, x: str, row_pass: int, column: int) -> Addr:
        """The address of a chunk's int8 scale."""
        group = column * self.copy.spread.lanes * self.copy.elements // SCALE_GROUP
        return self._at(f"{x}_scales_from", row_pass, group * f16.bytes)

    def _at(self, name: str, row_pass: int, offset: int) -> Addr:
        return self.b.registers[name][offset]

    def advance(self, rows: int) -> None:
        """So many keys on."""
        self.b.op("sub.s32", self.b.registers["keys_left"], self.b.registers["keys_left"], rows)

    def _address(self, what: str, index: Reg, out: Reg) -> None:
        """The address of this thread's chunk of row `index` of K, or of its scale."""
        b = self.b
        width, count = (self.row_bytes, self.copy.source_bytes) if not what else (self.scale_bytes, f16.bytes)
        b.op("mad.lo.u64", out, index, width, b.registers[f"k{what}"])
        chunk = self.chunk
        if what:
            group = scratch(b, "kv_scale_group", "u32")
            chunk = b.op("shr.u32", group, chunk, (SCALE_GROUP // self.copy.elements).bit_length() - 1)
        b.op("mad.wide.u32", out, chunk, count, out)

    def _values(self) -> None:
        """V's addresses from K's."""
        b = self.b
        for what in self.kinds:
            at, k, v = scratch(b, f"v{what}_from", "u64"), b.registers[f"k{what}"], b.registers[f"v{what}"]
            b.op("sub.u64", at, b.registers[f"k{what}_from"], k)
            b.op("add.u64", at, at, v)


class Contiguous(Source):
    """Keys at equal steps from a KV head's first."""

    def aim(self, row: Reg, chunk: Reg) -> None:
        super().aim(row, chunk)
        index = self.rows.kv_row("kv_index", self.key)
        for what in self.kinds:
            self._address(what, index, self.b.reg(f"k{what}_from", "u64"))

    def start(self) -> None:
        self._values()

    def _at(self, name: str, row_pass: int, offset: int) -> Addr:
        step = self.rows.kv_step * (self.scale_bytes if "scales" in name else self.row_bytes)
        return self.b.registers[name][row_pass * self.copy.spread.rows_per_pass * step + offset]

    def advance(self, rows: int) -> None:
        super().advance(rows)
        for what in self.kinds:
            at = self.b.registers[f"k{what}_from"]
            self.b.op("add.u64", at, at, rows * self.rows.kv_step * (self.scale_bytes if what else self.row_bytes))


class Paged(Source):
    """Keys in pages `[pages, n_kv_heads, page_size, head_dim]`; the sequence's table gives its pages in order."""

    def aim(self, row: Reg, chunk: Reg) -> None:
        super().aim(row, chunk)
        b, spec = self.b, self.spec
        table = b.ld_param("page_table")
        b.op("mad.wide.u32", table, self.rows.sequence, 4 * -(-spec.max_len // spec.page_size), table)
        b.op("mul.lo.u32", "head_in_page", self.rows.kv_head, spec.page_size)
        for what in self.kinds:
            b.reg(f"k{what}_from", "u64")

    def row(self, row_pass: int, exists: Reg) -> None:
        b, spec = self.b, self.spec
        key, skip = self.key, row_pass * self.copy.spread.rows_per_pass
        if skip:
            key = b.op("add.s32", scratch(b, "paged_key", "s32"), key, skip)
        slot = divide(b, "page_slot", key, spec.page_size)
        at = b.op("mad.wide.u32", scratch(b, "page_at", "u64"), slot, 4, b.registers["page_table"])
        page = b.op("mov.s32", scratch(b, "page", "s32"), 0)
        b.op("ld.global.nc.s32", page, at[0], pred=exists)
        index, within = scratch(b, "paged_index", "u64"), scratch(b, "within_page", "u32")
        b.op("rem.u32", within, key, spec.page_size)
        b.op("add.u32", within, within, b.registers["head_in_page"])
        b.op("cvt.u64.u32", index, within)
        wide = b.op("mul.wide.u32", scratch(b, "wide_page", "u64"), page, spec.n_kv_heads * spec.page_size)
        b.op("add.u64", index, index, wide)
        for what in self.kinds:
            self._address(what, index, b.registers[f"k{what}_from"])
        self._values()

    def advance(self, rows: int) -> None:
        super().advance(rows)
        self.b.op("add.s32", self.key, self.key, rows)
