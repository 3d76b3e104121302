"""What kernel types share that multiply rows of q, k and v, rotate them and append k and v. Owns no product."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths, rules
from ptxgen.dtypes import DType, f32
from ptxgen.idioms import kv_cache
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.kernel import KernelType
from ptxgen.launch import Launch, Param, buffer
from ptxgen.products.problem.heads import HEADS, head_rules
from ptxgen.spec.legality import draft

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target


class AppendedProduct(KernelType):
    """Base of a kernel type with the fields of a product, those of heads and a cache, `heads`, and `holds`."""

    max_len: int
    head_dim: int
    n_heads: int
    n_kv_heads: int
    kv_dtype: DType
    page_size: int
    page_layout: str
    ring: int
    precise: bool
    heads: str
    holds: int

    product_type: ClassVar[type[KernelType]]
    results: ClassVar[Callable[..., Any]]
    """What stores the product's results, by `heads=` and `first=`."""
    q_align: ClassVar[int]
    """Bytes to which rows of q are aligned."""

    # what a cache's idioms and a rotation ask of a spec
    batched, indirect, style = True, False, "norm"

    def product_fields(self) -> dict[str, Any]:
        """Fields of the product, but `n`."""
        raise NotImplementedError

    def rules(self) -> Iterator[str]:
        yield from head_rules(self)
        yield from rules.one_of("heads", self.heads, tuple(HEADS))
        own = {each.name for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        for reason in draft(self.product_type, self._fields())[1]:
            yield reason if reason.partition(":")[0] in own else f"k: the product's {reason}"

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from self.product.target_rules(target)

    @property
    def n(self) -> int:
        """Rows of q, k and v."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim

    @property
    def rows_of(self) -> range:
        """Which of them these are."""
        ends = [0, (self.n_heads + self.n_kv_heads) * self.head_dim, self.n]
        first, last = HEADS.get(self.heads, HEADS["qkv"])
        return range(ends[first], ends[last])

    def _fields(self) -> dict[str, Any]:
        return {"n": len(self.rows_of), **self.product_fields()}

    @property
    def product(self) -> Any:
        """The product alone."""
        return self.product_type(**self._fields())

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""
        return rotary.Rotation.of(self)

    def params(self) -> tuple[Param, ...]:
        q = buffer("q", f32, "rows", self.n_heads, self.head_dim, access="out", align=self.q_align)
        given = [param for param in self.product.params() if param.name != "out"]
        queries = [] if self.heads == "v" else [q]
        return (*given, *queries, *kv_cache.cache_params(self), kv_cache.position_param(True, False))

    def launch(self, target: Target) -> Launch:
        launch: Launch = self.product.launch(target)
        return launch

    def template(self, target: Target) -> str:
        return str(self.product.template(target))

    def build(self, b: Builder) -> None:
        product, results = self.product, type(self).results
        b.expose(spec=product)
        product.build_with(b, partial(results, heads=self, first=self.rows_of.start), releases=self.releases(b))

    def releases(self, b: Builder) -> Any:
        """Whether, or how, the next kernel may start before this one has ended: what the product's `build_with` asks
        for."""
        return not self.holds

    # -- example and reference -----------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        written = lengths.written_rows(self.max_len, True, sizes, self.ring)
        return {**super().ranges(sizes), **written, "n_rows": (0, sizes["rows"])}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {**self.product.given(rng, sizes), **kv_cache.given(self, rng, sizes)}

    def product_inputs(self, a: Mapping[str, Any]) -> dict[str, Any]:
        """What the product's reference takes of a launch's arrays."""
        return {param.name: a[param.name] for param in self.product.params() if param.name in a}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out: dict[str, np.ndarray] = {name: a[name].copy() for name in ("q", "k_cache", "v_cache") if name in a}
        own = slice(self.rows_of.start, self.rows_of.stop)
        rows, count = len(a["positions"]), int(np.ravel(a["n_rows"])[0])
        made = np.zeros((rows, self.n), np.float32)
        made[:, own] = self.product.reference(out=made[:, own], **self.product_inputs(a))["out"]
        q, k, v = np.split(made.reshape(rows, -1, self.head_dim), np.cumsum((self.n_heads, self.n_kv_heads)), 1)
        there = np.arange(rows) < count
        positions = np.where(there, a["positions"], -1).astype(np.int64)
        appended = {"k": rotary.rotate_rows(self.rotation, k, positions), "v": v}
        appended = {name: each for name, each in appended.items() if name in self.heads}
        kv_cache.append_rows(self, out, appended, positions, a)
        if self.heads == "v":
            return out
        rotated = rotary.rotate_rows(self.rotation, q, np.asarray(a["positions"], np.int64)).astype(np.float32)
        return {**out, "q": np.where(there[:, None, None], rotated, a["q"])}
