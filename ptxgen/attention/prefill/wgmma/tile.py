"""How much a CTA on wgmma takes, what its shared memory holds, and which attention it can compute.

Every tile of rows lies in shared memory in columns of 64 elements, [column][row][128 bytes], the 16-byte chunk c of row
r at c ^ (r % 8): the 128-byte swizzle of wgmma's matrix descriptors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.parts import Shares
from ptxgen.attention.prefill.ragged import WARP
from ptxgen.targets import Target

COLUMN = 64  # elements of a swizzled row of 128 bytes
SWIZZLED_ROW = 128  # bytes
CHUNK = 16  # bytes that are swizzled as a whole, and copied by a thread
LANES = SWIZZLED_ROW // CHUNK  # threads side by side on a swizzled row
K_STEP = 16  # elements of the contraction of a wgmma on 16-bit types
PADDED_FROM = 24  # elements of the shortest row behind which zeros may follow
ROWS = 64  # of a warpgroup
STAGES = 2  # of K and of V
WARPGROUP = 128  # threads
ONES = 8  # elements that are one behind those of V by element: their products are the sums of probabilities
ONES_BYTES = ONES * SWIZZLED_ROW
MAP_BYTES = 128  # of a tensor map
ALONE = 116 << 10  # bytes of shared memory of which a multiprocessor has no room for twice
FEWEST = 2  # warpgroups that take part: one alone would take turns with itself
STEPPED = 128  # the largest head_dim at which consumers have registers for steps of the score
MOST_ALONE = 1024  # keys whose products in 8 bits tensor cores add up alone, with some 14 bits; then sums in f32 do
WIDEST_PROMOTED = 128  # the largest head_dim with room for such sums
MOST_WIDE = 4096  # keys that wider rows may have in one sum, which then loses 4 %
CHIP_SMS = 132  # of an H100 or H200: a persistent grid has a CTA for each
# By the largest head_dim: tiles of keys of a part, at least, and parts of a tile of rows, at most: merging a part takes
# a quarter of a microsecond (128), and more than one where its rows come in several pieces.
PARTS = ((128, 2, 32), (192, 6, 16), (256, 8, 16))


@dataclass(frozen=True, slots=True)
class WgmmaTile:
    """`warpgroups` consumer warpgroups of 64 rows each, by `keys`; registers of a thread after setmaxnreg.

    `q_in_registers`: q is the register operand of the first product, else it is read from shared memory. `out_over_q`:
    rows of out are staged in the place of those of q, where there is no room for both. `tails`: there is an mbarrier
    of the boxes of V that reach past the last key. `fp8`: q and K are of 8 bits, and rows of q have scales. `turned`:
    so are V, which lies by element, [element][128 keys], and the probabilities. `promoted`: sums in f32 take what the
    second product adds up.
    """

    dim: int
    warpgroups: int
    keys: int
    q_in_registers: bool
    producer_registers: int
    consumer_registers: int
    out_over_q: bool = False
    producers: int = 1
    tails: bool = False
    fp8: bool = False
    turned: bool = False
    promoted: bool = False

    @property
    def producer_threads(self) -> int:
        """The first ones of a CTA."""
        return WARPGROUP * self.producers

    @property
    def threads(self) -> int:
        return self.producer_threads + WARPGROUP * self.warpgroups

    @property
    def rows(self) -> int:
        return ROWS * self.warpgroups

    @property
    def width(self) -> int:
        """Elements of a row with the zeros behind it: wgmma contracts 16 at a time."""
        return -(-self.dim // K_STEP) * K_STEP

    @property
    def columns(self) -> int:
        """Columns of 64 elements that hold a row."""
        return -(-self.dim // COLUMN)

    @property
    def q_bytes(self) -> int:
        """A warpgroup's rows of q, and as many of out."""
        return self.columns * ROWS * SWIZZLED_ROW

    @property
    def kv_bytes(self) -> int:
        """The place of a tile of K, or of V."""
        return max(self.k_bytes, self.v_bytes + (ONES_BYTES if self.turned else 0))

    @property
    def k_columns(self) -> int:
        """Swizzled rows that hold a key."""
        return -(-self.dim // SWIZZLED_ROW) if self.turned else self.columns

    @property
    def k_bytes(self) -> int:
        """A tile of K."""
        return self.k_columns * self.keys * SWIZZLED_ROW

    @property
    def v_bytes(self) -> int:
        """A tile of V."""
        return self.dim * SWIZZLED_ROW if self.turned else self.k_bytes

    @property
    def out_at(self) -> int:
        """Where the rows of out begin."""
        return 0 if self.out_over_q else self.warpgroups * self.q_bytes

    @property
    def k_at(self) -> int:
        """Where the stages of K begin."""
        return self.out_at + self.warpgroups * self.q_bytes

    @property
    def v_at(self) -> int:
        """Where the stages of V begin."""
        return self.k_at + STAGES * self.kv_bytes

    @property
    def tiles_alone(self) -> int:
        """Tiles of keys that one accumulator of the second product adds up: a power of two, MOST_ALONE keys at most."""
        return 1 << (MOST_ALONE // self.keys).bit_length() - 1

    @property
    def sums_kept(self) -> int:
        """Sums in f32 that a thread has registers for, of dim / 2."""
        kept = next(count for dim, count in _SUMS_KEPT if self.dim <= dim) if self.promoted else 0
        return min(kept, self.dim // 2)

    @property
    def sums_stored(self) -> int:
        """Sums of a thread that lie in shared memory: the others."""
        return self.dim // 2 - self.sums_kept if self.promoted else 0

    @property
    def sums_at(self) -> int:
        """Where these begin."""
        return self.v_at + STAGES * self.kv_bytes

    @property
    def barriers_at(self) -> int:
        """Where the mbarriers begin."""
        stored = self.sums_stored + 4 if self.sums_stored else 0  # with those of probabilities
        return self.sums_at + 4 * stored * WARPGROUP * self.warpgroups

    @property
    def barriers(self) -> int:
        """mbarriers: full and empty of every stage of K and of V, and of every warpgroup's q; with `tails` one more."""
        return 4 * STAGES + 2 * self.warpgroups + self.tails

    @property
    def flag_at(self) -> int:
        """Where the flag lies that some row needs its running maximum."""
        return self.barriers_at + 8 * self.barriers

    @property
    def tail_at(self) -> int:
        """Where the last mbarrier lies: of boxes of V behind whose last key zeros are still to be written."""
        return self.flag_at - 8

    @property
    def maps_at(self) -> int:
        """Where the tensor maps of K and V are made."""
        return -(-(self.flag_at + 4) // MAP_BYTES) * MAP_BYTES

    @property
    def q_scales_at(self) -> int:
        """Where the scales of rows of q begin."""
        return self.maps_at + (2 * MAP_BYTES if self.turned else 0)

    @property
    def shared_bytes(self) -> int:
        """All of it, and as much as keeps other CTAs off the multiprocessor."""
        return max(self.q_scales_at + (4 * self.rows if self.fp8 else 2 * MAP_BYTES), ALONE)


# By the largest head_dim they take; of the registers the producer has more where its threads compute addresses.
_Row = tuple[int, int, int, bool, int, int, bool]
_BY_MAPS: tuple[_Row, ...] = (
    (24, 2, 16, False, 72, 216, False),
    (32, 2, 128, False, 72, 216, False),
    (64, 3, 96, True, 56, 152, False),
    (80, 3, 96, False, 56, 152, False),
    (96, 3, 64, True, 56, 152, False),
    (128, 2, 128, False, 72, 216, False),
    (192, 2, 112, False, 72, 216, True),
    (256, 2, 64, False, 40, 232, True),
)
_BY_COPIES: tuple[_Row, ...] = (
    (24, 2, 16, False, 72, 216, False),
    (64, 3, 80, True, 56, 152, False),
    (96, 3, 64, False, 56, 152, False),
    (128, 2, 128, False, 104, 200, False),
    (192, 2, 96, False, 72, 216, True),
)


_OF_BATCHES_BY_MAPS: tuple[_Row, ...] = (
    (24, 2, 16, False, 72, 216, False),
    (32, 2, 128, False, 72, 216, False),
    (64, 3, 80, True, 56, 152, False),
    (96, 3, 80, False, 56, 152, False),
    (128, 2, 128, False, 72, 216, False),
    (192, 2, 96, False, 72, 216, True),
    (256, 2, 64, False, 56, 224, True),
)
# The same where threads of the producer make 16-bit rows of one sequence under the products.
_WIDENED: tuple[_Row, ...] = (
    (24, 2, 16, False, 72, 216, False),
    (32, 2, 128, False, 72, 216, False),
    (64, 3, 96, True, 56, 152, False),
    (96, 3, 80, False, 80, 144, False),
    (128, 2, 128, False, 104, 200, False),
    (176, 2, 112, False, 104, 200, True),
    (192, 2, 112, False, 88, 208, True),
    (224, 2, 64, False, 104, 200, True),
    (256, 2, 64, False, 88, 208, True),
)
# In place of that of `_BY_MAPS` where CTAs share keys, whose producer finds its part of them.
_SPLIT: dict[int, _Row] = {256: (256, 2, 64, False, 56, 224, True)}
_BY_CONVERSION: tuple[_Row, ...] = (
    (32, 2, 16, False, 72, 216, False),
    (64, 3, 96, False, 80, 144, False),
    (96, 2, 96, False, 104, 200, False),
    (128, 2, 96, False, 104, 200, False),
    (192, 2, 64, False, 104, 200, True),
)
# In their place: by head_dim, whether scales lie beside the values, and whether there are several sequences, pages or a
# ring, whose producer has more to compute.
_CONVERTED: dict[tuple[int, bool, bool], _Row] = {
    (96, False, False): (96, 2, 128, False, 104, 200, False),
    (96, True, True): (96, 2, 96, False, 112, 192, False),
    (128, False, False): (128, 2, 128, False, 104, 200, False),
    (128, False, True): (128, 2, 128, False, 104, 200, False),
    (128, True, False): (128, 2, 96, False, 112, 192, False),
    (192, False, False): (192, 2, 96, False, 104, 200, True),
}
# In place of both, by head_dim, where scales lie beside the values: 4 to 12 bytes were spilled of producers.
_SCALED: dict[int, _Row] = {
    112: (128, 2, 96, False, 112, 192, False),
    **dict.fromkeys((144, 160, 176), (192, 2, 64, False, 112, 192, True)),
}
_BY_TWO_PRODUCERS: _Row = (128, 2, 128, False, 64, 192, False)
_BY_FP8: tuple[_Row, ...] = (
    (32, 2, 16, False, 72, 216, False),
    (64, 3, 80, True, 80, 144, False),
    (128, 2, 112, False, 112, 192, False),
    (192, 2, 48, False, 120, 192, True),
)
# In their place, where V is turned first: a tile of keys is a swizzled row of it, or less.
_TURNED: tuple[_Row, ...] = (
    (32, 2, 64, True, 72, 216, False),
    (128, 2, 128, True, 72, 216, False),
    (192, 2, 96, True, 72, 216, False),
)
# By the largest head_dim: registers of a consumer thread for sums in f32, so that none are spilled.
_SUMS_KEPT = ((96, 32), (WIDEST_PROMOTED, 12))


@lru_cache(maxsize=64)
def wgmma_tile(
    dim: int, maps: bool = True, batched: bool = False, converts: bool = False, scaled: bool = False,
    fp8: bool = False, lean: bool = False, widens: bool = False, turned: bool = False,
    promoted: bool = False, splits: bool = False,
) -> WgmmaTile:  # fmt: skip
    """The tile for rows of `dim` elements; `maps`: K and V come as boxes of tensor maps; `batched`: of several
    sequences, in pages or in a ring; `converts`: they become 16-bit values on their way, `scaled`: with scales beside
    them, `fp8`: but for K. `lean`: two warpgroups of producers convert. `widens`: 16-bit rows are made
    under the products. `turned`: V lies by element; `promoted`: and sums in f32 take what is added up. `splits`: CTAs
    share keys."""
    table = _OF_BATCHES_BY_MAPS if maps and batched else _BY_MAPS if maps else _BY_COPIES
    if turned:
        table = _TURNED
    if widens:
        table = _WIDENED
    if converts:
        table = _BY_FP8 if fp8 else _BY_CONVERSION
    row = next(row for row in table if dim <= row[0])
    if splits:
        row = _SPLIT.get(row[0], row)
    if converts and not fp8:
        row = _BY_TWO_PRODUCERS if lean else _CONVERTED.get((row[0], scaled, batched), row)
        row = _SCALED.get(dim, row) if scaled else row
    tails = maps and batched and not turned
    return WgmmaTile(dim, *row[1:], producers=2 if lean else 1, tails=tails, fp8=fp8, turned=turned, promoted=promoted)


def tile_of(prefill: Prefill) -> WgmmaTile:
    """What a CTA takes of an attention that runs on wgmma."""
    cache = prefill.attention.cache
    several = cache.batched or bool(cache.ring)
    return wgmma_tile(
        prefill.dim, by_maps(prefill), several, converts(prefill), cache.quantised, prefill.fp8, lean(prefill),
        prefill.widened and not makes_at_first(prefill), turns(prefill), promotes(prefill), prefill.split_keys,
    )  # fmt: skip


def shares_of(prefill: Prefill) -> Shares:
    """How CTAs share keys."""
    tile = tile_of(prefill)
    least, most = next((least, most) for dim, least, most in PARTS if prefill.dim <= dim)
    warps = tile.warpgroups * WARPGROUP // WARP
    return Shares(tile.keys, least, most, CHIP_SMS, 2, warps, rows=2, accumulators=tile.width // 2)


def turns(prefill: Prefill) -> bool:
    """Whether V becomes an array by element in memory first: wgmma multiplies e4m3 values along rows alone. Pages and
    rings keep their values by key: an array of all that they may hold would be larger than they are. So do caches
    without a max_len. Wide rows have no room for sums in f32, so they do where they may see too many keys for one."""
    cache = prefill.attention.cache
    if not prefill.fp8 or not cache.max_len or cache.page_size or cache.ring:
        return False
    return prefill.dim <= WIDEST_PROMOTED or _most_seen(prefill) <= MOST_WIDE


def _most_seen(prefill: Prefill) -> int:
    """Keys of a cache with a max_len that a row may see."""
    max_len = prefill.attention.cache.max_len
    return min(max_len, prefill.attention.variant.window or max_len)


def sums_are_long(prefill: Prefill) -> bool:
    """Whether a row may see more keys than tensor cores should add up alone."""
    return turns(prefill) and _most_seen(prefill) > MOST_ALONE


def promotes(prefill: Prefill) -> bool:
    """Whether products in 8 bits are added up in f32 every few tiles."""
    return sums_are_long(prefill) and prefill.dim <= WIDEST_PROMOTED


def makes_rows(prefill: Prefill) -> bool:
    """Whether the launch makes rows in memory before it multiplies them."""
    return prefill.widened or turns(prefill)


def makes_at_first(prefill: Prefill) -> bool:
    """Whether all these rows are made before the first is read: those of a batch, whose short sequences are through
    sooner than rows are made, and may share pages; and V by element, which is a quarter of the work."""
    return (prefill.widened and prefill.attention.cache.batched) or turns(prefill)


def converts(prefill: Prefill) -> bool:
    """Whether K and V of 8 bits become 16-bit values on their way into shared memory."""
    return prefill.attention.problem.kv_dtype.bits == 8 and not makes_rows(prefill)


def lean(prefill: Prefill) -> bool:
    """Whether two warpgroups of producers convert K and V of one sequence with scales. The assembler then has 128
    registers a thread, which do for a causal mask over plain scores, and several query heads to a KV head; else some
    are spilled."""
    attention = prefill.attention
    cache, problem, variant = attention.cache, attention.problem, attention.variant
    return (
        converts(prefill)
        and cache.quantised
        and not (cache.batched or cache.ring)
        and prefill.dim == _BY_TWO_PRODUCERS[0]
        and problem.group > 1
        and variant.causal
        and variant.plain
    )


def by_maps(prefill: Prefill) -> bool:
    """Whether K and V come as boxes of tensor maps; else a thread moves 16 bytes at a time: in rings, and what is
    converted."""
    return not prefill.attention.cache.ring and not converts(prefill)


def is_padded(prefill: Prefill) -> bool:
    """Whether zeros follow the rows in shared memory: boxes bring them for K and V, but threads do not."""
    return by_maps(prefill) and prefill.dim >= PADDED_FROM and prefill.dim % K_STEP != 0


def adapts(prefill: Prefill) -> bool:
    """Whether a short prompt has tiles of fewer rows, and fewer warpgroups take part."""
    cache = prefill.attention.cache
    return not (cache.batched or cache.ring or (converts(prefill) and prefill.fp8))


def pairs(prefill: Prefill) -> bool:
    """Whether a CTA that has one item of a short prompt takes two tiles of a warpgroup's rows: one of the latest and
    one of the earliest tokens, so that all CTAs see about as many keys. The rows of each lie within a tile of keys."""
    variant, group = prefill.attention.variant, prefill.attention.problem.group
    return (
        adapts(prefill)
        and not prefill.split_keys
        and variant.causal
        and not variant.window
        and ROWS % group == 0
        and tile_of(prefill).keys % (ROWS // group) == 0
    )


def runs_on_wgmma(prefill: Prefill, target: Target) -> bool:
    """Whether this attention is computed here; all else goes through mma.sync or FMA."""
    problem, variant = prefill.attention.problem, prefill.attention.variant
    return (
        target.includes_any(("sm_90a",))
        and problem.q_dtype.bits == 16
        and (problem.q_dtype == problem.kv_dtype or problem.kv_dtype.bits == 8)
        and (prefill.dim % K_STEP == 0 or is_padded(prefill))
        and prefill.dim <= (_BY_MAPS if by_maps(prefill) and not prefill.fp8 else _BY_COPIES)[-1][0]
        and (prefill.dim <= STEPPED or not variant.steps)
    )
