"""The products of a step: which matrices make one, in which order their rows lie, and by which kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptxgen.dtypes import DType, bf16, e4m3, f16, f32
from ptxgen.models.program import Part, Ref
from ptxgen.models.spec import QKV
from ptxgen.models.step.product_inputs import ProductInputs
from ptxgen.models.step.row_forms import LONG, STACK
from ptxgen.products.digits_bf16 import geometry as bf16_geometry
from ptxgen.products.problem.product import most_columns
from ptxgen.targets import target as parse_target
from ptxgen.weights import weight_format

# what `best` says of a packed product, beside the tokens of its rows
TILE = (
    "tile_rows", "split", "by_memory", "share", "stream", "carried", "evict_first", "slices", "last_tiles",
    "last_split",
)  # fmt: skip


@dataclass(kw_only=True)
class Products(ProductInputs):
    """A step as far as its products go."""

    def _part(self, name: str) -> Part:
        """A product of this layer in the file."""
        return Part(self.at(name), self.model.products()[name][0], self._pairs(name))

    def _bias(self, name: str) -> Part:
        """The bias of a product, where the model has one."""
        return Part(f"{self.at(name)}.bias", self.model.products()[name][0], self._pairs(name))

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
            fields |= self._divided_out
            given["squares"] = f"{x}.squares"
        if self.is_in_digits(x):
            if self.tensors[str(x)].dtype == bf16:
                fields |= {"precision": self._rounding, "halves": bf16_geometry.has_spans(weight_format(held.format))}
            kernel, wanted = "digit_gemm", {"n": n, "k": k, "weights": held.format, **fields}
            chosen = self._digit_gemm(**wanted)
            fields |= {"tokens": chosen.tokens, "split": chosen.split}
            if chosen.of_halves:
                fields["share"] = chosen.share
        elif self.is_packed(x):
            kernel, sizes = "packed_gemm", {"rows": rows}
            given |= self._beside_tiles(str(x), held.format)
            fields |= self._tile_fields(str(x), n=n, k=k, weights=held.format, bias=bool(bias), **fields)
        self.op(kernel, role, given, sizes, n=n, k=k, weights=held.format, bias=bool(bias), **fields)

    @property
    def _divided_out(self) -> dict[str, Any]:
        """Fields of a product whose results are divided by the roots of its rows' mean squares."""
        return {"norm": "rms", "eps": self.model.norm_eps}

    def _beside_tiles(self, x: str, kind: str) -> dict[str, str | Ref]:
        """What a product with weights of a format reads beside rows in tiles."""
        of = self.tensors[x].dtype
        given: dict[str, str | Ref] = {"x_scales": f"{x}.scales"} if of in (e4m3, f16) else {}
        return given | ({"x_sums": f"{x}.sums"} if of == f16 and weight_format(kind).has_mins else {})

    def _tile_fields(self, x: str, **fields: Any) -> dict[str, Any]:
        """Of a product with these fields that reads x in tiles, the fields that follow from x, and its own tile."""
        held = self.tensors[x]
        found = {"tokens": held.shape[-2], "x_dtype": held.dtype, "precision": self._rounding}
        found |= {"by_row": True} if held.dtype == f16 else {}
        tiles = self._tiles(**fields, **found)
        return found | {name: getattr(tiles, name) for name in TILE}

    def _stays(self, k: int, name: str) -> bool:
        """Whether a row of so many columns has room in shared memory, where the kernel of one token keeps it, beside
        weights of a format; that of several rows reads it from memory."""
        kind = weight_format(name).fitted(k)
        return kind.tiles(k) * kind.tile_k <= most_columns(kind, parse_target(self.target))

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
