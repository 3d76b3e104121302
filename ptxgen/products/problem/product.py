"""What a product is told, of one token or of several: the fields of Gemv and Gemm, parameters, geometry, and the
reference. Its code is put together in `compose.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ptxgen import rules
from ptxgen.attention.decode.plan import chip_name
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32, u8
from ptxgen.idioms.programmatic import programmatic_rules
from ptxgen.kernel import field
from ptxgen.launch import Extent, Launch, Param, buffer
from ptxgen.products.geometry.groups import FEW_WORDS, Geometry, choose, choose_for_tensor_cores
from ptxgen.products.geometry.runs import Runs, share_runs
from ptxgen.products.geometry.split_k import sharing
from ptxgen.products.problem.reference import drawn_weight, multiplied, normed
from ptxgen.products.problem.weighted import Weighted, activation_rules
from ptxgen.products.tokens.digits import digits_of
from ptxgen.tuning import ProductShape, in_force
from ptxgen.weights import weight_format, weight_formats

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.targets import Target
    from ptxgen.weights.format import WeightFormat


KEPT_FREE = 4096  # of shared memory, for sums
KEPT_FOR_SLOTS = 10240  # the same, of one token on tensor cores


def input_rules(
    k: int, weights: str, norm: str, eps: float, norm_offset: float, name: str = "weights"
) -> Iterator[str]:
    """Reasons against the inputs of a product, their norm and the format of the weights, the field `name`."""
    yield from rules.between("k", k, 1, 1 << 17)
    known = list(rules.one_of(name, weights, tuple(weight_formats())))
    yield from known
    if not known and k % weight_format(weights).block_cols:
        step = weight_format(weights).block_cols
        yield from rules.multiple_of("k", k, step, step, 1 << 17)
    yield from rules.one_of("norm", norm, ("", "rms"))
    yield from rules.between("eps", eps, 0.0, 1.0)
    yield from rules.between("norm_offset", norm_offset, -16.0, 16.0)


def most_columns(kind: WeightFormat, target: Target) -> int:
    """Columns of a row of x that have room in shared memory, in whole tiles of a format."""
    return (target.shared_limit - KEPT_FREE) // 4 // kind.tile_k * kind.tile_k


class Tokens(NamedTuple):
    """The first row of x of a CTA, and how many rows there are in all."""

    first: Reg
    rows: Reg


@dataclass(frozen=True, eq=False)
class Product(Weighted):
    """out = x · weightᵀ with what stands around it; see Gemv."""

    n: int
    k: int
    weights: str = "f16"
    norm: str = ""
    eps: float = field(default=1e-6, silent="beside squares about 1 it is less than a comparison tells")
    norm_offset: float = 0.0
    bias: bool = field(default=False, doc="a vector is added to every row")
    activation: str = ""
    gated: bool = False
    residual: bool = field(default=False, doc="the residual stream is added")
    programmatic: bool = False

    most_tokens = 1  # rows of x that a CTA without tensor cores takes at most
    tensor_tokens = 1  # and with them, exactly
    group_axis = "ctaid.x"  # of the grid, along which groups of records are counted

    def rules(self) -> Iterator[str]:
        yield from rules.between("n", self.n, 1, 1 << 20)
        yield from input_rules(self.k, self.weights, self.norm, self.eps, self.norm_offset)
        yield from activation_rules(self)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)
        most = most_columns(self.kind, target)
        if self.padded_k > most and self.stages(target):
            yield f"k: must be at most {most} on {target}, where a row of x stays in shared memory (got {self.k})"

    # -- what follows from the fields ------------------------------------------------------------------------------

    @property
    def padded_k(self) -> int:
        """Columns of all tiles of a record."""
        return self.kind.tiles(self.k) * self.kind.tile_k

    def on_tensor_cores(self, target: Target) -> bool:
        """Whether tensor cores multiply."""
        return False

    def staged_bytes(self, digits: bool) -> int:
        """Bytes of a row of x in shared memory, as f32 or as digits."""
        return self._digit_bytes(self.padded_k) if digits else 4 * self.padded_k

    def _digit_bytes(self, columns: int) -> int:
        """Of so many columns as digits."""
        return digits_of(self.kind).bytes_of(self.kind, columns)

    def geometry(self, target: Target, *, shares_k: bool = True) -> Geometry | Runs:
        """How the work is shared out; `shares_k`: CTAs of a cluster may share k."""
        kind = self.kind
        records, tiles = kind.records(self.n), kind.tiles(self.k)
        if self.streams(target):
            shape = ProductShape(chip_name(target), self.weights, self.n, self.k, self.gated, self.programmatic)
            choice, since_sm_90 = in_force().product(shape), target.includes_any(("sm_90",))
            can_share = shares_k and since_sm_90
            if choice is not None and not can_share:
                choice = replace(choice, split=1)
            elif choice is None and can_share and not self.gated:
                choice = sharing(records, kind, self.k, programmatic=self.programmatic)
            return share_runs(
                records,
                self.parts,
                kind,
                self.k,
                since_sm_90=since_sm_90,
                programmatic=self.programmatic,
                choice=choice,
            )
        if self.on_tensor_cores(target):
            return choose_for_tensor_cores(records, tiles, self.tensor_tokens, kind.words)
        # sums of two matrices leave registers for half of the tokens
        crowded = self.gated and kind.words > FEW_WORDS
        tokens = max(1, self.most_tokens // 2) if crowded else self.most_tokens
        return choose(records, tiles, tokens, 4 * self.padded_k, target.shared_limit)

    def row_extent(self) -> Extent:
        """Rows of x and out."""
        return 1

    def params(self) -> tuple[Param, ...]:
        rows, kind = self.row_extent(), self.kind
        out = [buffer("x", f32, rows, self.k, align=16 if self.k % 4 == 0 else 4)]
        out.append(buffer("weight", u8, self.parts * kind.records(self.n), kind.record_bytes(self.k)))
        if self.norm:
            out.append(buffer("norm_weight", f32, self.k, align=16 if self.k % 4 == 0 else 4))
        if self.bias:
            out.append(buffer("bias", f32, self.n, align=4))
        out.append(buffer("out", f32, rows, self.n, access="inout" if self.residual else "out", align=4))
        return tuple(out)

    def grid(self, at: Geometry | Runs) -> tuple[Extent, Extent, Extent]:
        """CTAs; the one that counts groups of records is `group_axis`."""
        return (at.launched, 1, 1)

    def launch(self, target: Target) -> Launch:
        at = self.geometry(target)
        shared, block, cluster = self.shared(target, at), (at.threads, 1, 1), (at.split, 1, 1)
        return Launch(self.grid(at), block, shared, cluster, programmatic=self.programmatic)

    def shared(self, target: Target, at: Geometry | Runs) -> int:
        """Bytes of dynamic shared memory."""
        if isinstance(at, Runs):
            return self._digit_bytes(at.tiles * self.kind.tile_k)
        return at.tokens * self.staged_bytes(self.on_tensor_cores(target)) if self.stages(target) else 0

    def template(self, target: Target) -> str:
        return "stream" if self.streams(target) else "product"

    def streams(self, target: Target) -> bool:
        """Whether one token is multiplied on tensor cores, by `Stream`."""
        return self.tensor_tokens == 1 and self.on_tensor_cores(target)

    def stages(self, target: Target) -> bool:
        """Whether x is brought to shared memory."""
        return self.tensor_tokens == 1 or not self.on_tensor_cores(target)

    def tokens_of(self, b: Builder, at: Geometry) -> Tokens | None:
        """The rows of x of this CTA; None where there is one row."""
        b.without("rows")
        return None

    # -- example and reference -----------------------------------------------------------------------------------------

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {"weight": drawn_weight(rng, self.kind, self.n, self.k, self.parts)}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        x = a["x"].astype(np.float64)
        if self.norm:
            x = normed(x, self.eps, self.norm_offset, a["norm_weight"])
        y = multiplied(self, x, a)
        if self.residual:
            y = y + a["out"].astype(np.float64)
        return {"out": y.astype(np.float32)}
