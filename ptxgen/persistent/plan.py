"""What a persistent step is made of, as numbers: products, their shares, what CTAs exchange, shared memory.

A *unit* is what the ring of weights holds in a slot: `WARPS` tiles of a record side by side, a tile for each warp that
multiplies. A CTA's records are neighbours in memory, so its units come one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ptxgen.attention.persistent import plan as attention
from ptxgen.persistent.fields import Fields
from ptxgen.products.tokens.digits import DIGIT_BYTES, DIGITS
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

    @cached_property
    def attends(self) -> attention.Plan:
        """The plan of a layer's attention."""
        at = self.spec
        return attention.Plan(at.attention, at.rotation, at.ctas, WARPS, at.split_rows, at.group_parts)

    @property
    def qkv_width(self) -> int:
        """Elements of a token's query, key and value."""
        return self.attends.q_width + 2 * self.attends.kv_width

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """Those of a layer in order, and the last one of all."""
        at = self.spec
        return (
            Product("qkv", self.qkv_width, at.dim, "down", "qkv", norm=True),
            Product("o", at.dim, self.attends.q_width, "attended", "o"),
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
    def alone(self) -> int:
        """Of these, those that take no rows of q, k and v: they ask for keys and values meanwhile."""
        attends = self.attends
        return attends.heads * min(attends.splits, self.spec.ctas // 4 // attends.heads)

    # -- what CTAs exchange --------------------------------------------------------------------------------------------
    @property
    def copies(self) -> int:
        """Copies of what all CTAs read."""
        return min(COPIES, self.spec.ctas)

    @cached_property
    def regions(self) -> dict[str, attention.Region]:
        """Of a layer's slot, by the names that products have for their x and out; "parts" are attention's splits'."""
        at, attends = self.spec, self.attends
        found: dict[str, attention.Region] = {}
        offset = 0
        widths = {
            "qkv": (1, self.qkv_width),
            "attended": (self.copies, attends.q_width),
            "o": (self.copies, at.dim),
            "gated": (self.copies, at.hidden),
            "down": (self.copies, at.dim),
            "parts": (1, attends.attending * attends.part_pitch if attends.splits > 1 else 0),
        }
        for name, (copies, width) in widths.items():
            found[name] = attention.Region(offset, width, copies)
            offset = found[name].end
        return found

    @property
    def slot_words(self) -> int:
        """Words of a layer's slot."""
        return self.regions["parts"].end

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
        return max(widest // CHUNK * DIGITS * DIGIT_BYTES, self.attends.outputs_bytes)

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
        group, dim = self.attends.group, self.attends.dim
        heads = 4 * (group + 2) * dim + 8 * dim + 16 * WARPS * group
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
