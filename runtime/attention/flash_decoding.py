"""Flash decoding over a `KvCache`: chunks and their reduction, eager, captured or as graph nodes. Owns its scratch."""

from __future__ import annotations

from ptxgen.models.attention import Attention, program_of
from ptxgen.runtime.core.launches.graph import Graph, Node
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.step import Step
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.kv.kvcache import KvCache

_POINTERS = {"k_cache": "k_ptrs", "v_cache": "v_ptrs", "k_scales": "k_scale_ptrs", "v_scales": "v_scale_ptrs"}


class FlashDecoding:
    """Two launches a layer, without a synchronisation between them; the grid is the same whatever the length.

    `lengths` s32 `[n_layers]` on the device is what recorded and explicit launches read; eager ones have a length of
    their own, so that what a graph left behind cannot reach them. All layers share the scratch memory: they run one
    after the other.
    """

    def __init__(
        self, cache: KvCache, attention: Attention, lengths: Buffer, max_chunks: int = 64, programmatic: bool = False
    ) -> None:
        self.device, self.cache, self.lengths = cache.device, cache, lengths
        self.programmatic = programmatic
        chunk, merge = attention.split(self.device.target, max_chunks, programmatic)
        self._program = program_of(("split attention", chunk), ("merge of splits", merge), sizes={"batch": 1})
        shapes = {name: self._program.tensors[name].shape for name in ("partials", "stats")}
        self._shared = {  # some partials are loaded before their sum is known
            "partials": self.device.zeros(shapes["partials"], "f32"),
            "stats": self.device.empty(shapes["stats"], "f32"),
        }
        self._eager_length = self.device.zeros(1, "s32")
        self._pointers: dict[int, dict[str, Buffer]] = {}
        self._steps: dict[int, Step] = {}

    def launch(self, layer: int, q: Buffer, out: Buffer, length: int, stream: Stream | None = None) -> None:
        """Attend with q `[1, n_heads, head_dim]` over the first `length` positions of a layer; fills `out` like q."""
        self._eager_length.fill(length, stream)
        step = self._steps.get(layer)
        if step is None:
            step = self._steps[layer] = self._step(layer, q, out, self._eager_length)
        step.update(q=q, out=out).launch(stream)

    def record(self, layer: int, q: Buffer, out: Buffer, stream: Stream) -> None:
        """Record both launches; a replay attends over `lengths[layer]` positions."""
        self._step(layer, q, out, self.lengths[layer : layer + 1]).launch(stream)

    def add_to(self, graph: Graph, layer: int, q: Buffer, out: Buffer) -> tuple[Node, Node]:
        """Both launches as explicit nodes after the graph's last one; a replay attends over `lengths[layer]`."""
        chunk, merge = self._step(layer, q, out, self.lengths[layer : layer + 1]).launches
        return graph.add(chunk), graph.add(merge, programmatic=self.programmatic)

    def _step(self, layer: int, q: Buffer, out: Buffer, length: Buffer) -> Step:
        given = {"q": q, "out": out, "seq_lens": length, **self._shared, **self._pointers_of(layer)}
        return Step(self.device, self._program, given)

    def _pointers_of(self, layer: int) -> dict[str, Buffer]:
        """Arrays of one pointer, made once per layer."""
        found = self._pointers.get(layer)
        if found is None:
            held = self.cache.buffers(layer).items()
            found = self._pointers[layer] = {_POINTERS[n]: self.device.pointers([b]) for n, b in held}
        return found
