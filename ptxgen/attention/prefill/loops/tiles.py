"""How much of the attention matrix one CTA takes: a table by dim and by the shared memory of the target.

Owns the numbers only: rows and keys of a tile, warps, stages, and the bytes that they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ptxgen.attention.prefill.copies import pitch
from ptxgen.attention.prefill.parts import Shares
from ptxgen.targets import STATIC_SHARED_LIMIT, Target

RESERVED = 1024  # bytes of shared memory that the driver keeps per CTA
TOLD_BYTES = 4  # that lie beside a tile where CTAs share keys
LEAST, MOST = 4, 32  # tiles of a part of the keys, at least, and parts of a tile of rows, at most
SMS = 132  # multiprocessors of an H100 or H200; with others, parts are more or fewer than would be best


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A CTA's tile for mma.m16n8k16: `rows` query rows by `keys`; each warp owns 16·m_tiles rows.

    With `column_groups` 2 two warps share the same rows and each accumulates half of dim: both compute the scores.
    `q_steps`: of the steps of 16 columns over dim, so many have their part of q in registers all along. `ctas` of a
    multiprocessor have registers and shared memory at once.
    """

    warps: int
    m_tiles: int
    keys: int
    q_steps: int = 0
    column_groups: int = 1
    stages: int = 2
    ctas: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def resident(self) -> int:
        """What a launch says of registers."""
        return self.ctas

    @property
    def rows(self) -> int:
        return 16 * self.m_tiles * self.warps // self.column_groups

    def shared_bytes(self, dim: int) -> int:
        """The query rows, and `stages` tiles of K and of V, in 16-bit elements."""
        return (self.rows + 2 * self.stages * self.keys) * pitch(2 * dim)

    def shares(self, dim: int) -> Shares:
        """How CTAs share keys, of rows of `dim` elements."""
        accumulators = self.m_tiles * 4 * -(-dim // 8 // self.column_groups)
        return Shares(
            self.keys, LEAST, MOST, SMS * self.ctas, 1, self.warps, rows=2 * self.m_tiles, accumulators=accumulators
        )


# By head_dim up to which they are for, the tiles in order of preference, as warps, tiles of 16 rows a warp, keys, steps
# of q in registers, column groups: the first is taken that a target has shared memory for. Up to 16 there is little to
# share: a small tile, and a text that a person reads.
_SMALLEST = (TensorTile(4, 1, 16, q_steps=1, ctas=2),)
TENSOR_TILES: tuple[tuple[int, tuple[TensorTile, ...]], ...] = (
    (16, _SMALLEST),
    (64, (TensorTile(4, 2, 64, 4, ctas=2), TensorTile(4, 2, 48, 4, ctas=2))),
    (80, (TensorTile(4, 2, 48, 5, ctas=2), TensorTile(4, 2, 32, 5, ctas=2))),
    (104, (TensorTile(4, 2, 48, 3, ctas=2), TensorTile(4, 2, 32, 5, ctas=2), TensorTile(4, 2, 48, 3))),
    (128, (TensorTile(4, 2, 48, ctas=2), TensorTile(4, 2, 32, 3, ctas=2), TensorTile(4, 2, 48))),
    # one row tile a warp leaves registers for the accumulators of wider rows, and for q
    (176, (TensorTile(8, 1, 48, 11), TensorTile(8, 1, 32, 11))),
    (224, (TensorTile(8, 1, 64, 12), TensorTile(8, 1, 48, 14), TensorTile(8, 1, 32, 14), TensorTile(4, 1, 32, 12))),
    (256, (TensorTile(8, 1, 64, 4), TensorTile(8, 1, 32, 8), TensorTile(4, 1, 32, 8), TensorTile(4, 1, 16, 8))),
    (384, (TensorTile(8, 1, 16, 24, 2),)),
    (448, (TensorTile(8, 1, 16, 20, 2), TensorTile(4, 1, 16, 20, 2))),
    (512, (TensorTile(8, 1, 16, 16, 2), TensorTile(4, 1, 16, 16, 2))),
)
# The same where words of 8-bit keys and values have registers on their way in; beyond 384 there are none for them.
CONVERTING_TILES: tuple[tuple[int, tuple[TensorTile, ...]], ...] = (
    (16, _SMALLEST),
    (64, (TensorTile(8, 1, 64, ctas=2), TensorTile(8, 1, 32, 4, ctas=2))),
    (80, (TensorTile(8, 1, 32, 2, ctas=2),)),
    (128, (TensorTile(8, 1, 64, 8), TensorTile(8, 1, 48, 8))),
    (192, (TensorTile(8, 1, 32, 12), TensorTile(4, 1, 32, 8))),
    (224, (TensorTile(8, 1, 32, 8), TensorTile(4, 1, 16, 8))),
    (256, (TensorTile(8, 1, 32, 4), TensorTile(4, 1, 16, 4))),
    (384, (TensorTile(8, 1, 16, 8, 2),)),
    (512, (TensorTile(8, 1, 16, 8, 2, stages=1),)),
)


@dataclass(frozen=True, slots=True)
class SimtTile:
    """A CTA's tile for plain FMA in f32: `lanes` threads share a row; a thread owns `r` rows and `c` keys of each.

    `ctas` of a multiprocessor have shared memory at once; `resident` is what a launch says of registers.
    """

    threads: int
    r: int
    c: int
    stages: int = 2
    lanes: int = 16
    ctas: int = 1
    resident: int = 1

    @property
    def rows(self) -> int:
        return self.threads // self.lanes * self.r

    @property
    def keys(self) -> int:
        return self.lanes * self.c

    def probabilities_pitch(self) -> int:
        """Bytes from row to row of the tile's probabilities."""
        return pitch(4 * self.keys)

    def shared_bytes(self, dim: int) -> int:
        """The query rows, `stages` tiles of K and of V, and the probabilities, in f32."""
        tiles = (self.rows + 2 * self.stages * self.keys) * pitch(4 * dim)
        return tiles + self.rows * self.probabilities_pitch()


def _simt_choices(dim: int, stages: int) -> Iterator[SimtTile]:
    """Tiles for plain FMA in order of preference; the accumulators take r · dim / 16 registers."""
    if dim <= 16:
        yield SimtTile(threads=128, r=2, c=1, stages=stages, ctas=2, resident=2)
    if dim <= 128:
        yield SimtTile(threads=128, r=8, c=2, stages=stages, ctas=2, resident=0)
    if dim <= 256:
        yield SimtTile(threads=128, r=4, c=2, stages=stages)
    for count in range(stages, 0, -1):
        yield SimtTile(threads=128, r=2, c=1, stages=count)
    yield SimtTile(threads=64, r=2, c=1, stages=1)
    yield SimtTile(threads=64, r=1, c=1, stages=1, lanes=8)


def _fits(tile: TensorTile | SimtTile, dim: int, beside: int, target: Target) -> bool:
    """Whether a multiprocessor has shared memory for its CTAs, with so many bytes `beside` each of the tiles."""
    nbytes = tile.shared_bytes(dim) + beside
    return tile.ctas * (nbytes + RESERVED) <= target.shared_limit + RESERVED


@lru_cache(maxsize=4096)
def tensor_tile(dim: int, target: Target, converts: bool, beside: int = 0) -> TensorTile:
    """The tile for tensor cores, with so many bytes of shared memory `beside` it; `converts`: K and V pass through
    registers on their way."""
    table = CONVERTING_TILES if converts else TENSOR_TILES
    choices = next(choices for most, choices in table if dim <= most)
    return next(tile for tile in choices if _fits(tile, dim, beside, target))


@lru_cache(maxsize=4096)
def simt_tile(dim: int, target: Target) -> SimtTile:
    """The tile for plain FMA; before sm_80 nothing is copied while a tile is used, so one stage is enough."""
    stages = 2 if target.includes_any(("sm_80",)) else 1
    return next(tile for tile in _simt_choices(dim, stages) if _fits(tile, dim, 0, target))


def dynamic(nbytes: int) -> int:
    """Bytes to ask for at launch: 0 where a static array holds them."""
    return nbytes if nbytes > STATIC_SHARED_LIMIT else 0
