"""What follows from the `Shape` of a product of many tokens: stages of its ring, registers, how results leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ptxgen.products.wgmma.tiling import registers
from ptxgen.products.wgmma.tiling.refusals import of_carried
from ptxgen.products.wgmma.tiling.shape import MOST_ROWS_FIRST, PROCESSORS, Shape, choose, smaller, stores_halves
from ptxgen.products.wgmma.tokens.layout import CHUNK_BYTES, ROW_BYTES
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

WARPS = 4  # of a warpgroup
SHARED = 232448  # bytes that a CTA can have
PROCESSOR_SHARED = 233472  # and a multiprocessor; 1024 of them are the system's for each CTA
KEPT = 1024  # for mbarriers, and to align the ring
RESULT_BUFFERS = 2  # of a warp, in turn
OCTET = 8  # tokens of a group of accumulators
VECTOR = 4  # outputs of a lane
HALVES_TOGETHER = (32, 16)  # tokens of them in shared memory together, so that a tile's first finds its buffer free
HALVES_LEAST, ALL_TOGETHER = 8, 128  # where neither divides them; so many may be there at once
HALVES_MORE = (128, 64)  # where that costs no stage
BANK_PAD = 4  # f32 between rows of results in shared memory, so that lanes meet different banks
EARLY_BYTES = 1 << 15  # of weights that a CTA with many tokens asks for first
# stages beside which sums of few tokens of CTAs that share k have a place of their own: none then waits for others to
# read; not where launches that overlap have room side by side
APART_STAGES = 4
FEWEST = 2  # stages: one is released when the products of the next have begun
FACTOR_BYTES = 16  # of a stage beside a byte for every token
SWIZZLE = 1024  # bytes after which it repeats


def share_of_tokens(tokens: int, split: int) -> int:
    """Tokens that a CTA finishes of those that it shares k with: whole octets, as many in every CTA that has any."""
    octets = tokens // OCTET
    return OCTET * next(own for own in range(-(-octets // split), octets + 1) if octets % own == 0)


def buffers(tokens: int, together: int) -> int:
    """Of a warpgroup's results, in turn, where so many of its tokens are in shared memory together."""
    return min(RESULT_BUFFERS, tokens // together)


def _results(spec: PackedProduct, tokens: int, shape: Shape, records: int) -> tuple[int, int]:
    """Of so many tokens that a CTA finishes, those whose results are in shared memory together, and the bytes."""
    if _carries(spec, tokens, shape):
        return tokens // 2, tokens * records * TILE_ROWS
    if stores_halves(spec):
        parts = (*HALVES_TOGETHER, HALVES_LEAST) if tokens > ALL_TOGETHER else HALVES_TOGETHER
        fit = (some for some in parts if tokens % (RESULT_BUFFERS * some) == 0)
        together = next(fit, tokens)
        return together, shape.slices * buffers(tokens, together) * 2 * together * records * TILE_ROWS // spec.parts
    few = spec.precision == "exact" or spec.by_row or tokens % (2 * OCTET)
    together = OCTET if few else 16 // shape.blocks
    # of a warp, or of two that have a block each, gate and up
    columns = TILE_ROWS * shape.blocks + BANK_PAD * min(spec.parts, shape.blocks)
    return together, RESULT_BUFFERS * 4 * WARPS * shape.groups * shape.slices * together * columns


def _sliced_bytes(shape: Shape, tokens: int, records: int) -> int:
    """Of the sums that warpgroups that share k give each other: half of the tokens' each."""
    return 4 * tokens * records * TILE_ROWS if shape.slices > 1 else 0


def _carries(spec: PackedProduct, tokens: int, shape: Shape) -> bool:
    """Whether other warps store results."""
    return spec.carried and not of_carried(spec, tokens, shape)


@dataclass(frozen=True)
class Geometry:
    """What follows from a spec and its `Shape`."""

    shape: Shape
    tokens: int
    parts: int
    steps: int  # stages of a record
    token_bytes: int  # of a stage
    tile_bytes: int  # of a record in a stage
    stage_bytes: int
    stages: int
    scale_bytes: int  # of the tokens' scales in a stage
    most_sums: int  # of a row, in a warpgroup's registers
    exact: bool
    product_tokens: int  # of a product, all or a piece of them
    shorts: int  # sets of their sums that are short, beside the totals
    fragment_sets: int  # registers for fragments of A that take turns
    result_tokens: int  # that are in shared memory together on their way out
    result_bytes: int  # of them
    row_groups: int  # CTAs that take all rows, rounded up to whole clusters
    halves: bool  # results are 16-bit numbers that lanes store eight at a time
    streams: bool  # CTAs share out the k of all tiles
    result_buffers: int  # of a warp's results as they are, in turn
    by_row: bool  # tokens are in units of their rows, products are those of codes
    pipelined: bool  # sums of whole blocks take turns with products: `mainloop/pipelined.py`
    factored: bool  # and a warp packs the scales of tokens
    apart: bool  # sums of CTAs that share k have a place beside the ring, not where it was
    carried: bool  # warps beside the copying one store results: `epilogue/carried.py`
    activated: bool  # scales and an activation take registers beside the sums
    tight: bool  # weights that are converted leave few
    scarce: bool  # and so do sums with an activation, or that go through memory: `registers.scarce`
    roots: bool  # a warp beside the copying one finds the roots of tokens' mean squares: `epilogue/norms.py`

    @classmethod
    def of(cls, spec: PackedProduct, tokens: int = 0) -> Geometry:
        """The geometry of a spec, or of it with so many tokens a tile."""
        tokens = tokens or spec.tokens
        shape, kind, exact = choose(spec, tokens), spec.kind, spec.precision == "exact" and not spec.by_row
        while kind.tiles(spec.k) % shape.tiles or kind.tiles(spec.k) < shape.tiles * shape.sharers:
            shape = replace(shape, tiles=shape.tiles // 2)
        per_tile = kind.tile_k // spec.columns * spec.digits * tokens * ROW_BYTES
        scales = tokens * spec.beside_bytes  # of a tile
        while True:
            records = WARPS * shape.groups * shape.blocks
            out_tokens = share_of_tokens(tokens, shape.split * shape.slices)
            together, results = _results(spec, out_tokens, shape, records)
            # that a CTA is sent, where the ring was
            sums = 4 * shape.split * out_tokens * records * TILE_ROWS if shape.in_cluster else 0
            pipelined = registers.pipelined(spec, tokens, shape)
            factored = pipelined and spec.by_block
            beside = scales + (tokens + FACTOR_BYTES if factored else 0)
            stage = -(-shape.tiles * (per_tile + beside + records * kind.tile_bytes) // SWIZZLE) * SWIZZLE
            room = min(SHARED, PROCESSOR_SHARED // shape.resident - 1024) - KEPT
            room -= _sliced_bytes(shape, tokens, records)
            ctas = shape.split * -(-spec.parts * kind.records(spec.n) // records)  # that take all rows
            side_by_side = spec.programmatic and 2 * ctas <= PROCESSORS  # with those of the launch ahead
            # a CTA whose copying warpgroup gives up registers has warps that end before others wait for the cluster
            tight = registers.tight(spec, tokens, shape)
            narrow = shape.groups == 1 or not (exact or spec.by_row or spec.promotes or tight)
            fitting = tokens <= MOST_ROWS_FIRST and shape.share == 1 and narrow and not side_by_side
            apart = fitting and 0 < sums <= room - results - APART_STAGES * stage
            if apart:
                room, sums = room - sums, 0
            least = max(FEWEST * stage, sums + results) if sums else FEWEST * stage + results
            less = smaller(shape, spec)
            if room >= least or less is None:
                break
            shape = less
        alternate = shape.own_tiles * shape.blocks * spec.chunks // shape.part % 2 == 0
        if not (alternate or spec.promotes):  # the two sets of registers take turns
            shape = replace(shape, part=shape.part // 2)
        if exact and tight:
            shape = replace(shape, part=1)
        steps, halves, turns = kind.tiles(spec.k) // shape.tiles, stores_halves(spec), RESULT_BUFFERS
        if spec.by_row and not halves and not sums and (room - results // 2) // stage > (room - results) // stage:
            results, turns = results // 2, 1
        ring = room if sums else room - results
        stages = min(ring // stage, shape.deep, max(FEWEST, steps))
        for more in HALVES_MORE if halves else ():
            bytes_of_more = results // together * more
            if out_tokens % (RESULT_BUFFERS * more) == 0 and room - bytes_of_more >= (sums or stages * stage):
                together, results = more, bytes_of_more
                break
        of_whole = spec.parts * kind.records(spec.n) - spec.last_tiles * records // shape.groups
        groups = -(-of_whole // (records * shape.share)) * shape.share + spec.last_tiles
        promoted = registers.pieces(spec, tokens, shape, pipelined, factored)
        return cls(
            shape, tokens, spec.parts, steps, shape.tiles * per_tile, shape.tiles * kind.tile_bytes, stage, stages,
            shape.tiles * scales, registers.most_sums(spec, shape), exact, *promoted, together, results, groups, halves,
            spec.stream, turns, spec.by_row, pipelined, factored, apart, _carries(spec, tokens, shape),
            spec.scaled and bool(spec.activation) and spec.parts == 1, tight,
            registers.scarce(spec, tokens, shape), bool(spec.norm),
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        """Whether accumulators fit in registers, and the ring in shared memory."""
        return self.stages >= FEWEST and self.sums <= self.most_sums

    @property
    def sums(self) -> int:
        """Of a row, in registers of a warpgroup."""
        return self.tokens * self.shape.blocks + self.shorts * self.product_tokens

    @property
    def crowded(self) -> bool:
        """Whether products whose sums are short, an activation of sums with scales, weights that are converted, or what
        `registers.scarce` names leave so few registers that what a tile needs once, it finds anew."""
        if self.tight:
            return self.shape.split == 1  # else what is asked for early needs it
        if self.scarce:
            return True
        if self.activated and self.shorts == 0:
            pair = self.shape.groups, self.shape.blocks
            return self.sums >= registers.CROWDED_ACTIVATED.get(pair, self.sums + 1)
        return self.shorts > 0 and not self.exact and self.shape.groups <= 2 and self.sums >= registers.CROWDED

    @property
    def turns(self) -> bool:
        """Whether warpgroups take turns at products whose sums are short: where each has one in a stage, so that it
        promotes its sums while the other's products run."""
        alone = self.shape.tiles * self.shape.blocks == 1 and self.product_tokens == self.tokens
        return self.shape.groups > 1 and self.shorts > 0 and not (self.exact or self.pipelined) and alone

    @property
    def own_tiles(self) -> int:
        """Tiles of a stage that a warpgroup multiplies."""
        return self.shape.own_tiles

    @property
    def warps(self) -> int:
        """How many warps multiply."""
        return WARPS * self.shape.groups * self.shape.slices

    @property
    def row_warps(self) -> int:
        """How many of them have different rows."""
        return WARPS * self.shape.groups

    @property
    def mates(self) -> int:
        """Warps that have the matrices of the same outputs: two where each has a record of gate, or of up."""
        return -(-self.parts // self.shape.blocks)

    @property
    def multiplying(self) -> int:
        """Threads that multiply."""
        return 32 * self.warps

    @property
    def threads(self) -> int:
        """Threads of a CTA: those that multiply, the warp that copies, and those that carry results or find roots."""
        beside = self.shape.groups if self.carried else int(self.roots)
        return 32 * (self.warps + (WARPS if self.wide else 1 + beside))

    @property
    def wide(self) -> bool:
        """Whether warps that multiply need more registers than a CTA of this size has for each: then those that copy,
        a whole warpgroup, give up theirs."""
        groups = self.shape.groups
        more = self.exact or self.tight or (self.by_row and groups > 2)
        return groups > 1 and (more or self.sums > registers.WIDE[groups])

    @property
    def shares_of_registers(self) -> tuple[int, int]:
        """Of a thread that copies and of one that multiplies, where those that copy give up some (`wide`)."""
        if self.carried:
            return registers.CARRIED_REGISTERS
        if self.shape.by_memory and self.scarce and self.sums < registers.CROWDED:
            return registers.SHARED_REGISTERS[self.shape.groups]
        factored = self.shape.groups == 2 and (self.pipelined or self.crowded)
        return registers.FACTORED_REGISTERS if factored else registers.REGISTERS[self.shape.groups]

    @property
    def records(self) -> int:
        """Records of 16 rows of a CTA, those of gate and of up."""
        return self.row_warps * self.shape.blocks

    @property
    def rows(self) -> int:
        """Outputs of a CTA."""
        return self.records * TILE_ROWS // self.parts

    @property
    def chunks(self) -> int:
        """Chunks of a stage: 32 bytes of each of its tokens."""
        return self.token_bytes // self.tokens // CHUNK_BYTES

    @property
    def rows_first(self) -> bool:
        """Whether neighbouring CTAs have the same tokens, not the same rows: weights are read once anyway, and a CTA
        knows its first rows before it knows how many tokens there are."""
        return self.tokens <= MOST_ROWS_FIRST and not self.streams

    @property
    def early(self) -> int:
        """Stages whose weights are asked for before there are tokens, where a CTA knows its rows by then: all, or, of
        many tokens, so few that it asks for the first tokens as soon as they are there. With scales of blocks that was
        not measured: all."""
        whole = self.rows_first or self.scale_bytes > 0
        most = self.stages if whole else max(1, EARLY_BYTES // (self.records * self.tile_bytes))
        return min(self.stages, self.steps // self.shape.sharers, most)

    @property
    def most_turns(self) -> int:
        """Clusters of a launch at most; each goes on to further tiles."""
        return self.shape.most_clusters

    @property
    def one_tile(self) -> bool:
        """Whether no CTA goes on to a second tile: clusters that share k are as many as there are tiles for."""
        return self.shape.in_cluster

    @property
    def out_tokens(self) -> int:
        """Tokens of a tile that a CTA finishes, or each of its warpgroups that share k."""
        return share_of_tokens(self.tokens, self.shape.split * self.shape.slices)

    @property
    def shared_tokens(self) -> int:
        """Tokens that a CTA finishes of a tile whose k it shares: fewer than of others, where those of the last turn
        alone are shared."""
        return share_of_tokens(self.tokens, self.shape.sharers * self.shape.slices)

    @property
    def takers(self) -> int:
        """CTAs, of those that share k, that finish tokens."""
        return self.tokens // self.shared_tokens

    @property
    def most_shared(self) -> int:
        """Tiles of the last turn whose k is shared, at most."""
        return self.most_turns // self.shape.last_split

    @property
    def sums_bytes(self) -> int:
        """Of the sums that a CTA is sent by those that it shares k with, itself among them."""
        return 4 * self.shape.split * self.out_tokens * self.records * TILE_ROWS

    @property
    def sums_at(self) -> int:
        """Where sums of CTAs or warpgroups that share k lie in shared memory: beside the ring, or in its place."""
        return self.stages * self.stage_bytes if self.apart or self.shape.slices > 1 else 0

    @property
    def gives_early(self) -> bool:
        """Whether a warpgroup can be through a tile before the other has taken the sums of the tile before: the ring
        has room for all its stages, none of which the other has released."""
        return self.shape.slices > 1 and self.steps <= self.stages

    @property
    def sliced_bytes(self) -> int:
        """Of the sums that warpgroups that share k give each other."""
        return _sliced_bytes(self.shape, self.tokens, self.records)

    @property
    def results_at(self) -> int:
        """Where results lie in shared memory: behind the ring and the sums."""
        if not self.shape.in_cluster:
            return self.stages * self.stage_bytes + self.sliced_bytes
        return self.sums_at + self.sums_bytes

    @property
    def shared(self) -> int:
        """Bytes of the ring and of the results."""
        return max(self.stages * self.stage_bytes, self.results_at + self.result_bytes)
