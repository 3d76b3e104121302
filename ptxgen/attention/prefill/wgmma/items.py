"""The work of a persistent CTA: which tiles of rows of which KV heads it takes, in which order, and the keys they see.

An item is a tile of rows of a KV head. Heads come in sections whose K and V stay in the L2 cache. Within a section the
longest items come first, and CTAs take them to and fro: round 0 in order, round 1 in reverse, and so on, so that all
have about the same number of keys. It follows from the lengths alone: no counters in memory, the same every time.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.parts import Part
from ptxgen.attention.prefill.ragged import Ragged
from ptxgen.attention.prefill.rows import Rows
from ptxgen.attention.prefill.wgmma.tile import CHIP_SMS, FEWEST, ROWS, WgmmaTile, adapts, by_maps, pairs, shares_of
from ptxgen.attention.prefill.wgmma.variants import folds_scales
from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.division import divide, remainder

WHOLE = 24 << 20  # bytes of K and V of all heads that the L2 cache may hold at once
SECTION = 17 << 20  # bytes of a section, where there are several
LEAST_GAIN = 4, 5  # of rows in all rounds of a CTA, below which fewer warpgroups, which hide less, are not worth it


class Items(Rows):
    """Fragments `locate` (once); `first_round`, `find_item`, `scan` (a loop's body, of a batch), `place_item` and
    `next_round`, which producer and consumers both run.

    `adapts`: a short prompt has tiles of fewer rows, and `active` warpgroups of consumers take part. `pairs`: two of
    them have tiles of rows of their own where `paired` holds: the first late ones, from `first_row` on, the second
    early ones, from `second_row` + ROWS on. `split_keys`: an item may be one of `parts` of the keys of a tile of rows.
    """

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile) -> None:
        super().__init__(b, spec, tile.rows, tile.keys)
        self.tile = tile
        self.adapts, self.pairs, self.splits = adapts(spec), pairs(spec), spec.split_keys
        self.tile_rows: Reg | int = tile.rows
        self.past_the_end = self.cache.batched and by_maps(spec)
        self.is_producer: Reg
        self.widened = spec.widened
        self.wide: dict[str, Reg] = {}  # K's and V's 16-bit rows in memory: heads one after the other, each of kv_len

    def locate(self) -> None:
        b = self.b
        with b.fragment("locate", "lengths, and how the items are dealt out"):
            self.ctas = b.op("mov.u32", "ctas", b.special("nctaid.x"))
            if self.cache.batched:
                self._slots()
            else:
                self._lengths()
                self._sections()
                if self.splits:
                    self._divide_keys()
        with b.fragment("first_round", "the first round of items"):
            self.round = b.op("mov.u32", "round", 0)
            self.place = b.op("mov.u32", "place", b.special("ctaid.x"))
            if not self.cache.batched:
                self.section = b.op("mov.u32", "section", 0)
            self.has_rounds: Reg = b.op("setp.gt.s32", "has_rounds", self.section_items, 0)

    def _lengths(self) -> None:
        """Of the one sequence; part of an open fragment."""
        b = self.b
        self.q_len, self.kv_len = self._length("q_len"), self._length("kv_len")
        self._clamp()
        self.n_rows = b.op("mul.lo.s32", "n_rows", self.q_len, self.group)
        tiles = b.op("add.s32", "row_tiles", self.n_rows, self.rows - 1)
        self.row_tiles = divide(b, "row_tiles", tiles, self.rows)
        if self.adapts:
            self._take_part()
        self.place_tokens()
        if self.pairs:
            self._pair()

    def _take_part(self) -> None:
        """How many warpgroups take part, and the rows of a tile; part of an open fragment."""
        b, groups, heads = self.b, self.tile.warpgroups, self.problem.n_kv_heads
        if groups > FEWEST:
            b.note("where a CTA for each multiprocessor is enough, tiles of fewer rows, of fewer warpgroups")
        self.active = b.op("mov.u32", "active_groups", groups)
        self.tile_rows = b.op("mov.u32", b.reg("tile_rows", "s32"), self.rows)
        shares = groups > FEWEST and not self.variant.causal
        if shares:
            b.note("or where all items take as long, and the last round of larger ones is thin")
            longest = self._rounds("rounds_of_all", self.row_tiles, groups * LEAST_GAIN[0])
        for count in range(groups - 1, FEWEST - 1, -1):
            rows = ROWS * count
            fewer = b.op("add.s32", scratch(b, "small_tiles", "s32"), self.n_rows, rows - 1)
            divide(b, "small_tiles", fewer, rows)
            fits = b.op("setp.le.s32", scratch(b, "small_fits", "pred"), fewer, CHIP_SMS // heads)
            if shares:
                shorter = self._rounds("rounds_of_fewer", fewer, count * LEAST_GAIN[1])
                b.op("setp.le.or.s32", fits, shorter, longest, fits)
            b.op("selp.b32", self.row_tiles, fewer, self.row_tiles, fits)
            b.op("selp.b32", self.tile_rows, rows, self.tile_rows, fits)
            b.op("selp.b32", self.active, count, self.active, fits)

    def _rounds(self, name: str, row_tiles: Reg, times: int) -> Reg:
        """In how many rounds CTAs take so many tiles of rows of each head, times a number; part of an open fragment."""
        b = self.b
        items = b.op("mul.lo.s32", scratch(b, name, "s32"), row_tiles, self.problem.n_kv_heads)
        b.op("add.s32", items, items, CHIP_SMS - 1)
        rounds = divide(b, name, items, CHIP_SMS)
        b.op("mul.lo.s32", rounds, rounds, times)
        return rounds

    def _pair(self) -> None:
        """Whether two warpgroups have tiles of their own; part of an open fragment."""
        b, tokens = self.b, ROWS // self.group
        b.note("where each of these CTAs has one item, late rows and early ones")
        pairs = b.op("add.s32", "row_pairs", self.n_rows, FEWEST * ROWS - 1)
        pairs = divide(b, "row_pairs", pairs, FEWEST * ROWS)
        self.paired: Reg = b.op("setp.le.s32", "paired", pairs, CHIP_SMS // self.problem.n_kv_heads)
        odd = b.op("and.b32", b.reg("offset_within", "u32"), self.offset, tokens - 1)
        b.op("setp.eq.and.u32", self.paired, odd, 0, self.paired)

    def _slots(self) -> None:
        """Tiles of rows of all sequences, at most: each may leave one unfilled; part of an open fragment."""
        b = self.b
        count = self.batch_count = b.op("ld.param.s32", "batch_count", Addr("n_sequences_param"))
        starts = b.op("ld.param.u64", "batch_end_at", Addr("q_starts_param"))
        b.op("cvta.to.global.u64", starts, starts)
        some = b.op("setp.gt.s32", "has_batch", count, 0)
        b.op("mad.wide.u32", starts, count, 4, starts)
        tokens = b.op("mov.s32", "tokens", 0)
        b.op("ld.global.nc.s32", tokens, starts[0], pred=some)
        rows = b.op("mul.lo.s32", "slots", tokens, self.group)
        slots = divide(b, "slots", rows, self.rows)
        b.op("add.s32", slots, slots, count)
        b.op("max.s32", slots, slots, 0)
        self.section_items = b.op("mul.lo.s32", "section_items", slots, self.problem.n_kv_heads)

    def _sections(self) -> None:
        """How many heads stay in the L2 cache together; part of an open fragment."""
        b, heads = self.b, self.problem.n_kv_heads
        per_key = (self.cache.k.row_bytes + self.cache.v.row_bytes) * (2 if self.widened else 1)
        shifts = heads & (heads - 1) == 0  # all sections have a power of two of heads
        self.heads_shift: Reg | None = b.op("mov.u32", "section_shift", 0) if shifts else None
        self.section_heads = b.op("mov.u32", "section_heads", 1)
        self.sections = b.op("mov.u32", "sections", heads)
        if heads > 1:
            b.note("heads whose K and V the L2 cache holds together")
        for count in (n for n in range(2, heads + 1) if heads % n == 0):
            most = (WHOLE if count == heads else SECTION) // (count * per_key)
            fits = b.op("setp.le.s32", scratch(b, "section_fits", "pred"), self.kv_len, most)
            b.op("selp.b32", self.section_heads, count, self.section_heads, fits)
            b.op("selp.b32", self.sections, heads // count, self.sections, fits)
            if self.heads_shift is not None:
                b.op("selp.b32", self.heads_shift, count.bit_length() - 1, self.heads_shift, fits)
        if heads > 1:
            b.note("all of them where each CTA has one item at most")
            items = b.op("mul.lo.s32", b.reg("all_items", "u32"), self.row_tiles, heads)
            most = CHIP_SMS if self.splits else self.ctas  # parts of all heads' items are numbered through
            once = b.op("setp.le.u32", scratch(b, "section_fits", "pred"), items, most)
            b.op("selp.b32", self.section_heads, heads, self.section_heads, once)
            b.op("selp.b32", self.sections, 1, self.sections, once)
            if self.heads_shift is not None:
                b.op("selp.b32", self.heads_shift, heads.bit_length() - 1, self.heads_shift, once)
        self.section_items = b.op("mul.lo.s32", "section_items", self.row_tiles, self.section_heads)

    def _divide_keys(self) -> None:
        """How many CTAs share the keys of a tile of rows; part of an open fragment."""
        b = self.b
        tiles = b.op("mul.lo.u32", b.reg("all_tiles_of_rows", "u32"), self.row_tiles, self.problem.n_kv_heads)
        self.parts = shares_of(self.spec).count(b, tiles, self.kv_len)
        b.op("mul.lo.u32", self.section_items, self.section_items, self.parts)

    def find(self) -> None:
        """Fragments `find_item`, `scan`, `place_item` and `next_round`."""
        b = self.b
        with b.fragment("find_item", "this round's item"):
            item = self._item()
            if self.cache.batched:
                ragged = Ragged(b, self.thread, self.rows, self.group)
                self.kv_head = remainder(b, "kv_head", item, self.problem.n_kv_heads)
                ragged.enter(divide(b, "slot", item, self.problem.n_kv_heads))
            else:
                self._head_and_tile(item)
        if self.cache.batched:
            ragged.scan()
            self._found = ragged.found
            self.sequence = ragged.found.sequence
        else:
            b.without("scan")
        with b.fragment("place_item", "the tiles of keys that its rows see"):
            if self.cache.batched:
                self._sequence()
            b.op("min.u32", self.row_tile, self.row_tile, ((1 << 31) - 1) // self.rows)
            if self.adapts:
                first = b.op("sub.s32", b.reg("tiles_before", "s32"), self.row_tile, 1)
                self.first_row = b.op("mul.lo.s32", "first_row", first, self.tile_rows)
                if self.pairs:
                    self._place_pair()
            else:
                self.first_row = b.op("mad.lo.s32", "first_row", self.row_tile, self.rows, -self.rows)
            self.first_head()
            if folds_scales(self.variant):
                self.k_scale = b.reg("k_scale_of_head", "f32")
                scales = b.ld_param("k_scale")
                at = b.op("mad.wide.u32", scratch(b, "k_scale_at", "u64"), self.kv_head, 4, scales)
                b.op("ld.global.nc.f32", self.k_scale, at[0])
            if not self.problem.by_token:
                self.q_rows()
            self._key_tiles()
        with b.fragment("next_round"):
            self._next()

    def _item(self) -> Reg:
        """The number of this round's item in its section, and whether there is one; part of an open fragment."""
        b = self.b
        b.note("odd rounds go backwards")
        back = b.op("sub.u32", "place_back", self.ctas, self.place)
        b.op("sub.u32", back, back, 1)
        odd = b.op("and.b32", b.reg("odd_round", "u32"), self.round, 1)
        is_odd = b.op("setp.ne.u32", "is_odd_round", odd, 0)
        item: Reg = b.op("selp.b32", b.reg("item", "u32"), back, self.place, is_odd)
        b.op("mad.lo.u32", item, self.round, self.ctas, item)
        self.has_item = b.op("setp.lt.u32", "has_item", item, self.section_items)
        if not self.splits:
            return item
        self.part = Part(b, item, self.parts, shares_of(self.spec).most)
        return self.part.unit

    def _next(self) -> None:
        """The next round, or the first of the next section, which begins with another CTA; part of an open fragment."""
        b = self.b
        b.op("add.u32", self.round, self.round, 1)
        first = b.op("mul.lo.u32", "first_of_round", self.round, self.ctas)
        more = b.op("setp.lt.u32", "more_rounds", first, self.section_items)
        if self.cache.batched:
            return
        ends = b.op("setp.ge.u32", "section_ends", first, self.section_items)
        b.op("add.u32", self.section, self.section, 1, pred=ends)
        b.op("mov.u32", self.round, 0, pred=ends)
        turn = b.op("mul.lo.u32", "section_turn", self.ctas, 3)
        b.op("shr.u32", turn, turn, 3)
        b.op("add.u32", self.place, self.place, turn, pred=ends)
        wraps = b.op("setp.ge.u32", "place_wraps", self.place, self.ctas)
        b.op("sub.u32", self.place, self.place, self.ctas, pred=wraps)
        b.op("setp.lt.or.u32", more, self.section, self.sections, more)

    def _head_and_tile(self, item: Reg) -> None:
        """The longest first: tiles of rows from the last, all heads of the section side by side."""
        b = self.b
        from_last = b.reg("tiles_from_last", "u32")
        if self.heads_shift is not None:
            b.op("shr.u32", from_last, item, self.heads_shift)
        else:
            b.op("div.u32", from_last, item, self.section_heads)
        b.op("min.u32", from_last, from_last, self.row_tiles)
        self.kv_head = b.op("mul.lo.u32", "kv_head", from_last, self.section_heads)
        b.op("sub.u32", self.kv_head, item, self.kv_head)
        b.op("mad.lo.u32", self.kv_head, self.section, self.section_heads, self.kv_head)
        b.op("min.u32", self.kv_head, self.kv_head, self.problem.n_kv_heads - 1)
        self.row_tile = b.op("sub.s32", "row_tile", self.row_tiles, from_last)

    def _sequence(self) -> None:
        """The lengths of the sequence that was found; part of an open fragment."""
        b, found = self.b, self.found
        self.q_len, self.row_tile = found.q_len, found.row_tile
        lengths = b.ld_param("kv_lens")
        b.op("mad.wide.u32", lengths, found.sequence, 4, lengths)
        self.kv_len = b.op("mov.s32", "kv_len", 0)
        b.op("ld.global.s32", self.kv_len, lengths[0], pred=found.holds)
        b.op("max.s32", self.kv_len, self.kv_len, 0)
        self._clamp()
        self.n_rows = b.op("mul.lo.s32", "n_rows", self.q_len, self.group)
        b.op("setp.gt.and.s32", self.has_item, found.row_tile, 0, found.holds)
        self.place_tokens()

    def _place_pair(self) -> None:
        """The rows of an item of two tiles; part of an open fragment."""
        b = self.b
        b.note("the first tiles go with the last ones; one in the middle alone, with rows that do not exist")
        self.item_rows = b.op("selp.b32", b.reg("item_rows", "s32"), ROWS, self.tile_rows, self.paired)
        early = b.op("sub.s32", b.reg("early_tile", "s32"), self.row_tiles, self.row_tile)
        late = b.op("add.s32", b.reg("late_tile", "s32"), self.n_rows, ROWS - 1)
        late = divide(b, "late_tile", late, ROWS)
        b.op("sub.s32", late, late, 1)
        b.op("sub.s32", late, late, early)
        b.op("mul.lo.s32", late, late, ROWS)
        b.op("mul.lo.s32", early, early, ROWS)
        alone = b.op("setp.eq.s32", "is_alone", early, late)
        b.op("selp.b32", early, self.n_rows, early, alone)
        b.op("sub.s32", early, early, ROWS)
        self.second_row: Reg = b.op("selp.b32", b.reg("second_row", "s32"), early, self.first_row, self.paired)
        b.op("selp.b32", self.first_row, late, self.first_row, self.paired)

    def take_second_rows(self, group: Reg, skipped: Reg) -> None:
        """A consumer's rows where its warpgroup `group` is the second of a pair, and the tiles of keys before those it
        sees, which it has `skipped`; part of an open fragment."""
        b = self.b
        second = b.op("setp.eq.and.u32", "is_second", group, 1, self.paired)
        b.op("selp.b32", self.first_row, self.second_row, self.first_row, second)
        own = b.op("add.s32", b.reg("own_first_row", "s32"), self.first_row, ROWS)
        position = self.position("own_position", own)
        b.op("max.s32", position, position, 0)
        tile = divide(b, "own_position", position, self.keys)
        b.op("sub.s32", skipped, self.first_tile, tile)
        b.op("max.s32", skipped, skipped, 0)
        b.op("selp.b32", skipped, skipped, 0, second)

    def _key_tiles(self) -> None:
        """The order of the tiles of keys; part of an open fragment.

        First `first_tile`, which holds the position of the first row, so that every row sees a key of it (without a
        window, or with one longer than an item's rows); then those before it, descending; then those behind it. Of
        them `plain_tiles`, next to the first, need no mask.
        """
        b, variant = self.b, self.variant
        if not variant.causal:
            tiles = b.op("add.s32", "key_tiles", self.kv_len, self.keys - 1)
            self.key_tiles = divide(b, "key_tiles", tiles, self.keys)
            self.first_tile = b.op("mov.s32", "first_tile", 0)
            self.lowest_tile = self.first_tile
            self.plain_tiles = b.op("sub.s32", "plain_tiles", self.key_tiles, 2)
        else:
            last = b.op("add.s32", "last_row", self.first_row, self.item_rows if self.pairs else self.tile_rows)
            b.op("min.s32", last, last, self.n_rows)
            b.op("sub.s32", last, last, 1)
            last_position = self.position("last_position", last)
            first_position = self.position("first_position", self.first_row)
            end = b.op("add.s32", "key_tiles", last_position, self.keys)
            b.op("max.s32", end, end, 0)
            self.key_tiles = divide(b, "key_tiles", end, self.keys)
            shown = b.op("max.s32", "first_shown", first_position, 0)
            self.first_tile = divide(b, "first_tile", shown, self.keys)
            if variant.window:
                b.note(f"and no key more than window={variant.window} positions back")
                low = b.op("sub.s32", "first_seen", first_position, variant.window - 1)
                b.op("max.s32", low, low, 0)
                self.lowest_tile = divide(b, "lowest_tile", low, self.keys)
                b.op("sub.s32", self.key_tiles, self.key_tiles, self.lowest_tile)
                whole = b.op("add.s32", "first_whole", last_position, self.keys - variant.window)
                b.op("max.s32", whole, whole, 0)
                whole = divide(b, "first_whole", whole, self.keys)
                self.plain_tiles = b.op("sub.s32", "plain_tiles", self.first_tile, whole)
            else:
                self.lowest_tile = b.op("mov.s32", "lowest_tile", 0)
                self.plain_tiles = b.op("mov.s32", "plain_tiles", self.first_tile)
        if self.splits:
            self._take_part_of_keys()
        self.has_keys = b.op("setp.gt.s32", "has_keys", self.key_tiles, 0)

    def _take_part_of_keys(self) -> None:
        """This item's of them. Of a part that ends before `first_tile` every row sees all keys; one behind it begins
        with its first."""
        b = self.b
        low, self.key_tiles = self.part.tiles(b, self.key_tiles)
        b.op("add.s32", low, low, self.lowest_tile)
        last = b.op("add.s32", b.reg("part_last", "s32"), low, self.key_tiles)
        b.op("sub.s32", last, last, 1)
        self.first_tile = b.op("min.s32", b.reg("part_first", "s32"), self.first_tile, last)
        b.op("max.s32", self.first_tile, self.first_tile, low)
        self.lowest_tile = low
        before = self.first_tile if self.variant.causal else self.key_tiles
        self.plain_tiles = b.op("sub.s32", b.reg("part_plain", "s32"), before, low if self.variant.causal else 2)

    def steps(self, rows: int, passes: int) -> list[tuple[int, int]] | None:
        """How far the row `rows` · i past one of the first `rows` lies from it, as (heads, tokens), for every pass i.

        None where that is not the same for all of them.
        """
        group = self.group
        if rows % group == 0:
            return [(0, rows // group * i) for i in range(passes)]
        if group % rows == 0 and rows * passes % group == 0:
            return [(rows * i % group, rows * i // group) for i in range(passes)]
        return None

    def tile_start(self, step: Reg) -> Reg:
        """The first key of the tile that comes as number `step`; part of an open fragment."""
        b, number = self.b, self.tile_number(step)
        start: Reg = b.op("mul.lo.s32", scratch(b, "tile_start", "s32"), number, self.keys)
        return start

    def tile_number(self, step: Reg) -> Reg:
        """The number among those of all keys of the tile that comes as number `step`; part of an open fragment."""
        b = self.b
        behind = b.op("sub.s32", scratch(b, "tile_before", "s32"), self.first_tile, step)
        other = b.op("add.s32", scratch(b, "tile_number", "u32"), self.lowest_tile, step)
        before = b.op("setp.ge.s32", scratch(b, "is_before", "pred"), behind, self.lowest_tile)
        b.op("selp.b32", other, behind, other, before)
        b.op("min.u32", other, other, ((1 << 31) - 1) // self.keys, note="no key lies beyond")
        return other  # type: ignore[no-any-return]
