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
LEAST, MOST = 4, 32  # tiles of a part of the keys, at least, and parts of a tile of rows, at most
# How many CTAs an H100 or H200 runs at once: two a multiprocessor of up to FEW_THREADS threads and rows of up to NARROW
# elements, else one. Other GPUs run fewer or more; parts are then more or fewer than would be best.
CTAS, FEW_THREADS, NARROW = 264, 128, 128


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A CTA's tile for mma.m16n8k16: `rows` query rows by `keys`; each warp owns 16·m_tiles rows.

    With `column_groups` 2 two warps share the same rows and each accumulates half of dim: both compute the scores.
    `q_steps`: of the steps of 16 columns over dim, so many have their part of q in registers all along.
    """

    warps: int
    m_tiles: int
    keys: int
    column_groups: int = 1
    q_steps: int = 0
    stages: int = 2

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.m_tiles * self.warps // self.column_groups

    def shared_bytes(self, dim: int) -> int:
        """The query rows, and `stages` tiles of K and of V, in 16-bit elements."""
        return (self.rows + 2 * self.stages * self.keys) * pitch(2 * dim)

    def shares(self, dim: int) -> Shares:
        """How CTAs share keys, of rows of `dim` elements."""
        ctas = CTAS if dim <= NARROW and self.threads <= FEW_THREADS else CTAS // 2
        accumulators = self.m_tiles * 4 * -(-dim // 8 // self.column_groups)
        return Shares(self.keys, LEAST, MOST, ctas, 1, self.warps, rows=2 * self.m_tiles, accumulators=accumulators)


@dataclass(frozen=True, slots=True)
class SimtTile:
    """A CTA's tile for plain FMA in f32: `lanes` threads share a row; a thread owns `r` rows and `c` keys of each."""

    threads: int
    r: int
    c: int
    stages: int = 2
    lanes: int = 16

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


def _tensor_choices(dim: int, converts: bool) -> Iterator[tuple[int, TensorTile]]:
    """Tiles in order of preference, each with the CTAs that an SM's shared memory should hold."""
    if dim <= 16:  # little to share: small tiles, and a text that a person reads
        yield 2, TensorTile(warps=4, m_tiles=1, keys=16, q_steps=1)
    elif dim <= 64 and not converts:
        yield 2, TensorTile(warps=4, m_tiles=2, keys=64, q_steps=4)
        yield 1, TensorTile(warps=4, m_tiles=2, keys=32, q_steps=4)
    elif dim <= 128 and not converts:
        if dim <= 112:
            yield 2, TensorTile(warps=4, m_tiles=2, keys=64)
        yield 2, TensorTile(warps=4, m_tiles=2, keys=48)
        yield 1, TensorTile(warps=4, m_tiles=2, keys=32)
    elif dim <= 256:  # one row tile a warp leaves registers for wider rows, or for the words on their way in
        if dim <= 128 or not converts:
            yield 1, TensorTile(warps=8, m_tiles=1, keys=64)
        yield 1, TensorTile(warps=8, m_tiles=1, keys=32)
        yield 1, TensorTile(warps=4, m_tiles=1, keys=16)
    else:  # beyond 384 there are no registers either for words on their way in
        stages = 1 if converts and dim > 384 else 2
        yield 1, TensorTile(warps=8, m_tiles=1, keys=16, column_groups=2, stages=stages)
        yield 1, TensorTile(warps=4, m_tiles=1, keys=16, column_groups=2, stages=stages)


def _simt_choices(dim: int, stages: int) -> Iterator[tuple[int, SimtTile]]:
    """The same for plain FMA; the accumulators take r · dim / 16 registers."""
    if dim <= 16:
        yield 2, SimtTile(threads=128, r=2, c=1, stages=stages)
    if dim <= 128:
        yield 2, SimtTile(threads=128, r=8, c=2, stages=stages)
    if dim <= 256:
        yield 1, SimtTile(threads=128, r=4, c=2, stages=stages)
    for count in range(stages, 0, -1):
        yield 1, SimtTile(threads=128, r=2, c=1, stages=count)
    yield 1, SimtTile(threads=64, r=2, c=1, stages=1)
    yield 1, SimtTile(threads=64, r=1, c=1, stages=1, lanes=8)


def _fits(nbytes: int, ctas: int, target: Target) -> bool:
    return ctas * (nbytes + RESERVED) <= target.shared_limit + RESERVED


@lru_cache(maxsize=4096)
def tensor_tile(dim: int, target: Target, converts: bool) -> TensorTile:
    """The tile for tensor cores; `converts`: K and V pass through registers on their way to shared memory."""
    return next(t for n, t in _tensor_choices(dim, converts) if _fits(t.shared_bytes(dim), n, target))


@lru_cache(maxsize=4096)
def simt_tile(dim: int, target: Target) -> SimtTile:
    """The tile for plain FMA; before sm_80 nothing is copied while a tile is used, so one stage is enough."""
    stages = 2 if target.includes_any(("sm_80",)) else 1
    return next(t for n, t in _simt_choices(dim, stages) if _fits(t.shared_bytes(dim), n, target))


def dynamic(nbytes: int) -> int:
    """Bytes to ask for at launch: 0 where a static array holds them."""
    return nbytes if nbytes > STATIC_SHARED_LIMIT else 0
