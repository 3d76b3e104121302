"""The products of a step: which matrices make one, in which order their rows lie, and what several rows go through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import DType, bf16, e4m3, f16, f32, u8
from ptxgen.launch import Extent, evaluate
from ptxgen.models.draft import Draft
from ptxgen.models.program import Pairs, Part, Ref, Tensor
from ptxgen.models.spec import ModelSpec
from ptxgen.products.bytes import layout
from ptxgen.products.bytes.columns import TokenColumns
from ptxgen.products.bytes.geometry import MOST_UNITS, runs_on
from ptxgen.products.few import geometry as few
from ptxgen.products.few import layout as few_layout
from ptxgen.products.product import most_columns
from ptxgen.products.wgmma.tokens import COLUMNS, DIGITS, DIGITS_BY_ROW, columns, scale_shape, sum_shape
from ptxgen.products.wgmma.tokens import shape as tile_shape
from ptxgen.targets import target as parse_target
from ptxgen.weights import weight_format
from ptxgen.weights.e4m3 import BLOCK, E4m3
from ptxgen.weights.format import WeightFormat

if TYPE_CHECKING:
    from ptxgen.kernels.digit_gemm import DigitGemm
    from ptxgen.kernels.packed_gemm import PackedGemm

QKV = ("q_proj", "k_proj", "v_proj")
PRECISIONS = ("exact", "fast", "e4m3")
STACK = 16  # rows of a record: matrices of whole records are stacked without padding between them
# Rows from which wgmma is faster than mma.sync on rows of f32; of weights that are not quantised, from HALVES_FROM on.
PACKED_FROM, HALVES_FROM = {"exact": 32, "fast": 2, "e4m3": 2}, 16
HALVES = frozenset({"bf16", "f16"})
# Rows up to which codes of bytes are multiplied by digits of bytes: exactly, and faster than what is rounded.
DIGITS_TO = {"exact": 32, "fast": 8, "e4m3": 8}
# Weights of a product from which a launch that norms its rows makes bf16 digits of them, and from which rows do not go
# into tiles for wgmma. Where one product after the other reads and leaves digits, all do.
LARGE = 1 << 24
HALVES_FROM_WEIGHTS = {"exact": LARGE, "fast": 0}
# Weights of gate and up together, to which a model's K-quants read bf16 digits: three of them take longer than bytes
# where matrices are large, and save launches. Measured with 2.3e7 and 2.8e7, where they pay, and 1.2e8, where not.
SPANS_TO_WEIGHTS = {"exact": 1 << 25, "fast": 1 << 40}
# More rows than FEW are packed in f16 in units of their own, for wgmma, and up to UNITS_TO, by the weights' format ("":
# of others). Up to SOME exact ones are so before K-quants alone only where one number holds a weight and rows are not
# long: digits of bytes are faster elsewhere. From CENTRED_FROM on codes are centred.
FEW, SOME = 8, 16
K_QUANTS = ("q4_k", "q5_k", "q6_k")
ROUNDED_UNITS_TO = dict.fromkeys(K_QUANTS, 32) | {"": 0}
UNITS_TO = {
    "exact": dict.fromkeys((*K_QUANTS, "int4_g128"), 512) | {"": 64},
    "fast": ROUNDED_UNITS_TO,
    "e4m3": ROUNDED_UNITS_TO,
}
CENTRED_FROM = 33
LONG = 8192
# what `best` says of a packed product, beside the tokens of its rows
TILE = ("tile_rows", "split", "share", "stream", "carried", "evict_first", "slices", "last_tiles")
WIDE_TILE = 256  # columns to a multiple of which packed rows are filled up


@lru_cache(maxsize=1024)
def _fastest(rows: int, fields: tuple[tuple[str, Any], ...]) -> PackedGemm:
    from ptxgen.kernels.packed_gemm import PackedGemm

    return PackedGemm.best(rows, **dict(fields))


@lru_cache(maxsize=1024)
def _fewest(rows: int, fields: tuple[tuple[str, Any], ...]) -> DigitGemm:
    from ptxgen.kernels.digit_gemm import DigitGemm

    return DigitGemm.best(rows, **dict(fields))


@dataclass(kw_only=True)
class Products(Draft):
    """A step of `model` as far as its products go; `precision` is that of several rows."""

    model: ModelSpec
    step: str
    precision: str
    batch_invariant: bool
    normed: dict[str, str] = field(default_factory=dict)  # digits that a product has left for a norm, by its weights

    def is_token(self, rows: int) -> bool:
        """Whether so many rows go through the kernels of one token, whose sums have another order than others."""
        return rows == 1 and not self.batch_invariant

    def _held(self, of: str | Ref) -> Tensor:
        """A tensor, or the one that something is a part of."""
        return self.tensors[of.tensor if isinstance(of, Ref) else of]

    def _part(self, name: str) -> Part:
        """A product of this layer in the file."""
        return Part(self.at(name), self.model.products()[name][0], self._pairs(name))

    def _bias(self, name: str) -> Part:
        """The bias of a product, where the model has one."""
        return Part(f"{self.at(name)}.bias", self.model.products()[name][0], self._pairs(name))

    def _pairs(self, name: str = "q_proj") -> Pairs | None:
        """How rows of q and k lie other than in the file: what rotates together is neighbours, so that a product can
        rotate its own results. Not where a norm of heads or scales of blocks know the file's order."""
        model, rope = self.model, self.model.layer(self.layer).rope
        if name not in ("q_proj", "k_proj") or rope is None or model.rope_style == "norm" or model.block.qk_norm:
            return None
        head = model.shape.head_dim
        in_blocks = "e4m3_block" in (self.format_of(self.at(each)) for each in ("q_proj", "k_proj"))
        return None if in_blocks and BLOCK % head else Pairs(head, rope.rotary_dim)

    def _norm_weight(self, name: str) -> str:
        width = self.model.norms()[name] if self.layer >= 0 else self.model.dim
        return self.vector(self.at(name), Part(self.at(name), width))

    def _product(
        self, role: str, weight: str | Ref, n: int, k: int, x: str | Ref, out: str | Ref, *, norm: str = "",
        bias: str | Ref = "", rows: int = 0, beside: Mapping[str, str | Ref] | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """x `[rows, k]` times a matrix `[n, k]`; `norm` is the name of an RMS norm before it; `beside`: what else the
        kernel gets."""
        rows = rows or self.rows
        held = self._held(weight)
        given: dict[str, str | Ref] = {"x": x, "weight": weight, "out": out, **(beside or {})}
        if norm and self.is_token(rows):
            fields |= self._norm_fields()
            given["norm_weight"] = self._norm_weight(norm)
        if bias:
            given["bias"] = bias
        one = self.is_token(rows) and self._stays(k, held.format)
        kernel, sizes = ("gemv", {}) if one else ("gemm", {"rows": rows})
        if kernel == "gemm" and k > LONG and not self.is_packed(x):
            fields["programmatic"] = False  # its launch beside the product ahead takes a quarter longer
        if norm and self.is_packed(x):
            fields |= {"norm": "rms", "eps": self.model.norm_eps}
            given["squares"] = f"{x}.squares"
        if self.is_in_digits(x):
            if self.tensors[str(x)].dtype == bf16:
                fields |= {"precision": self._rounding, "halves": few.has_spans(weight_format(held.format))}
            kernel, wanted = "digit_gemm", {"n": n, "k": k, "weights": held.format, **fields}
            chosen = self._digit_gemm(**wanted)
            fields |= {"tokens": chosen.tokens, "split": chosen.split}
            if chosen.of_halves:
                fields["share"] = chosen.share
        elif self.is_packed(x):
            kernel, sizes, fields["tokens"] = "packed_gemm", {"rows": rows}, self.tensors[str(x)].shape[-2]
            fields |= {"x_dtype": self.tensors[str(x)].dtype, "precision": self._rounding}
            if fields["x_dtype"] in (e4m3, f16):
                given["x_scales"] = f"{x}.scales"
            if fields["x_dtype"] == f16:
                fields |= self._in_units(held.format)
                given |= {"x_sums": f"{x}.sums"} if weight_format(held.format).has_mins else {}
            tiles = self._tiles(n=n, k=k, weights=held.format, bias=bool(bias), **fields)
            fields |= {name: getattr(tiles, name) for name in TILE}
        self.op(kernel, role, given, sizes, n=n, k=k, weights=held.format, bias=bool(bias), **fields)

    def _stays(self, k: int, name: str) -> bool:
        """Whether a row of so many columns has room in shared memory, where the kernel of one token keeps it, beside
        weights of a format; that of several rows reads it from memory."""
        kind = weight_format(name).fitted(k)
        return kind.tiles(k) * kind.tile_k <= most_columns(kind, parse_target(self.target))

    def _digit_gemm(self, **fields: Any) -> DigitGemm:
        """The product of digits with these fields whose shares are likely the fastest."""
        return _fewest(self.rows, tuple(sorted(fields.items())))

    def _norm_fields(self) -> dict[str, Any]:
        """Fields of a product that norms its inputs."""
        return {"norm": "rms", "eps": self.model.norm_eps, "norm_offset": self.model.block.norm_offset}

    def _rms(self, role: str, norm: str, x: str | Ref, out: str | Ref, rows: int = 0, **fields: Any) -> None:
        weight = self._norm_weight(norm)
        width, model = self.tensors[weight].size, self.model
        given = {"x": x, "weight": weight, "out": out}
        fields |= {"dim": width, "eps": model.norm_eps, "offset": model.block.norm_offset}
        self.op("rms_norm", role, given, {"rows": rows or self.rows}, **fields)

    def _input(
        self, role: str, x: str | Ref, k: int, norm: str, kinds: Sequence[str], n: int, **fields: Any
    ) -> tuple[str | Ref, str]:
        """What the products of `role` read, with `n` rows of weights of these formats, and the norm that they apply
        themselves: of one row x; several rows are normed once, before, and packed where wgmma multiplies them."""
        if self.is_token(self.rows):
            if self._held(x).dtype == f32:
                return x, norm
            return self._packed(role, x, k, norm, kinds, self._tile_tokens(kinds, n, k, **fields)), ""
        assert isinstance(x, str), "several rows are a tensor of their own"
        if norm and self.at(norm) in self.normed:
            return self.normed[self.at(norm)], norm
        if self.halves(kinds, n * k * (2 if fields.get("gated") else 1), k, normed=bool(norm)):
            return (self._half_rows(role, x, k, norm, kinds) if norm else x), ""
        if self.digits(kinds, k):
            return self._digit_rows(role, x, k, norm), ""
        if self.integers(kinds, k) or self.packs(kinds, k):
            return self._packed(role, x, k, norm, kinds, self._tile_tokens(kinds, n, k, **fields)), ""
        if not norm:
            return x, ""
        out = self.scratch(f"{norm}.out", k)
        self._rms(norm, norm, x, out)
        return out, ""

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
        return few and takes and not self.integers(kinds, k)

    def takes_halves(self, kinds: Sequence[str], k: int) -> bool:
        """Whether products of a few rows of k columns can read bf16 digits, with weights of these formats."""
        formats = [weight_format(kind) for kind in kinds]
        some = self.step == "batch" and 1 < self.rows <= FEW and self._brings_digits(k, few_layout.UNIT)
        alike = len({few.has_spans(each) for each in formats}) == 1  # what packs x for one packs it for the others
        small = 2 * self.model.hidden * self.model.dim <= SPANS_TO_WEIGHTS[self._rounding]
        pays = small or not self.has_sums(kinds)
        return some and alike and pays and all(few.takes(each, k, self._rounding) for each in formats)

    def has_sums(self, kinds: Sequence[str]) -> bool:
        """Whether bf16 digits for weights of these formats have sums beside them."""
        return few.has_spans(weight_format(kinds[0]))

    def halves(self, kinds: Sequence[str], weights: int, k: int, *, normed: bool) -> bool:
        """Whether rows of k columns become bf16 digits where they are `normed`, which is a launch anyway, and else stay
        as they are: for so many weights of these formats."""
        if not self.takes_halves(kinds, k):
            return False
        if HALVES.isdisjoint(kinds):
            return normed
        return weights >= (HALVES_FROM_WEIGHTS[self._rounding] if normed else LARGE)

    def reads_halves(self, name: str, k: int) -> bool:
        """Whether the product `name`, which adds to the residual stream, reads digits that the op before leaves."""
        kinds = self._kinds(name)
        large = self.model.dim * k >= LARGE or HALVES.isdisjoint(kinds)
        chunks = name != "o_proj" or not self.has_sums(kinds) or self.model.shape.head_dim % STACK == 0  # of attention
        return chunks and (large or self._leaves_normed(name)) and self.takes_halves(kinds, k)

    def _brings_digits(self, k: int, unit: int = layout.UNIT) -> bool:
        """Whether products bring digits of k columns to shared memory, in units of so many."""
        whole = k % unit == 0 and k // layout.UNIT <= MOST_UNITS
        return whole and not self.batch_invariant and runs_on(parse_target(self.target))

    def integers(self, kinds: Sequence[str], k: int) -> bool:
        """Whether rows of k columns are packed in units of their own for weights of these formats."""
        formats = [weight_format(kind).fitted(k) for kind in kinds]
        some = FEW < self.rows <= min(map(self._most_integers, formats)) and not self.batch_invariant
        found = [each.integer_digits for each in formats]
        some &= all(found) and all(each.tile_k >= COLUMNS for each in formats)
        if self.precision == "exact" and self.rows <= SOME and all(each.span for each in formats):
            some &= max(found) == 1 and k <= LONG  # else digits of bytes
        return some and parse_target(self.target).includes_any(("sm_90a",))

    def _most_integers(self, kind: WeightFormat) -> int:
        """Rows that are packed so at most for weights of a format."""
        most = UNITS_TO[self.precision]
        return most.get(kind.name, most[""])

    def _digit_rows(self, role: str, x: str, k: int, norm: str) -> str:
        """Rows of x as digits of bytes, normed."""
        shape = (-(-self.rows // layout.TOKENS), k // layout.UNIT, layout.UNIT_BYTES)
        out = self.tensor(self.at(f"{role}.digits"), "scratch", shape, u8)
        self._pack_digits(role, x, out, k, norm)
        return out

    def _half_rows(self, role: str, x: str, k: int, norm: str, kinds: Sequence[str]) -> str:
        """Rows of x as bf16 digits, normed, for weights of these formats."""
        out, digits = self._halves_of(role, k, kinds), few_layout.DIGITS[self._rounding]
        self._pack_digits(role, x, out, k, norm, halves=digits, sums=self.has_sums(kinds))
        return out

    def _next_norm(self, name: str) -> tuple[int, str, str, tuple[str, ...]]:
        """What reads the residual stream behind the product `name`: its layer, role, norm and matrices."""
        model = self.model
        if name == "o_proj":
            return self.layer, "gate_up", model.block.mlp_norm, ("gate_proj", "up_proj")
        if self.layer + 1 < model.shape.n_layers:
            return self.layer + 1, "qkv", model.block.attention_norm, QKV
        return -1, "lm_head", "norm", ("embed_tokens" if model.tied else "lm_head",)

    def _leaves_normed(self, name: str) -> bool:
        """Whether the product `name` can leave digits for the norm behind it."""
        norm, block = self._next_norm(name)[2], self.model.block
        alone = not {"o_proj": block.attention_post_norm, "down_proj": block.mlp_post_norm}[name]
        kinds = self._kinds_behind(name)
        alike = self.has_sums(kinds) == self.has_sums(self._kinds(name))
        return alone and bool(norm) and alike and self.takes_halves(kinds, self.model.dim)

    def _kinds_behind(self, name: str) -> list[str]:
        """The formats of the matrices behind the norm behind the product `name`."""
        layer, _, _, names = self._next_norm(name)
        return [self.format_of(each if layer < 0 else f"layers.{layer}.{each}") for each in names]

    def _leave_normed(self, name: str, x: str | Ref) -> tuple[dict[str, str | Ref], dict[str, Any]]:
        """What the product `name`, which reads x, is told so that it leaves digits for the norm behind it."""
        of_halves = self.is_in_digits(x) and self.tensors[str(x)].dtype == bf16
        if not (of_halves and self._leaves_normed(name)):
            return {}, {}
        here, dim, kinds = self.layer, self.model.dim, self._kinds_behind(name)
        self.layer, role, norm, _ = self._next_norm(name)
        digits = self.normed[self.at(norm)] = self._halves_of(role, dim, kinds)
        squares = self.tensor(f"{digits}.squares", "scratch", self._extents(few_layout.squares_shape(dim)))
        given: dict[str, str | Ref] = {"norm_weight": self._norm_weight(norm), "digits": digits}
        self.layer = here
        return {**given, "out_squares": squares}, {"norm_out": True, "norm_offset": self.model.block.norm_offset}

    def _halves_of(self, role: str, k: int, kinds: Sequence[str]) -> str:
        """Scratch memory for rows as bf16 digits, for weights of these formats."""
        digits, sums = few_layout.DIGITS[self._rounding], self.has_sums(kinds)
        shape = self._extents(few_layout.shape(k, digits, sums=sums))
        return self.tensor(self.at(f"{role}.digits"), "scratch", shape, bf16)

    def _pack_digits(self, role: str, x: str, out: str, k: int, norm: str, **fields: Any) -> None:
        given: dict[str, str | Ref] = {"x": x, "out": out}
        fields |= {"dim": k}
        if norm:
            given["norm_weight"] = self._norm_weight(norm)
            fields |= self._norm_fields()
        self.op("pack_digits", f"{role}.digits", given, {"rows": self.rows}, **fields)

    def packs(self, kinds: Sequence[str], k: int) -> bool:
        """Whether wgmma multiplies the rows of k columns with weights of these formats."""
        least = PACKED_FROM[self.precision]
        least = min(least, HALVES_FROM) if HALVES.issuperset(kinds) else least
        enough = self.rows >= least and not (self.batch_invariant and self.precision == "exact")
        wide = all(weight_format(kind).fitted(k).tile_k >= COLUMNS for kind in kinds)
        return enough and wide and parse_target(self.target).includes_any(("sm_90a",))

    @property
    def _rounding(self) -> str:
        """The precision of packed rows and of their products."""
        return "exact" if self.precision == "exact" else "fast"

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

    def _packed(self, role: str, x: str | Ref, k: int, norm: str, kinds: Sequence[str], tokens: int) -> str:
        """Rows of x in tiles of so many, normed, for products with weights of these formats."""
        group, by_row = self.scale_group(kinds, k), self.integers(kinds, k)
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
        by_row = self.integers(kinds, k)
        each = {kind: fields | (self._in_units(kind) if by_row else {}) for kind in kinds}
        return min(self._tiles(n=n, k=k, weights=kind, **own).tokens for kind, own in each.items())

    def _in_units(self, kind: str) -> dict[str, Any]:
        """Fields of a product of rows in units of their own with weights of a format."""
        centred = self._rounding == "exact" and self.rows >= CENTRED_FROM and weight_format(kind).has_mins
        return {"x_dtype": f16, "by_row": True} | ({"centred": True} if centred else {})

    def _tiles(self, **fields: Any) -> PackedGemm:
        """The packed product with these fields whose tiles are likely the fastest."""
        return _fastest(self.rows, tuple(sorted((fields | {"programmatic": self.programmatic}).items())))

    def _kinds(self, *names: str) -> list[str]:
        """The formats of matrices of this layer, or of the whole model."""
        return [self.format_of(self.at(name)) for name in names]

    def _biased(self) -> list[str]:
        """Which of the three have a bias."""
        return [name for name in QKV if name in self.model.biases]

    def _qkv_bias(self) -> str:
        """The biases of all three."""
        return self.vector(self.at("qkv.bias"), *map(self._bias, QKV))

    def _stacks(self) -> list[tuple[str, ...]]:
        """Which of the three matrices make one: of one format, of whole records, all or none with a bias."""
        if len(self._biased()) in (0, len(QKV)):
            for names in (QKV, QKV[:2]):
                whole = all(self.model.products()[name][0] % STACK == 0 for name in names)
                if whole and len({self.format_of(self.at(name)) for name in names}) == 1:
                    return [names, QKV[len(names) :]] if names != QKV else [QKV]
        return [(name,) for name in QKV]

    def _stacked(self, names: tuple[str, ...]) -> str:
        """The matrix of some of the three."""
        name = names[0] if len(names) == 1 else "".join(each[0] for each in names)
        return self.matrix(self.at(name), [self._part(each) for each in names], self.model.dim)

    def _products_of(
        self, names: tuple[str, ...], x: str | Ref, norm: str, *, whole_rows: bool = False, out_dtype: DType = f32
    ) -> Iterator[Ref]:
        """One product where one row reads the matrix, or where rows of all parts are wanted (`whole_rows`); else one
        for each part of it, so that its rows lie together."""
        dim, whole = self.model.dim, self._stacked(names)
        widths = {name: self.model.products()[name][0] for name in QKV}
        kind = weight_format(self.tensors[whole].format)
        taken = [names] if self.is_token(self.rows) or whole_rows else [(name,) for name in names]
        for group in taken:
            before = names[: names.index(group[0])]
            weight: str | Ref = whole
            if group != names:
                weight = Ref(whole, kind.nbytes(sum(widths[name] for name in before), dim) if before else 0)
            role, width = whole.rpartition(".")[2] if group == names else group[0], sum(widths[n] for n in group)
            out = self.tensor(self.at(f"{role}.out"), "scratch", (self.rows, width), out_dtype)
            narrow: dict[str, Any] = {} if out_dtype == f32 else {"out_dtype": out_dtype}
            self._product(role, weight, width, dim, x, out, norm=norm, bias=self._bias_of(group), **narrow)
            for name in group:
                at = sum(widths[each] for each in group[: group.index(name)])
                yield Ref(out, at * out_dtype.bytes) if len(group) > 1 else Ref(out)

    def _bias_of(self, names: tuple[str, ...]) -> str | Ref:
        """The bias of some of the three, or ""."""
        if len(self._biased()) == len(QKV):
            whole = self._qkv_bias()
            before = QKV[: QKV.index(names[0])]
            rows = sum(self.model.products()[name][0] for name in before)
            return whole if names == QKV else Ref(whole, rows * f32.bytes)
        biased = [name for name in names if name in self.model.biases]
        return self.vector(self.at(f"{names[0]}.bias"), self._bias(names[0])) if biased else ""
