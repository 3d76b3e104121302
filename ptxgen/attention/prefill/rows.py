"""Which query rows and which keys a CTA takes, and where they lie in memory. Owns the fragment `locate`.

The query heads that share a KV head are packed: row r of a KV head is token r // group, head r % group of the group. So
a tile of rows reads every K and V byte once for the whole group, and spans few tokens of a causal diagonal.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.parts import Part, Shares
from ptxgen.attention.prefill.ragged import Found, Ragged
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.division import divide, remainder


class Rows:
    """The CTA's KV head, rows and keys, as registers; `locate` emits the instructions that fill them.

    `past_the_end`: the rows of K from kv_len on are not zeros, so no row may see them, not even one past the last.
    """

    past_the_end = False
    prefix = ""  # of names of parameters' registers, where another part of a kernel has them, too
    k_scale: Reg  # of the KV head's keys, where the scores' factor has it
    sequence: Reg  # of a batch: whose keys these are
    part: Part  # of the keys of a tile of rows, where CTAs share them

    def __init__(self, b: Builder, spec: Prefill, rows: int, keys: int, shares: Shares | None = None) -> None:
        self.b, self.spec, self.rows, self.keys = b, spec, rows, keys
        attention = spec.attention
        self.problem, self.cache, self.variant = attention.problem, attention.cache, attention.variant
        self.group, self.shares = self.problem.group, shares
        self._first_head: Reg | None = None
        self._q_rows: Reg | None = None
        self._found: Found | None = None

    def locate(self) -> None:
        """Fragments `locate` and, in a batch, `scan` (a loop's body) and `place`: lengths, the KV head and the tile of
        rows of this CTA, and the range of keys that they see."""
        b = self.b
        with b.fragment("locate", "the KV head, the rows of q that this CTA takes, and what they see"):
            self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            index = self._unit(self.shares) if self.shares else b.op("mov.u32", "cta", b.special("ctaid.x"))
            self.kv_head: Reg = remainder(b, "kv_head", index, self.problem.n_kv_heads)
            index = divide(b, "cta", index, self.problem.n_kv_heads)
            if not self.cache.batched:
                if self.shares is None:
                    self._one_sequence()
                self._keys(self._tile_from_last(index))
                b.without("scan")
                return
            ragged = Ragged(b, self.thread, self.rows, self.group)
            ragged.enter(index)
        ragged.scan()
        found = self._found = ragged.found
        self.sequence = found.sequence
        with b.fragment("place", "the rows that this CTA takes, and the keys that they see"):
            self.q_len = found.q_len
            lengths = b.ld_param("kv_lens")
            b.op("mad.wide.u32", lengths, found.sequence, 4, lengths)
            self.kv_len = b.op("mov.s32", "kv_len", 0)
            b.op("ld.global.s32", self.kv_len, lengths[0], pred=found.holds)
            b.op("max.s32", self.kv_len, self.kv_len, 0)
            self.n_rows = b.op("mul.lo.s32", "n_rows", self.q_len, self.group)
            b.op("setp.gt.and.s32", "has_rows", found.row_tile, 0, found.holds)
            self._clamp()
            self._keys(found.row_tile)

    @property
    def found(self) -> Found:
        """The CTA's sequence of a batch."""
        assert self._found is not None, "only a batch has sequences"
        return self._found

    def _clamp(self) -> None:
        if self.cache.max_len:
            self.b.op("min.s32", self.kv_len, self.kv_len, self.cache.max_len)

    def _one_sequence(self) -> None:
        """Its lengths."""
        self.q_len, self.kv_len = self._length("q_len"), self._length("kv_len")
        self._clamp()

    def _row_tiles(self) -> Reg:
        """Tiles of rows of a KV head."""
        b = self.b
        self.n_rows = b.op("mul.lo.s32", "n_rows", self.q_len, self.group)
        tiles: Reg = b.op("add.s32", "row_tiles", self.n_rows, self.rows - 1)
        return divide(b, "row_tiles", tiles, self.rows)

    def _unit(self, shares: Shares) -> Reg:
        """Which tile of rows of which KV head this CTA has a part of."""
        b = self.b
        item = b.op("mov.u32", "item", b.special("ctaid.x"))
        self._one_sequence()
        self._tiles = self._row_tiles()
        tiles = b.op("mul.lo.u32", b.reg("all_tiles_of_rows", "u32"), self._tiles, self.problem.n_kv_heads)
        self.part = Part(b, item, shares.count(b, tiles, self.kv_len), shares.most)
        return self.part.unit

    def _tile_from_last(self, index: Reg) -> Reg:
        """The tile of rows of which `index` counts from the last."""
        b = self.b
        b.note("long rows first: the last tile of every head before the one that precedes it")
        tiles = self._row_tiles() if self.shares is None else self._tiles
        tile: Reg = b.op("sub.s32", "row_tile", tiles, index)
        b.op("setp.gt.s32", "has_rows", tile, 0)
        return tile

    def _keys(self, tile: Reg) -> None:
        """The rows of a tile, counted from 1, and the keys that they see."""
        self.first_row = self.b.op("mad.lo.s32", "first_row", tile, self.rows, -self.rows)
        self._key_range()
        if self.shares is not None:
            self._own_keys()
        self.b.op("setp.lt.s32", "has_keys", self.key_begin, self.key_end)

    def _own_keys(self) -> None:
        """This CTA's part of the keys, in whole tiles."""
        b = self.b
        count = b.op("add.s32", b.reg("key_tiles", "s32"), self.key_end, self.keys - 1)
        b.op("max.s32", count, count, 0)
        low, tiles = self.part.tiles(b, divide(b, "key_tiles", count, self.keys))
        b.op("min.u32", low, low, ((1 << 31) - 1) // self.keys, note="no key lies beyond")
        b.op("mul.lo.s32", self.key_begin, low, self.keys)
        end = b.op("mad.lo.s32", b.reg("part_end", "s32"), tiles, self.keys, self.key_begin)
        b.op("min.s32", self.key_end, self.key_end, end)

    def _length(self, name: str) -> Reg:
        """A length from a scalar or from device memory; below 0 counts as 0."""
        b, given = self.b, self.b.ld_param(name)
        value: Reg = b.op("ld.global.s32", f"{name}_now", given[0]) if self.spec.indirect else given
        b.op("max.s32", value, value, 0)
        return value

    def _key_range(self) -> None:
        """key_begin (a multiple of the tile) and key_end; plain_end and plain_begin bound the tiles without a mask."""
        b, variant = self.b, self.variant
        self.key_begin = b.op("mov.s32", "key_begin", 0)
        if not variant.causal:
            self.place_tokens()
            self.key_end = b.op("mov.s32", "key_end", self.kv_len)
            self.plain_end = b.op("sub.s32", "plain_end", self.kv_len, self.keys)
            return
        self.place_tokens()
        last = b.op("add.s32", "last_row", self.first_row, self.rows)
        b.op("min.s32", last, last, self.n_rows)
        b.op("sub.s32", last, last, 1)
        last_position = self.position("last_position", last)
        self.key_end = b.op("add.s32", "key_end", last_position, 1)
        first_position = self.position("first_position", self.first_row)
        self.plain_end = b.op("sub.s32", "plain_end", first_position, self.keys - 1)
        if variant.window:
            b.note(f"and no key more than window={variant.window} positions back")
            self.plain_begin = b.op("sub.s32", "plain_begin", last_position, variant.window - 1)
            b.op("sub.s32", self.key_begin, first_position, variant.window - 1)
            b.op("max.s32", self.key_begin, self.key_begin, 0)
            if self.keys & (self.keys - 1) == 0:
                b.op("and.b32", self.key_begin, self.key_begin, -self.keys)
            else:
                skipped = remainder(b, "key_begin_odd", self.key_begin, self.keys)
                b.op("sub.s32", self.key_begin, self.key_begin, skipped)

    def place_tokens(self) -> None:
        """Where tokens stand, if something depends on it; part of an open fragment."""
        if self.variant.by_position:
            sees = " and sees the keys up to there" if self.variant.causal else ""
            self.b.note(f"token t stands at position t + offset{sees}")
            self.offset: Reg = self.b.op("sub.s32", "offset", self.kv_len, self.q_len)

    def position(self, name: str, row: Reg) -> Reg:
        """The position of a row's token, into the register `name`."""
        out = divide(self.b, name, row, self.group)
        self.b.op("add.s32", out, out, self.offset)
        return out

    def index(self, name: str, row: Reg) -> Reg:
        """The index (64-bit) of a row of q, out or lse in its buffer, into the register `name`."""
        b, out = self.b, scratch(self.b, name, "u64")
        token = divide(b, "row_token", row, self.group)
        head = self.head("row_head", row)
        other = scratch(b, "wide_part", "u64")
        if self.cache.batched:
            b.op("add.s32", token, token, self.found.q_start)
        if self.problem.by_token:
            b.op("mul.wide.u32", out, token, self.problem.n_heads)
            b.op("cvt.u64.u32", other, head)
        elif self.problem.heads_inside:
            part = divide(b, "row_part", head, self.problem.heads_inside)
            b.op("mul.wide.u32", out, part, self.q_rows())
            b.op("cvt.u64.u32", other, token)
            b.op("add.u64", out, out, other)
            b.op("mul.lo.u64", out, out, self.problem.heads_inside)
            inside = remainder(b, "row_inside", head, self.problem.heads_inside)
            b.op("cvt.u64.u32", other, inside)
        else:
            b.op("mul.wide.u32", out, head, self.q_rows())
            b.op("cvt.u64.u32", other, token)
        b.op("add.u64", out, out, other)
        return out

    def head(self, name: str, row: Reg) -> Reg:
        """The query head of a row, into the register `name` where a KV head has several."""
        first = self.first_head()
        if self.group == 1:
            return first
        member = remainder(self.b, name, row, self.group)
        return self.b.op("add.u32", member, member, first)  # type: ignore[no-any-return]

    def address(self, name: str, row: Reg, buffer: Reg, row_bytes: int) -> tuple[Reg, Reg]:
        """The index of a row in q, out or lse, and its address, in the register `name`."""
        out, index = scratch(self.b, name, "u64"), self.index("row_index", row)
        self.b.op("mad.lo.u64", out, index, row_bytes, buffer)
        return index, out

    def first_head(self) -> Reg:
        """The first query head of the KV head, computed where first used."""
        if self.group == 1:
            return self.kv_head
        if self._first_head is None:
            self._first_head = self.b.op("mul.lo.u32", "first_head", self.kv_head, self.group)
        return self._first_head

    def q_rows(self) -> Reg:
        """The rows of a head in q and out, loaded where first used."""
        if self._q_rows is None:
            self._q_rows = self.b.ld_param("q_rows")
        return self._q_rows

    def step(self, rows: int) -> int | None:
        """How far `index` moves from a row to the one `rows` later, where that is the same for all rows."""
        if rows % self.group:
            return None
        return rows // self.group * self.problem.token_step

    def kv_row(self, name: str, key: Reg) -> Reg:
        """The index (64-bit) of a key's row in k and v, into the register `name`; the key is at least 0."""
        b, out = self.b, self.kv_head_row(name)
        wide = b.op("mul.wide.u32", scratch(b, "wide_key", "u64"), key, self.kv_step)
        b.op("add.u64", out, out, wide)
        return out

    def kv_head_row(self, name: str) -> Reg:
        """The index (64-bit) of the KV head's first row in k and v, into the register `name`."""
        b = self.b
        out: Reg
        if self.cache.batched:
            cache = b.op("mul.wide.u32", scratch(b, "cache_head", "u64"), self.sequence, self.problem.n_kv_heads)
            out = b.op("cvt.u64.u32", name, self.kv_head)
            b.op("add.u64", out, out, cache)
            b.op("mul.lo.u64", out, out, self.cache.rows)
        elif self.cache.max_len:
            out = b.op("mul.wide.u32", name, self.kv_head, self.cache.rows)
        elif not self.cache.by_token:
            out = b.op("mul.wide.u32", name, self.kv_head, self.param("kv_rows"))
        else:
            out = b.op("cvt.u64.u32", name, self.kv_head)
        return out

    def param(self, name: str) -> Reg:
        """Load a parameter, also where another part of the kernel does; part of an open fragment."""
        into = self.prefix + name
        return self.b.ld_param(name, self.b.known(into) or into)

    @property
    def kv_step(self) -> int:
        """Rows of k and v from a key to the next."""
        return self.cache.rows_per_position
