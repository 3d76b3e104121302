"""Flash decoding over a `KvCache`: chunks and their reduction, eager, captured or as graph nodes. Owns its scratch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import DType
from ptxgen.runtime.core.bound import BoundKernel
from ptxgen.runtime.core.buffer import Buffer
from ptxgen.runtime.core.graph import Graph, Node
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.kv.kvcache import KvCache

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device


class FlashDecoding:
    """Two launches a layer, without a synchronisation between them; the grid is the same whatever the length.

    `lengths` s32 `[n_layers]` on the device is what recorded and explicit launches read; eager ones have a length of
    their own, so that what a graph left behind cannot reach them. All layers share the scratch memory: they run one
    after the other.
    """

    def __init__(
        self,
        device: Device,
        cache: KvCache,
        lengths: Buffer,
        q_dtype: DType,
        max_chunks: int = 64,
        programmatic: bool = False,
        **options: Any,
    ) -> None:
        from ptxgen.kernels import FlashDecodingChunk, FlashDecodingReduce

        self.device, self.cache, self.lengths = device, cache, lengths
        heads, dim = cache.n_heads, cache.head_dim
        self.programmatic = programmatic
        wanted = FlashDecodingChunk.that_fills(
            device.target,
            max_len=cache.max_len, head_dim=dim, n_heads=heads, n_kv_heads=cache.n_kv_heads, max_chunks=max_chunks,
            q_dtype=q_dtype, kv_dtype=cache.dtype, **options,
        )  # fmt: skip
        max_chunks = wanted.chunks(batch=1)  # no room for more than are ever used
        self._chunk = replace(wanted, max_chunks=max_chunks)
        self._reduce = FlashDecodingReduce(
            head_dim=dim, n_heads=heads, max_chunks=max_chunks, q_dtype=q_dtype, programmatic=programmatic
        )
        self._partials = device.zeros((1, heads, max_chunks, dim), "f32")  # some are loaded before their sum is known
        self._stats = device.empty((1, heads, max_chunks, 2), "f32")
        self._eager_length = device.zeros(1, "s32")
        self._pointers: dict[int, dict[str, Buffer]] = {}
        self._bound: dict[int, tuple[BoundKernel, BoundKernel]] = {}

    def launch(self, layer: int, q: Buffer, out: Buffer, length: int, stream: Stream | None = None) -> None:
        """Attend with q `[1, n_heads, head_dim]` over the first `length` positions of a layer; fills `out` like q."""
        self._eager_length.fill(length, stream)
        bound = self._bound.get(layer)
        if bound is None:
            bound = self._bound[layer] = self._bind(layer, q, out, self._eager_length)
        else:
            bound[0].update(q=q)
            bound[1].update(out=out)
        for kernel in bound:
            kernel.launch(stream)

    def record(self, layer: int, q: Buffer, out: Buffer, stream: Stream) -> None:
        """Record both launches; a replay attends over `lengths[layer]` positions."""
        for kernel in self._bind(layer, q, out, self.lengths[layer : layer + 1]):
            kernel.launch(stream)

    def add_to(self, graph: Graph, layer: int, q: Buffer, out: Buffer) -> tuple[Node, Node]:
        """Both launches as explicit nodes after the graph's last one; a replay attends over `lengths[layer]`."""
        chunk, reduce = self._bind(layer, q, out, self.lengths[layer : layer + 1])
        return graph.add(chunk), graph.add(reduce, programmatic=self.programmatic)

    def _bind(self, layer: int, q: Buffer, out: Buffer, length: Buffer) -> tuple[BoundKernel, BoundKernel]:
        scratch = {"partials": self._partials, "stats": self._stats}
        chunk = self.device.load(self._chunk).bind(q=q, seq_lens=length, **scratch, **self._pointers_of(layer))
        return chunk, self.device.load(self._reduce).bind(out=out, **scratch)

    def _pointers_of(self, layer: int) -> dict[str, Buffer]:
        """Arrays of one pointer, made once per layer."""
        found = self._pointers.get(layer)
        if found is None:
            names = {"k_cache": "k_ptrs", "v_cache": "v_ptrs", "k_scales": "k_scale_ptrs", "v_scales": "v_scale_ptrs"}
            found = self._pointers[layer] = {
                names[name]: self.device.pointers([buffer]) for name, buffer in self.cache.buffers(layer).items()
            }
        return found
