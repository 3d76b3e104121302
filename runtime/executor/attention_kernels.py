"""The kernels of an `Executor`: specs, scratch memory, and those that are bound once and updated. Owns no order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError
from ptxgen.runtime.core.bound import BoundKernel
from ptxgen.runtime.core.buffer import Buffer
from ptxgen.runtime.kv.kvcache import KvCache

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType


_OPTIONS = ("scale", "soft_cap", "window")  # that all of these kernels have


class AttentionKernels:
    """Kernels over the layers of a cache, with queries of `q_dtype`; `options` are those of `IncrementalAttention`.

    Scratch memory is shared by all layers: they run one after the other.
    """

    def __init__(self, cache: KvCache, q_dtype: DType, options: Mapping[str, Any]) -> None:
        self.device, self.cache, self.q_dtype, self.options = cache.device, cache, q_dtype, dict(options)
        self._steps: dict[int, BoundKernel] = {}
        self._workspaces: dict[KernelType, dict[str, Buffer]] = {}
        self._check_options()

    def _check_options(self) -> None:
        """An option that not all of an executor's kernels have, or a value that they do not take, is an error."""
        if others := sorted(self.options.keys() - set(_OPTIONS)):
            want = f"of {', '.join(_OPTIONS)} (bind IncrementalAttention itself for other options)"
            raise SpecError(f"Executor.options: must be {want} (got {', '.join(others)})")
        self._spec(indirect=False)

    def step(self, layer: int, q: Buffer, out: Buffer, length: int) -> BoundKernel:
        """One query of every head `[n_heads, head_dim]` over `length` positions of a layer; bound once and updated."""
        bound = self._steps.get(layer)
        if bound is not None:
            return bound.update(q=q, out=out, seq_len=length)
        bound = self._steps[layer] = self._attend(layer, q, out, length, indirect=False)
        return bound

    def recorded_step(
        self, layer: int, given: Mapping[str, Buffer], position: Buffer, length: Buffer
    ) -> tuple[BoundKernel, BoundKernel]:
        """Append k, v and attend with q into out; position and length s32 `[1]` are read at every replay."""
        from ptxgen.kernels import KvCacheScatter

        cache = self.cache
        scatter = KvCacheScatter(
            max_len=cache.max_len, head_dim=cache.head_dim, n_kv_heads=cache.n_kv_heads, kv_dtype=cache.dtype,
            src_dtype=self.q_dtype, indirect=True,
        )  # fmt: skip
        rows = {name: given[name].reshape(1, *given[name].shape) for name in "kv"}
        append = self.device.load(scatter).bind(**rows, position=position, **cache.buffers(layer))
        return append, self._attend(layer, given["q"], given["out"], length, indirect=True)

    def chunk(self, layer: int, q: Buffer, out: Buffer, length: int) -> BoundKernel:
        """The last queries `[rows, n_heads, head_dim]` of `length` positions of a layer, causally."""
        spec = self._multi_head(causal=True, kv_dtype=self.cache.dtype, max_len=self.cache.max_len)
        held = {name.removesuffix("_cache"): buffer for name, buffer in self.cache.buffers(layer).items()}
        return self.device.load(spec).bind(q=q, out=out, q_len=q.shape[0], kv_len=length, **held)

    def whole(self, given: Mapping[str, Buffer], causal: bool) -> BoundKernel:
        """Queries q, out `[n, n_heads, head_dim]` over k, v `[m, n_kv_heads, head_dim]`, without the cache."""
        spec = self._multi_head(causal=causal, kv_dtype=given["k"].dtype)
        return self.device.load(spec).bind(**given, q_len=given["q"].shape[0], kv_len=given["k"].shape[0])

    def rope(self, given: Mapping[str, Buffer], position: object, options: Mapping[str, Any]) -> BoundKernel:
        """Rotate q and k, where given, from `position` on: an int, or s32 `[1]` on the device."""
        from ptxgen.kernels import Rope

        cache = self.cache
        spec = Rope(
            head_dim=cache.head_dim, n_heads=cache.n_heads, n_kv_heads=cache.n_kv_heads if "k" in given else 0,
            dtype=self.q_dtype, indirect=isinstance(position, Buffer), **options,
        )  # fmt: skip
        return self.device.load(spec).bind(**given, position=position)

    def _attend(self, layer: int, q: Buffer, out: Buffer, length: int | Buffer, indirect: bool) -> BoundKernel:
        spec = self._spec(indirect)
        held = self.cache.buffers(layer)
        return self.device.load(spec).bind(q=q, out=out, seq_len=length, **held, **self._workspace(spec))

    def _spec(self, indirect: bool) -> KernelType:
        from ptxgen.kernels import IncrementalAttention

        cache = self.cache
        made: KernelType = IncrementalAttention(
            max_len=cache.max_len, head_dim=cache.head_dim, n_heads=cache.n_heads, n_kv_heads=cache.n_kv_heads,
            q_dtype=self.q_dtype, kv_dtype=cache.dtype, indirect=indirect, **self.options,
        )  # fmt: skip
        return made

    def _multi_head(self, **fields: Any) -> KernelType:
        from ptxgen.kernels import MultiHeadAttention

        cache = self.cache
        made: KernelType = MultiHeadAttention(
            head_dim=cache.head_dim, n_heads=cache.n_heads, n_kv_heads=cache.n_kv_heads, q_dtype=self.q_dtype,
            **self.options, **fields,
        )  # fmt: skip
        return made

    def _workspace(self, spec: KernelType) -> dict[str, Buffer]:
        made = self._workspaces.get(spec)
        if made is None:
            made = {
                p.name: (self.device.zeros if p.zeroed else self.device.empty)(p.shape, p.dtype)  # type: ignore[arg-type]
                for p in spec.params()
                if p.access == "workspace"
            }
            self._workspaces[spec] = made
        return made
