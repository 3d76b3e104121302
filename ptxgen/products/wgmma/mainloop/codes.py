"""Tokens as f16 in units of their rows, weights as codes, of K formats times their scales: f16 holds both exactly.

A block's factor is taken out of the sums of its columns (256 of K formats, else those of a scale, or of a tile where a
scale has more), as is what the mins of K formats subtract: they are multiplied with the sums of every 32 columns of x,
which lie beside the tokens. Of exact products a zero point of 32 columns is subtracted from codes times scales, and the
sums of x are multiplied with zero point less min. All digits of x are tokens of one product. What a weight's second
number adds, it adds with the first digit of x, to the sums of the second: the rest is below 2^-22 of the whole. The
next weights of a stage are converted while the last products of a block run; where one warpgroup is alone, so are the
next stage's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.convert import RUN, scratch, scratch_array
from ptxgen.products.wgmma.mainloop.multiplier import Part, PieceOfTile
from ptxgen.products.wgmma.mainloop.scaled import OCTET, ScaledMultiplier
from ptxgen.products.wgmma.product import PackedProduct
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.shape import FEW_TOKENS, MOST_GROUPS
from ptxgen.products.wgmma.tokens import layout
from ptxgen.products.wgmma.tokens.layout import ROW_BYTES, SCALE_BYTES
from ptxgen.weights.format import ZeroPoints

# chunks with which offsets of rows g, and g + 8, are computed, while products run; not with a tile's first part, as
# products of the tile before read them until then
OFFSETS_AT = 8, 12
LATE_TOKENS = 64  # of a tile of one warpgroup of K formats, from which on a stage's sums wait for the next stage
SUM_ROW = layout.SUMS_BYTES // layout.SUM_DIGITS  # bytes of a token's sums of a digit


def _is_late(spec: PackedProduct, at: Geometry) -> bool:
    """Whether the last sums of a stage go to the totals when the next stage's first weights are converted: no other
    warpgroup multiplies meanwhile."""
    alone = at.shape.groups == 1 and at.shape.blocks == 1
    return alone and bool(spec.kind.span) and at.tokens >= LATE_TOKENS


class AskedFor(Sequence[Reg]):
    """Registers of a tile's pieces, each of which is read when a word of it is first asked for."""

    def __init__(self, pieces: Sequence[PieceOfTile], read: Callable[[PieceOfTile], None]) -> None:
        self._read = read
        self._words = [word for piece in pieces for word in piece.words]
        self._missing: list[PieceOfTile | None] = [piece for piece in pieces for _ in piece.words]  # of each word

    def __len__(self) -> int:
        return len(self._words)

    @overload
    def __getitem__(self, index: int) -> Reg: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Reg]: ...
    def __getitem__(self, index: int | slice) -> Reg | Sequence[Reg]:
        for each in range(len(self))[index] if isinstance(index, slice) else (index,):
            piece = self._missing[each]
            if piece is not None:
                self._missing = [None if other is piece else other for other in self._missing]
                self._read(piece)
        return self._words[index]


class CodeMultiplier(ScaledMultiplier):
    """The same fragments, for `PackedProduct.by_row`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        super().__init__(b, spec, at, ring)
        each = at.tokens // 2
        self.pending: Part | None = None  # whose sums are not in the totals yet
        self.scales: Sequence[Reg] = ()
        self.less: Sequence[Reg] = ()
        self.points: ZeroPoints | None = None  # of the tile
        self.offsets: Sequence[Sequence[Reg]] = ()
        self.shorts = b.array("short_sum", "f32", spec.digits * each)
        self.min_sums = b.array("min_sum", "f32", each) if spec.kind.has_mins else None
        self.late = b.array("late_scale", "f32", 4 if spec.kind.has_mins else 2) if _is_late(spec, at) else None
        of_type = f"k16.f32.{spec.x_dtype}.{spec.x_dtype}"
        self.of_tokens = f"wgmma.mma_async.sync.aligned.m64n{at.tokens}{of_type}"
        # a weight's second number is multiplied with one digit of x alone: then all products have this shape
        self.together = spec.digits if self.digits == 1 else 1
        self.product = f"wgmma.mma_async.sync.aligned.m64n{self.together * at.tokens}{of_type}"

    def _digits(self) -> int:
        return min(self.spec.digits, self.kind.code_digits)

    def _part(self, part: Part, a: Sequence[Reg]) -> None:
        b, kind = self.b, self.kind
        if part.chunks[0] == 0:
            self._begin_tile(part)
        for index, chunk in enumerate(part.chunks):
            b.note(f"chunk {chunk} of the tile", after=RUN)
            if self.points is not None:
                kind.codes_less_zeros(b, self.words, self.points.zeros, chunk, self._fragments(a, index))
            else:
                kind.codes_as_f16(b, self.words, chunk, self._fragments(a, index))
        self._find_offsets(part)
        offsets = self._offsets(part)
        if part is self.parts[0] and self.late is not None:
            b.op("wgmma.wait_group.sync.aligned", 0)
            self._promote_late(self.late)
        if self.pending is not None:
            self._promote(self.pending)
        b.note("the products", after=RUN)
        b.op("wgmma.fence.sync.aligned")
        for index, chunk in enumerate(part.chunks):
            fresh = chunk % kind.code_chunks == 0
            self._multiply(self._fragments(a, index), self._chunk_of_tokens(part.tile, chunk), fresh=fresh)
        if self.min_sums is not None and offsets:
            if self.points is not None:  # two fragments: ptxas then gives them the registers of the chunks before
                b.op("wgmma.commit_group.sync.aligned")
                b.op("wgmma.wait_group.sync.aligned", 1)
                b.op("wgmma.fence.sync.aligned")
            self._describe_sums(part.tile)
            for index, own in enumerate(offsets):
                b.op(self.of_tokens, self.min_sums.regs, tuple(own), self.descriptor, int(index > 0), 1, 1, 0)
        b.op("wgmma.commit_group.sync.aligned")

    def _offsets(self, part: Part) -> Sequence[Sequence[Reg]]:
        """Fragments that the sums of x are multiplied with, behind the last chunks of a unit, when registers of words
        are free for the results."""
        if self.min_sums is None or not self._ends(part):
            return ()
        return [self.kind.mins_as_f16(self.b, self.words)] if self.points is None else self.offsets

    def _find_offsets(self, part: Part) -> None:
        """What zero points leave of the mins, while products of the tile run."""
        for half, chunk in enumerate(OFFSETS_AT):
            if self.points is not None and chunk in part.chunks:
                self.offsets = self.kind.zero_offsets(self.b, self.points, half)

    def _begin_tile(self, part: Part) -> None:
        """Read what a lane has of a tile: at once, or where registers are few each piece when it is first asked for."""
        points = self.spec.less_zeros
        if self.at.shape.groups > MOST_GROUPS or points or (self.digits > 1 and self.at.tokens >= FEW_TOKENS):
            self.words = AskedFor(self._pieces_of(part), self._read_piece)
        else:
            self._read_words(part)
        if points:
            self.points = self.kind.zero_points(self.b, self.words, f"block{part.block}")

    def _multiply(self, fragments: Sequence[Sequence[Reg]], place: int, *, fresh: bool) -> None:
        """A chunk's products; the first ones of a unit begin its sums."""
        b, each = self.b, self.at.tokens // 2
        for digit in range(0, self.spec.digits, self.together):
            self._describe(place + digit * self.at.tokens * ROW_BYTES)
            sums = self.shorts[each * digit : each * (digit + self.together)]
            b.op(self.product, tuple(sums), tuple(fragments[0]), self.descriptor, int(not fresh), 1, 1, 0)
        for more in fragments[1:]:
            self._describe(place)
            b.op(self.product, tuple(self.shorts[each:]), tuple(more), self.descriptor, 1, 1, 1, 0)

    def _describe_sums(self, tile: int) -> None:
        """The descriptor of the tokens' sums: eight rows are 16 bytes each, the second digit's a digit further on."""
        b, at = self.b, self.at
        low, high = scratch(b, "chunk_low", "u32"), scratch(b, "sums_high", "u32")
        offset = at.token_bytes + at.records * at.tile_bytes + tile * at.tokens * layout.SUMS_BYTES
        b.op("add.u32", low, self.sums_at, offset >> 4)
        b.op("mov.u32", high, OCTET * SUM_ROW >> 4)
        b.op("mov.b64", self.descriptor, (low, high))

    def _find(self) -> None:
        if self.min_sums is not None:
            b = self.b
            low = self.sums_at = b.op("shr.u32", scratch(b, "sums_low", "u32"), self.ring.offset, 4)
            b.op("add.u32", low, low, self.first_tokens)
            b.op("or.b32", low, low, self.at.tokens * SUM_ROW >> 4 << 16)

    def _ends(self, part: Part) -> bool:
        """Whether the chunks of a unit end with the part."""
        return (part.chunks[-1] + 1) % self.kind.code_chunks == 0

    def _wait(self, part: Part) -> None:
        b = self.b
        if self._ends(part):
            first = part.chunks[-1] + 1 - self.kind.code_chunks
            if self.points is not None:
                self.scales, self.less = self.kind.zero_units(self.b, self.points)
            else:
                self.scales, self.less = self.kind.code_units(b, self.words, first)
            for each in self.less:
                b.op("mul.f32", each, each, float(layout.SUMMED))
            self.pending = part
        if part is self.parts[-1] and self.late is not None:
            self.pending = None
            for own, each in zip(self.late, (*self.scales, *self.less), strict=True):
                b.op("mov.f32", own, each)
        elif part is self.parts[-1]:
            self._promote(part)
        else:
            b.op("wgmma.wait_group.sync.aligned", 1)

    def _cleared(self) -> Sequence[Sequence[Reg]]:
        if self.late is None:
            return self.sums
        return [*self.sums, self.shorts, *([] if self.min_sums is None else [self.min_sums]), self.late]

    def _drained(self) -> None:
        if self.late is not None:
            self._promote_late(self.late)

    def _promote_late(self, factors: Sequence[Reg]) -> None:
        """What the stage before has left, to the totals; before the first one these are zeros."""
        self.scales, self.less = factors[:2], factors[2:]
        self._add(self.parts[-1])

    def _promote(self, part: Part) -> None:
        """The sums of a part, when its products are done, to the totals."""
        self.pending = None
        self.b.op("wgmma.wait_group.sync.aligned", 0)
        self._add(part)

    def _add(self, part: Part) -> None:
        """The sums of a unit and block of rows, times its factors, to the totals."""
        b, count, scales, less = self.b, self.at.tokens // 2, self.scales, self.less
        b.note("the sums so far, times their factors, to the totals", after=RUN)
        for i, total in enumerate(self.sums[part.block]):
            value, half = self.shorts[i], i % 4 // 2
            for digit in range(1, self.spec.digits):
                b.op("add.f32", value, value, self.shorts[count * digit + i])
            b.op("fma.rn.f32", total, value, scales[half], total)
            if self.min_sums is not None:
                b.op("fma.rn.f32", total, self.min_sums[i], less[half], total)

    def _scale_totals(self) -> None:
        b = self.b
        place = self._token_scales()
        of_tokens = scratch_array(b, "token_scale", "f32", 2)
        for octet in range(self.at.tokens // OCTET):
            convert.load_words(b, of_tokens, place, SCALE_BYTES * OCTET * octet, space="global")
            for sums in self.sums:
                for i, total in enumerate(sums[4 * octet : 4 * octet + 4]):
                    b.op("mul.f32", total, total, of_tokens[i % 2])
