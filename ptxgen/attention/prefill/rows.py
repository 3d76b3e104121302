"""Which query rows and which keys a CTA takes, and where they lie in memory. Owns the fragment `locate`.

The query heads that share a KV head are packed: row r of a KV head is token r // group, head r % group of the group. So
a tile of rows reads every K and V byte once for the whole group, and spans few tokens of a causal diagonal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.attention.prefill.ragged import Ragged
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch

if TYPE_CHECKING:
    from ptxgen.kernels.multi_head_attention import MultiHeadAttention


def divide(b: Builder, name: str, value: Reg, by: int) -> Reg:
    """value // by for a value of at least 0, into the register `name` (declared when first used)."""
    out = scratch(b, name, "s32")
    if by & (by - 1) == 0:
        b.op("shr.u32", out, value, by.bit_length() - 1)
    else:
        b.op("div.u32", out, value, by)
    return out


class Rows:
    """The CTA's KV head, rows and keys, as registers; `locate` emits the instructions that fill them."""

    def __init__(self, b: Builder, spec: MultiHeadAttention, rows: int, keys: int) -> None:
        self.b, self.spec, self.rows, self.keys = b, spec, rows, keys
        self.group = spec.n_heads // spec.n_kv_heads

    def locate(self) -> None:
        """Fragments `locate` and, in a batch, `scan` (a loop's body) and `place`: lengths, the KV head and the tile of
        rows of this CTA, and the range of keys that they see."""
        b, spec = self.b, self.spec
        with b.fragment("locate"):
            self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            index = b.op("mov.u32", "cta", b.special("ctaid.x"))
            self.kv_head = b.op("rem.u32", "kv_head", index, spec.n_kv_heads)
            b.op("div.u32", index, index, spec.n_kv_heads)
            if not spec.batched:
                self.q_len, self.kv_len = self._length("q_len"), self._length("kv_len")
                self._tile(index)
                return
            ragged = Ragged(b, self)
            ragged.enter(index)
        ragged.scan()
        with b.fragment("place"):
            self.q_len, self.sequence = b.registers["q_len"], b.registers["sequence"]
            lengths = b.ld_param("kv_lens")
            b.op("mad.wide.u32", lengths, self.sequence, 4, lengths)
            self.kv_len = b.op("mov.s32", "kv_len", 0)
            b.op("ld.global.s32", self.kv_len, lengths[0], pred=ragged.found)
            b.op("max.s32", self.kv_len, self.kv_len, 0)
            b.op("mul.lo.s32", "n_rows", self.q_len, self.group)
            b.op("setp.gt.and.s32", "has_rows", b.registers["row_tile"], 0, ragged.found)
            self._tile(None)

    def _tile(self, index: Reg | None) -> None:
        """The tile of rows and its keys; `index` counts tiles from the last, None in a batch, where all is known."""
        b, spec = self.b, self.spec
        if spec.max_len:
            b.op("min.s32", self.kv_len, self.kv_len, spec.max_len)
        if index is not None:
            b.note("long rows first: the last tile of every head before the one that precedes it")
            b.op("mul.lo.s32", "n_rows", self.q_len, self.group)
            tiles = b.op("add.s32", "row_tiles", b.registers["n_rows"], self.rows - 1)
            divide(b, "row_tiles", tiles, self.rows)
            b.op("sub.s32", "row_tile", tiles, index)
            b.op("setp.gt.s32", "has_rows", b.registers["row_tile"], 0)
        self.n_rows, self.has_rows = b.registers["n_rows"], b.registers["has_rows"]
        self.first_row = b.op("mad.lo.s32", "first_row", b.registers["row_tile"], self.rows, -self.rows)
        self._key_range()
        b.op("setp.lt.s32", "has_keys", self.key_begin, self.key_end)

    def _length(self, name: str) -> Reg:
        """A length from a scalar or from device memory; below 0 counts as 0."""
        b, given = self.b, self.b.ld_param(name)
        value: Reg = b.op("ld.global.s32", f"{name}_now", given[0]) if self.spec.indirect else given
        b.op("max.s32", value, value, 0)
        return value

    def _key_range(self) -> None:
        """key_begin (a multiple of the tile) and key_end; plain_end and plain_begin bound the tiles without a mask."""
        b, spec = self.b, self.spec
        self.key_begin = b.op("mov.s32", "key_begin", 0)
        if not spec.causal:
            self.key_end = b.op("mov.s32", "key_end", self.kv_len)
            b.op("sub.s32", "plain_end", self.kv_len, self.keys)
            return
        b.note("token t stands at position t + offset and sees the keys up to there")
        self.offset = b.op("sub.s32", "offset", self.kv_len, self.q_len)
        last = b.op("add.s32", "last_row", self.first_row, self.rows)
        b.op("min.s32", last, last, self.n_rows)
        b.op("sub.s32", last, last, 1)
        last_position = self.position("last_position", last)
        self.key_end = b.op("add.s32", "key_end", last_position, 1)
        first_position = self.position("first_position", self.first_row)
        b.op("sub.s32", "plain_end", first_position, self.keys - 1)
        if spec.window:
            b.note(f"and no key more than window={spec.window} positions back")
            b.op("sub.s32", "plain_begin", last_position, spec.window - 1)
            b.op("sub.s32", self.key_begin, first_position, spec.window - 1)
            b.op("max.s32", self.key_begin, self.key_begin, 0)
            if self.keys & (self.keys - 1) == 0:
                b.op("and.b32", self.key_begin, self.key_begin, -self.keys)
            else:
                skipped = b.op("rem.u32", "key_begin_odd", self.key_begin, self.keys)
                b.op("sub.s32", self.key_begin, self.key_begin, skipped)

    def position(self, name: str, row: Reg) -> Reg:
        """The position of a row's token, into the register `name`."""
        out = divide(self.b, name, row, self.group)
        self.b.op("add.s32", out, out, self.offset)
        return out

    def index(self, name: str, row: Reg) -> Reg:
        """The index (64-bit) of a row of q, out or lse in its buffer, into the register `name`."""
        b, spec, out = self.b, self.spec, scratch(self.b, name, "u64")
        token = divide(b, "row_token", row, self.group)
        head = self.first_head()
        if self.group > 1:
            member = b.op("rem.u32", scratch(b, "row_head", "u32"), row, self.group)
            head = b.op("add.u32", member, member, head)
        other = scratch(b, "wide_part", "u64")
        if spec.batched:
            b.op("add.s32", token, token, b.registers["q_start"])
        if spec.layout == "tokens":
            b.op("mul.wide.u32", out, token, spec.n_heads)
            b.op("cvt.u64.u32", other, head)
        else:
            b.op("mul.wide.u32", out, head, self.q_rows())
            b.op("cvt.u64.u32", other, token)
        b.op("add.u64", out, out, other)
        return out

    def address(self, name: str, row: Reg, buffer: Reg, row_bytes: int) -> Reg:
        """The address of a row in q, out or lse, into the register `name`."""
        out, index = scratch(self.b, name, "u64"), self.index("row_index", row)
        self.b.op("mad.lo.u64", out, index, row_bytes, buffer)
        return out

    def first_head(self) -> Reg:
        """The first query head of the KV head, computed where first used."""
        if self.group == 1:
            return self.b.registers["kv_head"]
        if "first_head" not in self.b.registers:
            self.b.op("mul.lo.u32", "first_head", self.kv_head, self.group)
        return self.b.registers["first_head"]

    def q_rows(self) -> Reg:
        """The rows of a head in q and out, loaded where first used."""
        if "q_rows" not in self.b.registers:
            self.b.ld_param("q_rows")
        return self.b.registers["q_rows"]

    def step(self, rows: int) -> int | None:
        """How far `index` moves from a row to the one `rows` later, where that is the same for all rows."""
        if rows % self.group:
            return None
        return rows // self.group * (self.spec.n_heads if self.spec.layout == "tokens" else 1)

    def kv_row(self, name: str, key: Reg) -> Reg:
        """The index (64-bit) of a key's row in k and v, into the register `name`; the key is at least 0."""
        b, spec = self.b, self.spec
        out: Reg
        if spec.batched:
            cache = b.op("mul.wide.u32", "cache_head", self.sequence, spec.n_kv_heads)
            out = b.op("cvt.u64.u32", name, self.kv_head)
            b.op("add.u64", out, out, cache)
            b.op("mul.lo.u64", out, out, spec.max_len)
        elif spec.max_len:
            out = b.op("mul.wide.u32", name, self.kv_head, spec.max_len)
        elif spec.layout == "heads":
            out = b.op("mul.wide.u32", name, self.kv_head, b.ld_param("kv_rows"))
        else:
            out = b.op("cvt.u64.u32", name, self.kv_head)
        wide = b.op("mul.wide.u32", "wide_key", key, self.kv_step)
        b.op("add.u64", out, out, wide)
        return out

    @property
    def kv_step(self) -> int:
        """Rows of k and v from a key to the next."""
        return self.spec.n_kv_heads if self.spec.layout == "tokens" and not self.spec.max_len else 1
