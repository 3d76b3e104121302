"""Where a thread's chunks of K and V lie in global memory: rows one after the other, in a ring, or in pages.

V lies as K does, so only one address is kept from tile to tile: registers are scarce while a tile is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.rows import Rows
from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg
from ptxgen.dtypes import f16
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.division import divide, remainder
from ptxgen.scales import SCALE_GROUP


@dataclass
class Part:
    """Rows of values, or of their scales (`suffix` in names of registers): strides in bytes, the parameters of K and V,
    and where this thread reads."""

    suffix: str
    row_bytes: int
    chunk_bytes: int
    scales: bool
    k: Reg
    v: Reg
    k_from: Reg | None = None
    v_from: Reg | None = None


class Lanes(Protocol):
    """How lanes lie on rows that are read: so many side by side, and so many rows at once."""

    @property
    def lanes(self) -> int: ...

    @property
    def rows_per_pass(self) -> int: ...


class Reader(Protocol):
    """Who reads rows, in chunks of so many elements and bytes."""

    @property
    def spread(self) -> Lanes: ...

    @property
    def elements(self) -> int: ...

    @property
    def source_bytes(self) -> int: ...


class Source:
    """What both kinds share: sizes, and which keys exist. All methods are parts of an open fragment."""

    def __init__(self, b: Builder, spec: Prefill, rows: Rows, copy: Reader, prefix: str = "") -> None:
        self.b, self.cache, self.rows, self.copy = b, spec.attention.cache, rows, copy
        self.prefix = prefix or rows.prefix

    @property
    def quantised(self) -> bool:
        """Whether rows carry scales."""
        return self.cache.quantised

    def aim(self, row: Reg, chunk: Reg) -> None:
        """Point this thread at its row and chunk of the first tile."""
        b, side = self.b, self.cache.k
        self.chunk = chunk
        self.key = b.op("add.s32", f"{self.prefix}kv_key", self.rows.key_begin, row)
        self.left = b.op("sub.s32", f"{self.prefix}keys_left", self.rows.kv_len, self.key)
        self.values = Part("", side.row_bytes, self.copy.source_bytes, False, self.param("k"), self.param("v"))
        self.parts = [self.values]
        if self.quantised:
            k, v = self.param("k_scales"), self.param("v_scales")
            self.scales = Part("_scales", side.row_scale_bytes, f16.bytes, True, k, v)
            self.parts.append(self.scales)

    def param(self, name: str) -> Reg:
        """Load a parameter."""
        return self.b.ld_param(name, self.prefix + name)

    def exists(self, row_pass: int) -> Reg:
        """The predicate that this thread's key of a row pass is below kv_len."""
        exists = scratch(self.b, "key_exists", "pred")
        self.b.op("setp.gt.s32", exists, self.left, row_pass * self.copy.spread.rows_per_pass)
        return exists

    def start(self) -> None:
        """Before the first row pass of a tile."""

    def row(self, row_pass: int, exists: Reg) -> None:
        """Before the chunks of a row pass."""

    def chunk_at(self, x: str, row_pass: int, column: int) -> Addr:
        """The address of a chunk of K or V."""
        return self._at(x, self.values, row_pass, column * self.copy.spread.lanes * self.copy.source_bytes)

    def scale_at(self, x: str, row_pass: int, column: int) -> Addr:
        """The address of a chunk's int8 scale."""
        group = column * self.copy.spread.lanes * self.copy.elements // SCALE_GROUP
        return self._at(x, self.scales, row_pass, group * f16.bytes)

    def _at(self, x: str, part: Part, row_pass: int, offset: int) -> Addr:
        start = part.k_from if x == "k" else part.v_from
        assert start is not None, "aimed, and at a tile"
        return start[offset]

    def advance(self, rows: int) -> None:
        """Go on by so many keys: fewer are left."""
        self.b.op("sub.s32", self.left, self.left, rows)

    def _address(self, part: Part, index: Reg, out: Reg) -> None:
        """The address of this thread's chunk of row `index` of K, or of its scale."""
        b, chunk = self.b, self.chunk
        b.op("mad.lo.u64", out, index, part.row_bytes, part.k)
        if part.scales:
            group = scratch(b, "kv_scale_group", "u32")
            chunk = b.op("shr.u32", group, chunk, (SCALE_GROUP // self.copy.elements).bit_length() - 1)
        b.op("mad.wide.u32", out, chunk, part.chunk_bytes, out)

    def _values(self) -> None:
        """V's addresses from K's."""
        b = self.b
        for part in self.parts:
            part.v_from = scratch(b, f"v{part.suffix}_from", "u64")
            b.op("sub.u64", part.v_from, part.k_from, part.k)
            b.op("add.u64", part.v_from, part.v_from, part.v)


class Contiguous(Source):
    """Keys at equal steps from a KV head's first."""

    def aim(self, row: Reg, chunk: Reg) -> None:
        super().aim(row, chunk)
        index = self.rows.kv_row(f"{self.prefix}kv_index", self.key)
        for part in self.parts:
            part.k_from = self.b.reg(f"{self.prefix}k{part.suffix}_from", "u64")
            self._address(part, index, part.k_from)

    def start(self) -> None:
        self._values()

    def _at(self, x: str, part: Part, row_pass: int, offset: int) -> Addr:
        rows = row_pass * self.copy.spread.rows_per_pass * self.cache.rows_per_position
        return super()._at(x, part, row_pass, rows * part.row_bytes + offset)

    def advance(self, rows: int) -> None:
        super().advance(rows)
        for part in self.parts:
            self.b.op("add.u64", part.k_from, part.k_from, rows * self.cache.rows_per_position * part.row_bytes)


class Computed(Source):
    """Keys whose rows lie at no equal steps: every row pass finds its row anew."""

    def _declare(self) -> None:
        for part in self.parts:
            part.k_from = self.b.reg(f"{self.prefix}k{part.suffix}_from", "u64")

    def _rows_at(self, index: Reg) -> None:
        """The addresses of row `index`, of K and V."""
        for part in self.parts:
            assert part.k_from is not None
            self._address(part, index, part.k_from)
        self._values()

    def advance(self, rows: int) -> None:
        super().advance(rows)
        self.b.op("add.s32", self.key, self.key, rows)


class Paged(Computed):
    """Keys in pages `[pages, n_kv_heads, page_size, head_dim]`; the sequence's table gives its pages in order."""

    def aim(self, row: Reg, chunk: Reg) -> None:
        super().aim(row, chunk)
        b, cache = self.b, self.cache
        self.table = self.param("page_table")
        b.op("mad.wide.u32", self.table, self.rows.sequence, 4 * cache.pages, self.table)
        head = self.rows.kv_head
        self.head_in_page = (
            head if cache.heads_inside else b.op("mul.lo.u32", f"{self.prefix}head_in_page", head, cache.page_size)
        )
        self._declare()

    def row(self, row_pass: int, exists: Reg) -> None:
        b, cache = self.b, self.cache
        key, skip = self.key, row_pass * self.copy.spread.rows_per_pass
        if skip:
            key = b.op("add.s32", scratch(b, "paged_key", "s32"), key, skip)
        prefix = self.prefix
        slot = divide(b, "page_slot", key, cache.page_size)
        at = b.op("mad.wide.u32", scratch(b, f"{prefix}page_at", "u64"), slot, 4, self.table)
        page = b.op("mov.s32", scratch(b, f"{prefix}page", "s32"), 0)
        b.op("ld.global.nc.s32", page, at[0], pred=exists)
        index, within = scratch(b, "paged_index", "u64"), scratch(b, "within_page", "u32")
        remainder(b, "within_page", key, cache.page_size)
        if cache.heads_inside:
            b.op("mad.lo.u32", within, within, cache.problem.n_kv_heads, self.head_in_page)
        else:
            b.op("add.u32", within, within, self.head_in_page)
        b.op("cvt.u64.u32", index, within)
        wide = b.op("mul.wide.u32", scratch(b, "wide_page", "u64"), page, cache.problem.n_kv_heads * cache.page_size)
        b.op("add.u64", index, index, wide)
        self._rows_at(index)


class InRing(Computed):
    """Keys in a ring of rows, of a KV head: key p in row p % ring."""

    def aim(self, row: Reg, chunk: Reg) -> None:
        super().aim(row, chunk)
        self.first = self.rows.kv_head_row(f"{self.prefix}kv_first")
        self._declare()

    def row(self, row_pass: int, exists: Reg) -> None:
        b = self.b
        index, slot = scratch(b, "ring_index", "u64"), scratch(b, "ring_key", "u32")
        b.op("add.s32", slot, self.key, row_pass * self.copy.spread.rows_per_pass)
        slot = remainder(b, "ring_slot", slot, self.cache.ring)
        b.op("cvt.u64.u32", index, slot)
        b.op("add.u64", index, index, self.first)
        self._rows_at(index)


def source_of(b: Builder, spec: Prefill, rows: Rows, copy: Reader, prefix: str = "") -> Source:
    """The one that fits the cache; its registers begin with `prefix`, where there are several."""
    cache = spec.attention.cache
    return (Paged if cache.page_size else InRing if cache.ring else Contiguous)(b, spec, rows, copy, prefix)
