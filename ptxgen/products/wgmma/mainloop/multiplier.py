"""The warps that multiply: a stage's weights become fragments of A in registers, its tokens are B where they lie.

A stage is multiplied in parts of a few chunks, each what one product takes of k. Two sets of registers for A take
turns: while the products of one part run, the next part's weights are read and converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Reg, RegArray
from ptxgen.dtypes import bf16
from ptxgen.idioms import convert
from ptxgen.idioms.convert import RUN, scratch
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import SWIZZLE, Geometry
from ptxgen.products.wgmma.tokens.layout import CHUNK_BYTES, ROW_BYTES
from ptxgen.weights.bits import bytes_to_bf16, constant, fragment, pair_of_bf16
from ptxgen.weights.f16 import Half
from ptxgen.weights.format import OWN, ByteCodes, Piece

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

SWIZZLED = 1 << 62 | (SWIZZLE >> 4) << 32 | 1 << 16  # a descriptor's: 128 bytes, groups of eight rows 1024 apart
PER_CHUNK = 4  # registers of A
# of codes with a min: a min is near its scale times this, so that their difference loses little as a bf16 number
CENTRES = {"q4_k": 8, "q5_k": 16, "q4_1": 8, "q5_1": 16}
SHORT = 4  # chunks that tensor cores add up where sums are to be exact


class Part(NamedTuple):
    """Chunks of a tile of a block of rows."""

    tile: int
    block: int
    chunks: range


class PieceOfTile(NamedTuple):
    """What a lane reads of a tile of a block of rows at once, `words`, from `offset` on."""

    piece: Piece
    words: Sequence[Reg]
    offset: int
    block: int


class Turns(NamedTuple):
    """Named barriers of this warpgroup's turn and of the next one's, the threads of both, and which passes the first
    turn on."""

    mine: Reg
    next: Reg
    threads: int
    is_last: Reg


class Multiplier:
    """Fragments `begin_products`, `begin_scales`, `begin_sums`, `ask_scales`, `poll_full`, `find_stage`, `part0` …
    `part<n>`, `release`, `multiplied`, `drain`, `scale_sums`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        self.b, self.spec, self.at, self.ring, self.kind = b, spec, at, ring, spec.kind
        self.straight = spec.straight
        exact = self.exact = at.exact
        self.digits = self._digits()
        self.sums = [b.array(f"sum{block}_", "f32", at.tokens // 2) for block in range(at.shape.blocks)]
        # codes that one bf16 number holds are scaled two at a time
        self.by_pairs = not (exact or isinstance(self.kind, Half)) and spec.x_dtype == bf16
        self.pieces = self.kind.code_pieces if spec.by_row else self.kind.pieces
        # tensor cores round every addition towards zero: what they add up is short where it is to be exact
        self.short = b.array("short_sum", "f32", at.tokens // 2) if exact else None
        type = spec.x_dtype.name
        k = CHUNK_BYTES // spec.x_dtype.bytes
        self.product = f"wgmma.mma_async.sync.aligned.m64n{at.product_tokens}k{k}.f32.{type}.{type}"
        self.flags = () if spec.scaled else (0,)  # B is not transposed; of bytes it could not be
        self.sets = self._sets()
        if not self.straight:
            self.read = b.array("word", "b32", sum(piece.words for piece in self.pieces))
            self.words: Sequence[Reg] = self.read.regs
        if spec.converts:
            self.values = b.array("weight_value", "f32", 2 * OWN)
        self.scales_at = b.array("scales_at", "u64", at.shape.blocks) if self._trailing() else ()
        self.parts = list(self._parts())
        # whether sums are added to: not in a tile's first stage, where no time is left to clear them
        self.keeps = b.reg("keeps_sums", "pred") if at.carried else None
        self.turns: Turns | None = None  # where warpgroups take turns at issuing products

    def _digits(self) -> int:
        """Numbers that a weight becomes."""
        return self.spec.digits if self.exact and not self.straight else 1

    def _sets(self) -> list[RegArray]:
        """Registers for fragments of A, which take turns."""
        per_set = PER_CHUNK * self.at.shape.part * self.digits
        return [self.b.array(name, "b32", per_set) for name in ("even", "odd")]

    def _parts(self) -> Iterator[Part]:
        at, step = self.at, self.at.shape.part
        for tile in range(at.own_tiles):
            for block in range(at.shape.blocks):
                for first in range(0, self.spec.chunks, step):
                    yield Part(tile, block, range(first, first + step))

    def build(self, tasks: Tasks) -> None:
        """Build the fragments of the warps that multiply a stage."""
        b, ring = self.b, self.ring
        self.lane: Reg = tasks.lane
        self.warp, self.slice, self.token_tile = tasks.row_warp, tasks.slice, tasks.token_tile
        self._begin_products(tasks)
        if self._trailing():
            with b.fragment("begin_scales", "scales that belong to the rows, not to a tile"):
                self._find_trailers(tasks.group, tasks.row_warp, tasks.weight, tasks.first_step)
        else:
            b.without("begin_scales")
        with b.fragment("begin_sums"):
            if self.keeps is None:
                for array in self._cleared():
                    convert.clear(b, array)
            else:
                b.op("setp.ne.u32", self.keeps, 0, 0)
            has_released = self._unreleased()
            self.step = b.op("mov.u32", "multiplied_steps", tasks.steps)
        with b.fragment("poll_full"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", ring.is_full, ring.full[0], ring.parity)
        with b.fragment("find_stage", "where the stage's tiles and tokens lie"):
            for key, base_reg in self.bases.items():
                b.op("add.u32", self.places[key], base_reg, ring.offset)
            low = b.op("shr.u32", self.tokens_at, ring.offset, 4)
            b.op("add.u32", low, low, self.first_tokens)
            b.op("or.b32", low, low, SWIZZLED & 0xFFFFFFFF)
            self._find()
        fragments = list(self._stage())
        self._release(has_released, self.arrives)
        if has_released is None:
            b.without("drain")
        else:
            self._end_stage()
        self._outside()
        b.expose(part_fragments=fragments, turns=self.turns)

    def _begin_products(self, tasks: Tasks) -> None:
        """The fragment `begin_products`."""
        b, at, ring, lane = self.b, self.at, self.ring, self.lane
        with b.fragment("begin_products", "where the lane's weights lie in a stage; the tokens' descriptor"):
            ring.begin(copies=False)
            base = b.op("mov.u32", "ring_base", ring.memory)
            own = b.op("mad.lo.u32", "own_records", self.warp, at.shape.blocks * at.tile_bytes, base)
            if tasks.slice is not None:
                b.op("mad.lo.u32", own, tasks.slice, at.tile_bytes // at.shape.slices, own)
            self.row = b.op("shr.u32", "row_of_lane", lane, 2)
            self.bases = {key: b.op("mad.lo.u32", f"own_{key[0]}{key[1]}", self._owner(key[0]), key[1], own)
                          for key in dict.fromkeys((p.by, p.stride) for p in self._pieces())}  # fmt: skip
            self.first_tokens = b.op("bfe.u32", "first_tokens", base, 4, 14, note="in a cluster it has the rank above")
            if tasks.slice is not None:
                own_tokens = at.token_bytes // at.shape.slices >> 4
                b.op("mad.lo.u32", self.first_tokens, tasks.slice, own_tokens, self.first_tokens)
            self.arrives = b.op("setp.lt.u32", "arrives", lane, at.shape.share)
            self.peer = lane
            if tasks.split_rank is not None and at.shape.share > 1:
                self.peer = b.op("mad.lo.u32", "peer", tasks.split_rank, at.shape.share, lane)
            self.places = {key: b.reg(f"at_{key[0]}{key[1]}", "u32") for key in self.bases}
            self.tokens_at, self.descriptor = b.reg("tokens_low", "u32"), b.reg("tokens_descriptor", "b64")
            self.high = b.op("mov.u32", "descriptor_high", SWIZZLED >> 32)
            self.released = b.op("mov.u32", "released_bell", 0)
            self._begin(base)

    def _end_stage(self) -> None:
        """Fragments `multiplied`, behind every stage, and `drain`, behind the last."""
        b, step = self.b, self.step
        with b.fragment("multiplied"):
            self.ring.turn()
            for place in self.scales_at:
                if step_bytes := self.at.shape.tiles * (self._trailing()[0].step or 0):
                    b.op("add.u64", place, place, step_bytes)
            if self.keeps is not None:
                b.op("setp.eq.u32", self.keeps, 0, 0)
            b.op("sub.u32", step, step, 1)
            b.op("setp.ne.u32", "multiplies_more", step, 0)
        with b.fragment("drain", "all products are done"):
            b.op("wgmma.wait_group.sync.aligned", 0)
            self.arrive(self.arrives)
            self._drained()

    def _stage(self) -> Iterator[Any]:
        """What is done with a stage; the stage before has been read when the first of the fragments ends."""
        for index, part in enumerate(self.parts):
            what = f"tile {part.tile}, block {part.block}, chunks {part.chunks[0]} on"
            with self.b.fragment(f"part{index}", what) as fragment:
                self._part(part, self.sets[index % 2])
                self._wait(part)
            yield fragment

    def _cleared(self) -> Sequence[Sequence[Reg]]:
        """Registers that are 0 before a tile's first stage."""
        return self.sums

    def _drained(self) -> None:
        """What is left to do with a tile's sums when all products are done."""

    def _begin(self, base: Reg) -> None:
        """What else is known before the first stage; `base`: of the ring."""

    def _find(self) -> None:
        """Where else something of the stage lies."""

    def _outside(self) -> None:
        """Fragments `ask_scales`, before a stage is waited for, and `scale_sums`, after the last."""
        self.b.without("ask_scales", "scale_sums")

    def _unreleased(self) -> Reg | None:
        """Whether the stage before has to be released, which is not so of a tile's first; None: none ever has."""
        b = self.b
        has_released = b.reg("releases", "pred")
        b.op("setp.ne.u32", has_released, 0, 0)
        return has_released

    def _release(self, has_released: Reg | None, arrives: Reg) -> None:
        """The fragment `release`, behind the first fragment of a stage."""
        b = self.b
        assert has_released is not None
        with b.fragment("release", "the products of the stage before are done"):
            self.arrive(has_released)
            b.op("mov.u32", self.released, self.ring.empty)
            b.op("and.pred", has_released, arrives, arrives)

    def arrive(self, pred: Reg) -> None:
        """This warp has done with the stage: lane i tells CTA i of those that share the tokens."""
        b = self.b
        if self.at.shape.share == 1:
            b.op("mbarrier.arrive.shared::cta.b64", scratch(b, "arrival", "b64"), self.released[0], pred=pred)
            return
        theirs = b.op("mapa.shared::cluster.u32", scratch(b, "their_bell", "u32"), self.released, self.peer, pred=pred)
        b.op("mbarrier.arrive.shared::cluster.b64", SINK, theirs[0], pred=pred)

    def _owner(self, by: str) -> Reg:
        return self.lane if by == "lane" else self.row

    def _pieces(self) -> list[Piece]:
        return [piece for piece in self.pieces if not piece.in_trailer]

    def _trailing(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.in_trailer]

    def _part(self, part: Part, a: Sequence[Reg]) -> None:
        b, at = self.b, self.at
        if self.straight:
            self._read_straight(part, a)
        else:
            if part.chunks[0] == 0:
                self._read_words(part)
            for index, chunk in enumerate(part.chunks):
                b.note(f"chunk {chunk} of the tile", after=RUN)
                self._convert(chunk, self._fragments(a, index))
        b.note("the products", after=RUN)
        b.op("wgmma.fence.sync.aligned")
        for index, chunk in enumerate(part.chunks):
            offset = self._chunk_of_tokens(part.tile, chunk)
            for number, (own, digit) in enumerate(self._pairs(self._fragments(a, index))):
                digit_offset = offset + digit * at.tokens * ROW_BYTES
                self._describe(digit_offset)
                sums = self.sums[part.block] if self.short is None else self.short
                keep: Reg | int = int(self.short is None or number > 0 or chunk % SHORT > 0)
                if self.keeps is not None and (part.tile, chunk, number) == (0, 0, 0):
                    keep = self.keeps
                b.op(self.product, sums.regs, tuple(own), self.descriptor, keep, 1, 1, *self.flags)
        b.op("wgmma.commit_group.sync.aligned")

    def _chunk_of_tokens(self, tile: int, chunk: int) -> int:
        """Where a chunk of the tokens begins in a stage."""
        spec, place = self.spec, CHUNK_BYTES * (tile * self.spec.chunks + chunk)  # in a row of all blocks
        return place // ROW_BYTES * spec.digits * self.at.tokens * ROW_BYTES + place % ROW_BYTES

    def _describe(self, offset: int) -> None:
        """The descriptor of what begins there in the stage."""
        b = self.b
        low = b.op("add.u32", scratch(b, "chunk_low", "u32"), self.tokens_at, offset >> 4)
        b.op("mov.b64", self.descriptor, (low, self.high))

    def _wait(self, part: Part) -> None:
        """For the part before; where short sums end, for this one, and add them to the others."""
        b = self.b
        if self.short is None or (part.chunks[-1] + 1) % SHORT:
            b.op("wgmma.wait_group.sync.aligned", 1)
            return
        b.note("the sums of these chunks to the totals", after=RUN)
        b.op("wgmma.wait_group.sync.aligned", 0)
        for total, short in zip(self.sums[part.block], self.short, strict=True):
            b.op("add.f32", total, total, short)

    def _fragments(self, a: Sequence[Reg], index: int) -> list[Sequence[Reg]]:
        """The registers of a part's chunk, digit by digit."""
        first = PER_CHUNK * self.digits * index
        return [a[first + PER_CHUNK * digit : first + PER_CHUNK * (digit + 1)] for digit in range(self.digits)]

    def _pairs(self, fragments: list[Sequence[Reg]]) -> list[tuple[Sequence[Reg], int]]:
        """Digits of the weights with digits of x, the small ones first; below 2^-24 of the whole nothing."""
        pairs = [(i, j) for i in range(len(fragments)) for j in range(self.spec.digits) if i + j < self.spec.digits]
        return [(fragments[i], j) for i, j in sorted(pairs, key=lambda pair: -sum(pair))]

    def _record(self, part: Part) -> int:
        """Where a part's tile begins, from the warp's first."""
        return part.block * self.at.tile_bytes + part.tile * self.kind.tile_bytes

    def _read_straight(self, part: Part, a: Sequence[Reg]) -> None:
        place = self.places["lane", 16]
        for index, chunk in enumerate(part.chunks):
            own = a[PER_CHUNK * index : PER_CHUNK * (index + 1)]
            offset = self.at.token_bytes + self._record(part) + self.kind.pieces[chunk].offset
            convert.load_words(self.b, own, place, offset, space="shared")

    def _read_words(self, part: Part) -> None:
        for piece in self._pieces_of(part):
            self._read_piece(piece)

    def _pieces_of(self, part: Part) -> list[PieceOfTile]:
        """What a lane reads of a part's tile, and where to."""
        found, first = [], 0
        for piece in self.pieces:
            offset = part.tile * (piece.step or 0)
            if not piece.in_trailer:
                offset = self.at.token_bytes + self._record(part) + piece.offset
            found.append(PieceOfTile(piece, self.read[first : first + piece.words], offset, part.block))
            first += piece.words
        return found

    def _read_piece(self, of: PieceOfTile) -> None:
        piece = of.piece
        if piece.in_trailer:
            convert.load_words(self.b, of.words, self.scales_at[of.block], of.offset, space="global.nc")
            return
        place = self.places[piece.by, piece.stride]
        if piece.half:
            self.b.op("ld.shared.u16", of.words[0], place[of.offset])
        else:
            convert.load_words(self.b, of.words, place, of.offset, space="shared")

    def _convert(self, chunk: int, fragments: list[Sequence[Reg]]) -> None:
        """Weights of a chunk in the tokens' type: rounded, or as digits."""
        if self.by_pairs:
            self._scale_codes(chunk, fragments[0])
            return
        halves = (self.values[:OWN], self.values[OWN:])
        self.kind.weights(self.b, self.words, chunk, halves)
        for half, values in enumerate(halves):
            if len(fragments) == 1:
                convert.pack(self.b, fragments[0][half::2], values, self.spec.x_dtype)
            else:
                convert.split_digits(self.b, values, [fragment[half::2] for fragment in fragments])

    def _scale_codes(self, chunk: int, a: Sequence[Reg]) -> None:
        """The exact codes of a chunk times their scales, all in bf16."""
        b, kind = self.b, self.kind
        factors, less = kind.scales(b, self.words, chunk)
        codes = self._codes(chunk)
        pairs = [convert.scratch_array(b, f"{name}_pair", "b32", 2).regs for name in ("factor", "offset")]
        if chunk % kind.scale_chunks == 0:
            for offset, factor in zip(less, factors, strict=False):
                b.op("fma.rn.f32", offset, factor, float(CENTRES[kind.name]), offset)
            for values, both in zip((factors, less), pairs, strict=True):
                for value, pair in zip(values, both, strict=False):
                    b.op("cvt.rn.bf16x2.f32", pair, value, value)
        for index, (register, code) in enumerate(zip(a, codes, strict=True)):
            factor, offset = pairs[0][index % 2], pairs[1][index % 2]
            if less:
                b.op("fma.rn.bf16x2", register, code, factor, offset)
            else:
                b.op("mul.rn.bf16x2", register, code, factor)

    def _codes(self, chunk: int) -> Sequence[Reg]:
        """Codes of a chunk as a fragment; where there is a min, less their centre, which then is in the offset."""
        b, kind = self.b, self.kind
        centre = CENTRES.get(kind.name)
        if centre is None:
            (codes,) = kind.fragments(b, self.words, chunk)
            return codes
        assert isinstance(kind, ByteCodes)
        out = fragment(b)
        minus = constant(b, f"less_{128 + centre}", pair_of_bf16(-128 - centre))
        for half in (0, 1):
            bytes_to_bf16(b, out[half::2], kind.code_bytes(b, self.words, chunk, half), minus)
        return out

    def _find_trailers(self, group: Reg, warp: Reg, weight: Reg, first_step: Reg | None) -> None:
        """Where this lane's scales of each block begin."""
        b, at, spec, kind = self.b, self.at, self.spec, self.kind
        (piece,) = self._trailing()
        record = scratch(b, "scaled_record", "u32")
        for block, place in enumerate(self.scales_at):
            b.op("mad.lo.u32", record, group, at.shape.unit_records // at.shape.blocks, warp)
            b.op("mad.lo.u32", record, record, at.shape.blocks, block)
            b.op("min.u32", record, record, spec.parts * kind.records(spec.n) - 1)
            b.op("mad.wide.u32", place, record, kind.record_bytes(spec.k), weight)
            b.op("mad.wide.u32", place, self._owner(piece.by), piece.stride, place)
            b.op("add.u64", place, place, kind.tiles(spec.k) * kind.tile_bytes + piece.offset)
            if piece.step and self.slice is not None:
                b.op("mad.wide.u32", place, self.slice, piece.step * at.own_tiles, place)
            if piece.step and first_step is not None:
                b.op("mad.wide.u32", place, first_step, piece.step * at.shape.tiles, place)
