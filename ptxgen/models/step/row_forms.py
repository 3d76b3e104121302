"""In which form rows go into the products of a step: by formats, columns and how many rows there are. Makes no op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ptxgen.dtypes import e4m3
from ptxgen.models.program import Ref, Tensor
from ptxgen.models.spec import MLP, QKV, ModelSpec
from ptxgen.models.step.draft import Draft
from ptxgen.products.digits_bf16 import geometry as bf16_geometry
from ptxgen.products.digits_bf16 import layout as bf16_layout
from ptxgen.products.digits_s8 import layout
from ptxgen.products.digits_s8.columns import TokenColumns
from ptxgen.products.digits_s8.geometry import MOST_UNITS, runs_on
from ptxgen.products.wgmma.tokens.layout import COLUMNS, PADDED, columns
from ptxgen.targets import target as parse_target
from ptxgen.weights import weight_format
from ptxgen.weights.e4m3 import BLOCK, E4m3

PRECISIONS = ("exact", "fast", "e4m3")
STACK = 16  # rows of a record: matrices of whole records are stacked without padding between them
# Least number of rows for which wgmma is faster than mma.sync on f32 rows; with 16-bit weights at most HALVES_FROM.
PACKED_FROM, HALVES_FROM = {"exact": 32, "fast": 2, "e4m3": 2}, 16
HALVES = frozenset({"bf16", "f16"})
# Largest number of rows for which byte codes are multiplied by byte digits: exact, and faster than rounded rows.
DIGITS_TO = {"exact": 32, "fast": 8, "e4m3": 8}
# Least number of 16-bit weights of a product whose rows become bf16 digits (and not tiles for wgmma). If successive
# products read and write digits, all of them do.
HALVES_FROM_WEIGHTS = {"exact": 1 << 24, "fast": 0}
# Largest number of weights of gate and up together for which exact rows of K-quants are multiplied by bf16 digits, by
# whether that saves all launches but five. Three bf16 digits take longer than bytes with large matrices: with five
# launches they are faster up to 5.0e7 and slower from 9.0e7 on, with six or nine slower at 5.0e7 and 4.2e7.
SPANS_TO_WEIGHTS = {"five": 3 << 24, "more": 1 << 25}
# More rows than FEW are packed as f16 in units of their own, for wgmma: exact ones before all codes, rounded ones up to
# ROUNDED_UNITS_TO before K-quants. Of up to SOME exact rows this holds for K-quants only if one number holds a weight
# and rows are not LONG: otherwise digits of bytes are faster.
FEW, SOME = 8, 16
K_QUANTS = ("q4_k", "q5_k", "q6_k")
ROUNDED_UNITS_TO = 32
LONG = 8192


class Readers(NamedTuple):
    """Products that read the same rows: their formats, rows of weights, columns, and fields that their tiles follow."""

    kinds: list[str]
    n: int
    k: int
    fields: dict[str, Any]


@dataclass(kw_only=True)
class RowForms(Draft):
    """A step of `model`, and the form of its rows; `precision` is that of several."""

    model: ModelSpec
    step: str
    precision: str
    batch_invariant: bool

    def is_token(self, rows: int) -> bool:
        """Whether so many rows go through the kernels of one token, whose sums have another order than others."""
        return rows == 1 and not self.batch_invariant

    @property
    def _rounding(self) -> str:
        """The precision of packed rows and of their products."""
        return "exact" if self.precision == "exact" else "fast"

    def is_packed(self, x: str | Ref) -> bool:
        """Whether rows lie in tiles, as `_packed` leaves them, or as `_digit_rows` does."""
        return isinstance(x, str) and len(self.tensors[x].shape) > 2

    def is_in_digits(self, x: str | Ref) -> bool:
        """Whether rows lie as `_digit_rows` leaves them."""
        return self.is_packed(x) and len(self.tensors[str(x)].shape) == 3

    def digits(self, kinds: Sequence[str], k: int) -> bool:
        """Whether rows of k columns become digits of bytes for weights of these formats."""
        few = 1 < self.rows <= DIGITS_TO[self.precision] and self._brings_digits(k)
        takes = all(TokenColumns.takes(weight_format(kind)) for kind in kinds)
        return few and takes and not self.in_units(kinds, k)

    def takes_halves(self, kinds: Sequence[str], k: int) -> bool:
        """Whether products of a few rows of k columns can read bf16 digits, with weights of these formats."""
        formats = [weight_format(kind) for kind in kinds]
        some = self.step == "batch" and 1 < self.rows <= FEW and self._brings_digits(k, bf16_layout.UNIT)
        alike = (
            len({bf16_geometry.has_spans(each) for each in formats}) == 1
        )  # what packs x for one packs it for the others
        pays = self._rounding == "fast" or not self.has_sums(kinds)
        launches = "five" if self.has_five_launches else "more"
        pays |= 2 * self.model.hidden * self.model.dim <= SPANS_TO_WEIGHTS[launches]
        return some and alike and pays and all(bf16_geometry.takes(each, k, self._rounding) for each in formats)

    @property
    def has_five_launches(self) -> bool:
        """Whether a layer of few tokens, of one format, may have five launches: all norms divided out of products, q, k
        and v appended by theirs."""
        block, shape = self.model.block, self.model.shape
        behind = block.attention_post_norm or block.mlp_post_norm or block.qk_norm
        return bool(block.attention_norm and block.mlp_norm and not behind) and shape.head_dim % STACK == 0

    def has_sums(self, kinds: Sequence[str]) -> bool:
        """Whether bf16 digits for weights of these formats have sums beside them."""
        return bf16_geometry.has_spans(weight_format(kinds[0]))

    def leaves_for(self, kinds: Sequence[str], behind: Sequence[str]) -> bool:
        """Whether products with weights of some formats leave digits for others: exact ones only of their own kind, as
        a launch that packs takes less than they gain."""
        return self._rounding == "fast" or self.has_sums(kinds) == self.has_sums(behind)

    def _for_others(self, kinds: Sequence[str], behind: Sequence[str]) -> dict[str, Any]:
        """The field of a product with weights of some formats whose digits are for others of the other kind."""
        return {"other_kind": True} if self.has_sums(kinds) != self.has_sums(behind) else {}

    def halves(self, kinds: Sequence[str], weights: int, k: int) -> bool:
        """Whether rows of k columns are for products of bf16 digits: for so many weights of these formats."""
        enough = HALVES.isdisjoint(kinds) or weights >= HALVES_FROM_WEIGHTS[self._rounding]
        return enough and self.takes_halves(kinds, k)

    def packs_halves(self, kinds: Sequence[str], norm: str) -> bool:
        """Whether rows become bf16 digits before products that take these: where a launch norms them anyway, where they
        are rounded, and for weights of codes. Exact rows that no launch norms stay f32 for weights of 16 bits."""
        return bool(norm) or self._rounding == "fast" or HALVES.isdisjoint(kinds)

    def takes_bytes(self, role: str, kinds: Sequence[str]) -> bool:
        """Whether rows that nothing left as bf16 digits become digits of bytes all the same: exact ones before K-quants
        whose product adds to the residual stream, as these are the faster product where no launch is saved."""
        return self._rounding == "exact" and role in ("o_proj", "down_proj") and self.has_sums(kinds)

    def reads_halves(self, name: str, k: int) -> bool:
        """Whether the product `name`, which adds to the residual stream, reads digits that the op before leaves."""
        kinds = self._kinds(name)
        large = self.halves(kinds, self.model.dim * k, k)
        chunks = name != "o_proj" or not self.has_sums(kinds) or self.model.shape.head_dim % STACK == 0  # of attention
        return chunks and (large or self._leaves_normed(name)) and self.takes_halves(kinds, k)

    def _brings_digits(self, k: int, unit: int = layout.UNIT) -> bool:
        """Whether products bring digits of k columns to shared memory, in units of so many."""
        whole = k % unit == 0 and k // layout.UNIT <= MOST_UNITS
        return whole and not self.batch_invariant and runs_on(parse_target(self.target))

    def in_units(self, kinds: Sequence[str], k: int) -> bool:
        """Whether rows of k columns are packed in units of their own for weights of these formats."""
        formats = [weight_format(kind).fitted(k) for kind in kinds]
        some = self.rows > FEW and not self.batch_invariant
        if self.precision != "exact":
            some &= self.rows <= ROUNDED_UNITS_TO and all(each.name in K_QUANTS for each in formats)
        found = [each.code_digits for each in formats]
        some &= all(found) and all(each.tile_k >= COLUMNS for each in formats)
        if self.precision == "exact" and self.rows <= SOME and all(each.span for each in formats):
            some &= max(found) == 1 and k <= LONG  # else digits of bytes
        return some and parse_target(self.target).includes_any(("sm_90a",))

    def packs(self, kinds: Sequence[str], k: int) -> bool:
        """Whether wgmma multiplies the rows of k columns with weights of these formats."""
        least = PACKED_FROM[self.precision]
        least = min(least, HALVES_FROM) if HALVES.issuperset(kinds) else least
        enough = self.rows >= least and not (self.batch_invariant and self.precision == "exact")
        wide = all(weight_format(kind).fitted(k).tile_k >= COLUMNS for kind in kinds)
        return enough and wide and parse_target(self.target).includes_any(("sm_90a",))

    def scale_group(self, kinds: Sequence[str], k: int) -> int | None:
        """Columns that share a scale where rows of k columns are packed in e4m3 for weights of these formats, 0: all
        columns; None where they are packed in bf16."""
        formats = [weight_format(kind).fitted(k) for kind in kinds]
        found = {each.per == "block" if isinstance(each, E4m3) else None for each in formats}
        if self.precision != "e4m3" or len(found) > 1 or None in found:
            return None
        if any(each.tile_k < columns(e4m3) for each in formats):
            return None
        return BLOCK if True in found else 0

    def packs_gate(self, kinds: Sequence[str]) -> bool:
        """Whether wgmma multiplies gate and up, and down, of these formats."""
        model = self.model
        for some, k in ((kinds[:2], model.dim), (kinds[2:], model.hidden)):
            if not self.packs(some, k) or self.digits(some, k) or self.in_units(some, k):
                return False
        return True

    def gate_form(self, kinds: Sequence[str]) -> str:
        """How gate and up, of the first two of these formats, are multiplied: "gated" as one matrix whose product has
        the activation, with biases "stacked" below one another, "apart" where they cannot be one matrix."""
        biased = not {"gate_proj", "up_proj"}.isdisjoint(self.model.biases)
        if kinds[0] != kinds[1] or (biased and self.model.hidden % STACK):
            return "apart"
        return "stacked" if biased else "gated"

    def gives_tiles(self, kinds: Sequence[str]) -> bool:
        """Whether the product of gate and up leaves tiles for that of down."""
        model = self.model
        gated = self.gate_form(kinds) == "gated"
        rounded = (self.scale_group(kinds[:2], model.dim), self.scale_group(kinds[2:], model.hidden)) == (None, None)
        return gated and rounded and model.hidden % PADDED == 0 and self.packs_gate(kinds)

    def readers(self, role: str) -> Readers:
        """The products of this layer, or of the whole model, that read what `role` names."""
        model = self.model
        if role == "lm_head":
            return Readers(self._kinds(model.head), model.shape.vocab, model.dim, {})
        if role == "qkv":
            return Readers(self._kinds(*QKV), model.q_width + 2 * model.kv_width, model.dim, {})
        if role != "gate_up":
            return Readers(self._kinds(role), *model.products()[role], {})
        kinds = self._kinds(*MLP)
        if (form := self.gate_form(kinds)) != "gated":
            return Readers(kinds[:2], model.hidden * (2 if form == "stacked" else 1), model.dim, {})
        fields = {"gated": True, "activation": model.activation}
        fields |= {"packed_out": True} if self.gives_tiles(kinds) else {}
        return Readers(kinds[:2], model.hidden, model.dim, fields)

    def _kinds(self, *names: str) -> list[str]:
        """The formats of matrices of this layer, or of the whole model."""
        return [self.format_of(self.at(name)) for name in names]

    def _next_norm(self, name: str) -> tuple[int, str, str, tuple[str, ...]]:
        """What reads the residual stream behind the product `name`: its layer, role, norm and matrices."""
        model = self.model
        if name == "o_proj":
            return self.layer, "gate_up", model.block.mlp_norm, ("gate_proj", "up_proj")
        if self.layer + 1 < model.shape.n_layers:
            return self.layer + 1, "qkv", model.block.attention_norm, QKV
        return -1, "lm_head", "norm", (model.head,)

    def _leaves_normed(self, name: str) -> bool:
        """Whether the product `name` can leave digits for the norm behind it."""
        norm, block = self._next_norm(name)[2], self.model.block
        alone = not {"o_proj": block.attention_post_norm, "down_proj": block.mlp_post_norm}[name]
        kinds = self._kinds_behind(name)
        leaves = self.leaves_for(self._kinds(name), kinds) and self.takes_halves(kinds, self.model.dim)
        return alone and bool(norm) and leaves

    def _kinds_behind(self, name: str) -> list[str]:
        """The formats of the matrices behind the norm behind the product `name`."""
        layer, _, _, names = self._next_norm(name)
        return [self.format_of(each if layer < 0 else f"layers.{layer}.{each}") for each in names]

    def _held(self, of: str | Ref) -> Tensor:
        """A tensor, or the one that something is a part of."""
        return self.tensors[of.tensor if isinstance(of, Ref) else of]
