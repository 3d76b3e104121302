"""Which ops write rows as the tiles that the next product reads: in batches of 9 to 64 sequences also norms and
attention do, so that no separate launch norms or packs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxgen.dtypes import bf16
from ptxgen.models.program import Ref
from ptxgen.models.step.products import Products
from ptxgen.models.step.row_forms import FEW
from ptxgen.products.wgmma.epilogue.norms import SQUARED, squares_shape
from ptxgen.products.wgmma.tiling.shape import MOST_ROWS_FIRST
from ptxgen.products.wgmma.tokens.layout import DIGITS, PADDED
from ptxgen.products.wgmma.tokens.layout import shape as tile_shape


@dataclass(kw_only=True)
class TiledProducts(Products):
    """Products of a batch, as far as they read and leave tiles of bf16 rows."""

    def reads_tiles(self, kinds: Sequence[str], k: int) -> bool:
        """Whether products with weights of these formats read k columns of a batch as tiles of bf16 rows that another
        op may leave; not of invariant batches, whose rows are rounded alike however many there are."""
        some = self.step == "batch" and not self.batch_invariant and FEW < self.rows <= MOST_ROWS_FIRST
        some = some and self.packs(kinds, k)
        others = self.digits(kinds, k) or self.in_units(kinds, k)  # units of whole rows
        return some and not others and self.scale_group(kinds, k) is None

    def _left_tiles(self, role: str, tokens: int) -> str:
        """Memory for tiles of so many that a product leaves for the norm before `role`. It writes no columns past the
        last: where blocks have such, they stay zero, in memory that all layers share."""
        dim = self.model.dim
        if dim % PADDED == 0:
            return self._packed_rows(role, dim, tokens)
        shape = self._extents(tile_shape(dim, tokens, DIGITS[self._rounding]))
        return self.tensor(f"{role}.tiles{tokens}", "state", shape, bf16, zeroed=True)

    def _attended_tiles(self) -> str:
        """Memory for what attention makes, as such tiles; rows that no sequence has, and columns past the last, stay
        zero. "" where the product of o reads something else."""
        model, kinds = self.model, self._kinds("o_proj")
        if not self.reads_tiles(kinds, model.q_width):
            return ""
        tokens = self._tokens_of("o_proj")
        shape = self._extents(tile_shape(model.q_width, tokens, DIGITS[self._rounding]))
        return self.tensor(f"attention.tiles{tokens}", "state", shape, bf16, zeroed=True)  # layers may have several

    def _tokens_of(self, role: str) -> int:
        """Tokens of a tile for the products of `role`."""
        readers = self.readers(role)
        if self.rows > MOST_ROWS_FIRST and readers.fields.get("packed_out") and (both := self._gate_tokens()):
            return both
        return self._tile_tokens(readers.kinds, readers.n, readers.k, **readers.fields)

    def _leave_normed(self, name: str, x: str | Ref) -> tuple[dict[str, str | Ref], dict[str, Any]]:
        block, dim, held = self.model.block, self.model.dim, self._held(x)
        alone = not {"o_proj": block.attention_post_norm, "down_proj": block.mlp_post_norm}[name]
        tiled = self.is_packed(x) and not self.is_in_digits(x) and held.dtype == bf16
        if not (tiled and alone and self.reads_tiles(self._kinds_behind(name), dim) and dim % SQUARED == 0):
            return super()._leave_normed(name, x)
        here, tokens = self.layer, held.shape[-2]
        self.layer, role, norm, _ = self._next_norm(name)
        given: dict[str, str | Ref] = {}
        if norm and self._tokens_of(role) == tokens:
            tiles = self.normed[self.at(norm)] = self._left_tiles(role, tokens)
            squares = self.tensor(f"{tiles}.squares", "scratch", self._extents(squares_shape(dim)))
            given = {"norm_weight": self._norm_weight(norm), "digits": tiles, "out_squares": squares}
        self.layer = here
        return given, {"norm_out": True, "norm_offset": block.norm_offset} if given else {}
