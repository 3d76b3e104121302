"""The inputs of a step's products: rows that are normed, and packed in the layout that each product reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import DType, bf16, e4m3, f16, f32, u8
from ptxgen.launch import Extent, evaluate
from ptxgen.models.program import Pairs, Part, Ref
from ptxgen.models.step.row_forms import RowForms
from ptxgen.products.digits_bf16 import layout as bf16_layout
from ptxgen.products.digits_s8 import layout
from ptxgen.products.wgmma.tokens.layout import DIGITS, DIGITS_BY_ROW, scale_shape, sum_shape
from ptxgen.products.wgmma.tokens.layout import shape as tile_shape
from ptxgen.weights.e4m3 import BLOCK

if TYPE_CHECKING:
    from ptxgen.kernels.digit_gemm import DigitGemm
    from ptxgen.kernels.packed_gemm import PackedGemm


@lru_cache(maxsize=1024)
def _fastest(rows: int, fields: tuple[tuple[str, Any], ...]) -> PackedGemm:
    from ptxgen.kernels.packed_gemm import PackedGemm

    return PackedGemm.best(rows, **dict(fields))


@lru_cache(maxsize=1024)
def _tokens_of_both(rows: int, first: tuple[tuple[str, Any], ...], then: tuple[tuple[str, Any], ...]) -> int:
    from ptxgen.kernels.packed_gemm import PackedGemm
    from ptxgen.products.wgmma.cost_model.choice import tokens_of_both

    return tokens_of_both(PackedGemm, dict(first), dict(then), rows)


@lru_cache(maxsize=1024)
def _fewest(rows: int, fields: tuple[tuple[str, Any], ...]) -> DigitGemm:
    from ptxgen.kernels.digit_gemm import DigitGemm

    return DigitGemm.best(rows, **dict(fields))


@dataclass(kw_only=True)
class ProductInputs(RowForms):
    """The ops that leave rows as products read them; `normed`: digits that a product has left for a norm, by its
    weights."""

    normed: dict[str, str] = field(default_factory=dict)

    def _input(self, role: str, x: str | Ref, norm: str, **more: Any) -> tuple[str | Ref, str]:
        """What the products of `role` read, told `more`, and the norm that they apply themselves: of one row x; several
        rows are normed once, before, and packed where wgmma multiplies them."""
        kinds, n, k, fields = self.readers(role)
        fields |= more
        if self.is_token(self.rows):
            if self._held(x).dtype == f32:
                return x, norm
            return self._packed(role, x, k, norm, kinds, self._tile_tokens(kinds, n, k, **fields)), ""
        assert isinstance(x, str), "several rows are a tensor of their own"
        if norm and self.at(norm) in self.normed:
            return self.normed[self.at(norm)], norm
        if self.halves(kinds, n * k * (2 if fields.get("gated") else 1), k) and not self.takes_bytes(role, kinds):
            return (self._half_rows(role, x, k, norm, kinds) if self.packs_halves(kinds, norm) else x), ""
        if self.digits(kinds, k):
            return self._digit_rows(role, x, k, norm), ""
        if self.in_units(kinds, k) or self.packs(kinds, k):
            return self._packed(role, x, k, norm, kinds, self._tile_tokens(kinds, n, k, **fields)), ""
        if not norm:
            return x, ""
        out = self.scratch(f"{norm}.out", k)
        self._rms(norm, norm, x, out)
        return out, ""

    def _norm_weight(self, name: str) -> str:
        width = self.model.norms()[name] if self.layer >= 0 else self.model.dim
        return self.vector(self.at(name), Part(self.at(name), width, self._pairs(name)))

    def _pairs(self, name: str = "q_proj") -> Pairs | None:
        """How rows of q and k, and weights of their heads' norms, lie other than in the file: what rotates together is
        neighbours, so that a lane can rotate its own results. Not where a norm of all heads or scales of blocks know
        the file's order."""
        model = self.model
        if name not in ("q_proj", "k_proj", "q_norm", "k_norm") or model.rope_style == "norm":
            return None
        rope, head = model.layer(self.layer).rope, model.shape.head_dim
        if rope is None or model.block.qk_norm == "row":
            return None
        in_blocks = "e4m3_block" in (self.format_of(self.at(each)) for each in ("q_proj", "k_proj"))
        return None if in_blocks and BLOCK % head else Pairs(head, rope.rotary_dim)

    def _norm_fields(self) -> dict[str, Any]:
        """Fields of a product that norms its inputs."""
        return {"norm": "rms", "eps": self.model.norm_eps, "norm_offset": self.model.block.norm_offset}

    def _rms(self, role: str, norm: str, x: str | Ref, out: str | Ref, rows: int = 0, **fields: Any) -> None:
        weight = self._norm_weight(norm)
        width, model = self.tensors[weight].size, self.model
        given = {"x": x, "weight": weight, "out": out}
        fields |= {"dim": width, "eps": model.norm_eps, "offset": model.block.norm_offset}
        self.op("rms_norm", role, given, {"rows": rows or self.rows}, **fields)

    def _digit_rows(self, role: str, x: str, k: int, norm: str) -> str:
        """Rows of x as digits of bytes, normed."""
        shape = (-(-self.rows // layout.TOKENS), k // layout.UNIT, layout.UNIT_BYTES)
        out = self.tensor(self.at(f"{role}.digits"), "scratch", shape, u8)
        self._pack_digits(role, x, out, k, norm)
        return out

    def _half_rows(self, role: str, x: str, k: int, norm: str, kinds: Sequence[str]) -> str:
        """Rows of x as bf16 digits, normed, for weights of these formats."""
        out, digits = self._halves_of(role, k, kinds), bf16_layout.DIGITS[self._rounding]
        self._pack_digits(role, x, out, k, norm, halves=digits, sums=self.has_sums(kinds))
        return out

    def _leave_normed(self, name: str, x: str | Ref) -> tuple[dict[str, str | Ref], dict[str, Any]]:
        """What the product `name`, which reads x, is told so that it leaves digits for the norm behind it."""
        of_halves = self.is_in_digits(x) and self.tensors[str(x)].dtype == bf16
        if not (of_halves and self._leaves_normed(name)):
            return {}, {}
        here, dim, kinds = self.layer, self.model.dim, self._kinds_behind(name)
        self.layer, role, norm, _ = self._next_norm(name)
        digits = self.normed[self.at(norm)] = self._halves_of(role, dim, kinds)
        squares = self.tensor(f"{digits}.squares", "scratch", self._extents(bf16_layout.squares_shape(dim)))
        given: dict[str, str | Ref] = {"norm_weight": self._norm_weight(norm), "digits": digits}
        self.layer = here
        fields = {"norm_out": True, "norm_offset": self.model.block.norm_offset}
        return {**given, "out_squares": squares}, fields | self._for_others(self._kinds(name), kinds)

    def _halves_of(self, role: str, k: int, kinds: Sequence[str]) -> str:
        """Scratch memory for rows as bf16 digits, for weights of these formats."""
        digits, sums = bf16_layout.DIGITS[self._rounding], self.has_sums(kinds)
        shape = self._extents(bf16_layout.shape(k, digits, sums=sums))
        return self.tensor(self.at(f"{role}.digits"), "scratch", shape, bf16)

    def _pack_digits(self, role: str, x: str, out: str, k: int, norm: str, **fields: Any) -> None:
        given: dict[str, str | Ref] = {"x": x, "out": out}
        fields |= {"dim": k}
        if norm:
            given["norm_weight"] = self._norm_weight(norm)
            fields |= self._norm_fields()
        self.op("pack_digits", f"{role}.digits", given, {"rows": self.rows}, **fields)

    def _packed(self, role: str, x: str | Ref, k: int, norm: str, kinds: Sequence[str], tokens: int) -> str:
        """Rows of x in tiles of so many, normed, for products with weights of these formats."""
        group, by_row = self.scale_group(kinds, k), self.in_units(kinds, k)
        out = self._packed_rows(role, k, tokens, f16 if by_row else bf16 if group is None else e4m3)
        given: dict[str, str | Ref] = {"x": x, "out": out}
        source = self._held(x).dtype
        fields: dict[str, Any] = {"dim": k, "tokens": tokens, "precision": self._rounding, "src_dtype": source}
        if group is not None:
            shape = self._extents(scale_shape(k, tokens, group))
            given["scales"] = self.tensor(f"{out}.scales", "scratch", shape)
            fields |= {"dtype": e4m3, "group": group}
        if by_row:
            for name, extents, of in (("scales", scale_shape(k, tokens, 0), f32), ("sums", sum_shape(k, tokens), f16)):
                given[name] = self.tensor(f"{out}.{name}", "scratch", self._extents(extents), of)
            fields |= {"dtype": f16, "by_row": True}
        if norm:
            given["norm_weight"] = self._norm_weight(norm)
            fields |= self._norm_fields()
        self.op("pack_tokens", f"{role}.pack", given, {"rows": self.rows}, **fields)
        return out

    def _packed_rows(self, role: str, k: int, tokens: int, of: DType = bf16) -> str:
        """Scratch memory for rows in tiles of so many."""
        digits = (DIGITS_BY_ROW if of == f16 else DIGITS)[self._rounding]
        shape = self._extents(tile_shape(k, tokens, digits, of))
        return self.tensor(self.at(f"{role}.packed"), "scratch", shape, of)

    def _extents(self, shape: tuple[Extent, ...]) -> tuple[int, ...]:
        return tuple(evaluate(extent, {"rows": self.rows}) for extent in shape)

    def _tile_tokens(self, kinds: Sequence[str], n: int, k: int, **fields: Any) -> int:
        """Tokens of a tile for products with weights of these formats."""
        of = bf16 if self.scale_group(kinds, k) is None else e4m3
        fields |= {"x_dtype": of, "precision": self._rounding}
        fields |= {"x_dtype": f16, "by_row": True} if self.in_units(kinds, k) else {}
        return min(self._tiles(n=n, k=k, weights=kind, **fields).tokens for kind in kinds)

    def _gate_tokens(self) -> int:
        """Tokens of a tile for gate and up, which have one format and leave bf16 tiles to the product of down; 0 where
        no number that `tokens_of_both` tries is legal for both."""
        gate, down = self.readers("gate_up"), self.readers("down_proj")
        more: dict[str, Any] = {"x_dtype": bf16, "precision": self._rounding, "programmatic": self.programmatic}
        first = {"n": gate.n, "k": gate.k, "weights": gate.kinds[0], **gate.fields, **more}
        alone = bool(self.model.block.mlp_post_norm)
        then = {"n": down.n, "k": down.k, "weights": down.kinds[0], "residual": not alone, **more, **self._alike}
        return _tokens_of_both(self.rows, tuple(sorted(first.items())), tuple(sorted(then.items())))

    def _tiles(self, **fields: Any) -> PackedGemm:
        """The packed product with these fields whose tiles are likely the fastest."""
        more = {"programmatic": self.programmatic, **self._alike}
        return _fastest(self.rows, tuple(sorted((fields | more).items())))

    @property
    def _alike(self) -> dict[str, int]:
        """Fields without which a row's sums would have another order in tiles of the last turn."""
        return {"last_split": 0} if self.batch_invariant else {}

    def _digit_gemm(self, **fields: Any) -> DigitGemm:
        """The product of digits with these fields whose shares are likely the fastest."""
        return _fewest(self.rows, tuple(sorted(fields.items())))
