"""What a persistent step is made of, as numbers: products, their shares, what CTAs exchange, shared memory.

A *unit* is what the ring of weights holds in a slot: `WARPS` tiles of a record side by side, a tile for each warp that
multiplies. A CTA's records are neighbours in memory, so its units come one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ptxgen.dtypes import DType
from ptxgen.persistent.fields import Fields
from ptxgen.products.digits import DIGIT_BYTES, DIGITS
from ptxgen.weights import weight_format
from ptxgen.weights.format import CHUNK, OWN, TILE_ROWS, WeightFormat

WARPS = 8  # that multiply; one more brings the weights
THREADS = 32 * WARPS  # of these
BLOCK = THREADS + 32
BATCH = THREADS // TILE_ROWS  # records whose sums lie in shared memory at a time: a row for each thread
SUM_BYTES = 48  # of a row's sums, one a warp, and what keeps rows from falling on the same banks
LOADS = 8  # of 16 bytes that a lane has under way for x, at most
LOAD_COLUMNS = THREADS * OWN  # of one load of all threads
COPIES = 2  # of what all CTAs read: fewer of them wait at one line
SLOTS = 3  # layers whose values lie in memory at a time: read, written, cleared
HEADER = 4  # words before them: turn, ticket, and the best logit's key (two)
EARLY = 2  # units under way while an op's first ones are fetched: others' values must pass
EARLY_UNITS = 7  # of an op that count as its first ones
STAGES = (8, 6, 4, 2)  # slots of the ring: as many as fit (measured: odd numbers are slower by a tenth)
OP_BYTES = 32  # of an op in the table: weight, norm, bias
KIND_BYTES = 48


@dataclass(frozen=True)
class Product:
    """A kind of product: `rows` by `cols`, `gated` twice. `x` and `out` name regions of the exchange ("" for none)."""

    name: str
    rows: int
    cols: int
    x: str
    out: str
    gated: bool = False
    norm: bool = False

    def records(self, kind: WeightFormat) -> int:
        """Records of 16 rows, or of a gated product pairs of these."""
        return kind.records(self.rows)


@dataclass(frozen=True)
class Plan:
    """The numbers of a spec."""

    spec: Fields

    @cached_property
    def kind(self) -> WeightFormat:
        """The format of the weights."""
        return weight_format(self.spec.weights)

    @property
    def group(self) -> int:
        """Query heads that a CTA has: those of a KV head, or a part of them."""
        return self.spec.n_heads // self.heads

    @property
    def heads(self) -> int:
        """KV heads, each as often as it has parts of its query heads."""
        return self.spec.n_kv_heads * self.spec.group_parts

    @property
    def q_width(self) -> int:
        """Elements of a token's queries."""
        return self.spec.n_heads * self.spec.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys."""
        return self.spec.n_kv_heads * self.spec.head_dim

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """Those of a layer in order, and the last one of all."""
        at = self.spec
        return (
            Product("qkv", self.q_width + 2 * self.kv_width, at.dim, "down", "qkv", norm=True),
            Product("o", at.dim, self.q_width, "attended", "o"),
            Product("gate_up", at.hidden, at.dim, "o", "gated", gated=True, norm=True),
            Product("down", at.dim, at.hidden, "gated", "down"),
            Product("head", at.vocab, at.dim, "down", "", norm=True),
        )

    def product(self, index: int) -> Product:
        """The kind of an op."""
        return self.products[index % 4 if index < self.ops - 1 else 4]

    @property
    def ops(self) -> int:
        """Products of a step."""
        return 4 * self.spec.n_layers + 1

    # -- who does what -------------------------------------------------------------------------------------------------
    @property
    def splits(self) -> int:
        """CTAs that share the positions of a KV head, at most."""
        at = self.spec
        return min(max(1, at.ctas // self.heads), -(-at.max_len // at.split_rows))

    @property
    def attending(self) -> int:
        """CTAs that have a part of a KV head's attention: the first parts of all heads, then the second ones, …"""
        return self.heads * self.splits

    @property
    def alone(self) -> int:
        """Of these, those that take no rows of q, k and v: they ask for keys and values meanwhile."""
        return self.heads * min(self.splits, self.spec.ctas // 4 // self.heads)

    # -- what CTAs exchange --------------------------------------------------------------------------------------------
    @property
    def copies(self) -> int:
        """Copies of what all CTAs read."""
        return min(COPIES, self.spec.ctas)

    @property
    def part_words(self) -> int:
        """Words of a split's part: sums of all heads of the group, then maximum and total of each."""
        return self.group * (self.spec.head_dim + 2)

    @cached_property
    def regions(self) -> dict[str, tuple[int, int]]:
        """Offset and width of a copy, in words of a layer's slot."""
        at, found, offset = self.spec, {}, 0
        widths = {
            "qkv": (1, self.q_width + 2 * self.kv_width),
            "attended": (self.copies, self.q_width),
            "o": (self.copies, at.dim),
            "gated": (self.copies, at.hidden),
            "down": (self.copies, at.dim),
            "parts": (1, self.attending * -(-self.part_words // 4) * 4 if self.splits > 1 else 0),
        }
        for name, (copies, width) in widths.items():
            found[name] = (offset, width)
            offset += copies * (-(-width // 4) * 4)
        found["end"] = (offset, 0)
        return found

    @property
    def slot_words(self) -> int:
        """Words of a layer's slot."""
        return self.regions["end"][0]

    @property
    def exchange_words(self) -> int:
        """Words of all that CTAs exchange."""
        return HEADER + SLOTS * self.slot_words

    # -- shared memory -------------------------------------------------------------------------------------------------
    @property
    def unit_bytes(self) -> int:
        """Of a slot of the ring."""
        return WARPS * self.kind.tile_bytes

    @property
    def digit_bytes(self) -> int:
        """Of the longest x as digits."""
        kind = self.kind
        widest = max(kind.tiles(product.cols) for product in self.products) * kind.tile_k
        return max(widest // CHUNK * DIGITS * DIGIT_BYTES, self.outputs_bytes)

    @property
    def outputs_bytes(self) -> int:
        """Of what the warps' attention leaves, which lies where the digits do."""
        return WARPS * self.group * self.spec.head_dim * 4

    @property
    def loads(self) -> int:
        """Loads of x that a lane has under way; the norms' weights need the first half of them alone."""
        return min(LOADS, 8 if self.spec.dim <= 4 * LOAD_COLUMNS else 4)

    @property
    def normed_loads(self) -> int:
        """Of these, those that may be of a normed x."""
        return (
            min(self.loads, -(-self.spec.dim // LOAD_COLUMNS))
            if self.spec.dim <= self.loads * LOAD_COLUMNS
            else self.loads
        )

    @property
    def static_bytes(self) -> int:
        """Of the other shared variables, roughly."""
        table = OP_BYTES * self.ops + 16 * self.spec.n_layers + KIND_BYTES * 5
        heads = 4 * (self.group + 2) * self.spec.head_dim + 8 * self.spec.head_dim + 16 * WARPS * self.group
        return 2 * BATCH * TILE_ROWS * SUM_BYTES + table + heads + 2048

    @property
    def stages(self) -> int:
        """Slots of the ring."""
        room = self.spec.shared_bytes - self.static_bytes - self.digit_bytes
        return next((stages for stages in STAGES if stages * self.unit_bytes <= room), 0)

    @property
    def dynamic_bytes(self) -> int:
        """Of the ring and the digits."""
        return self.stages * self.unit_bytes + self.digit_bytes

    # -- attention -----------------------------------------------------------------------------------------------------
    @property
    def row_lanes(self) -> int:
        """Lanes that share a row of K: eight elements each."""
        return self.spec.head_dim // 8

    @property
    def rows_at_once(self) -> int:
        """Rows of K that a warp loads with one instruction."""
        return 32 // self.row_lanes

    @property
    def unroll(self) -> int:
        """Loads of K that a lane has under way."""
        return max(1, (4 if not self.crowded else 2 if self.group <= 5 else 1) * 2 // self.kv_dtype.bytes)

    @property
    def crowded(self) -> bool:
        """Whether registers are short for all queries of a KV head."""
        return self.group > 4

    @property
    def kv_dtype(self) -> DType:
        """The cache's."""
        return self.spec.kv_dtype
