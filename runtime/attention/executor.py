"""`Executor`: cached attention of a model's layers, from host or device arrays. Owns a `KvCache`, a stream, staging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import CudaError, SpecError, brief
from ptxgen.models.attention import Attention
from ptxgen.runtime.attention.attention_kernels import AttentionKernels
from ptxgen.runtime.attention.flash_decoding import FlashDecoding
from ptxgen.runtime.attention.staging import Arguments, row_count, take_back
from ptxgen.runtime.core.launches.graph import Graph, Node
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.memory.stream_order import after_others
from ptxgen.runtime.core.memory.wrap import argument
from ptxgen.runtime.core.step import Step
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.kv.kvcache import KvCache, as_rows
from ptxgen.runtime.kv.layers import positive

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device


class Executor:
    """Attention over a KV cache that stays on the device; one position at a time, or a chunk of a prompt.

    Host arrays are staged, and results are there on return; with device arrays alone nothing synchronises. Calls run in
    the order in which they are made, on the stream of the call or on `stream`, the device's default one. Without a
    stream of the call, arrays are used after what other streams (torch's and CuPy's current ones, too) have been given
    on them so far, and before what these are given next.

    `q_dtype` is the type of q, k, v and out; `kv_dtype` the cache's. `max_chunks` is how many parts `flash_decoding`
    cuts a cache into at most; `options` are those of `IncrementalAttention`: scale, soft_cap, window. `windows`: a
    window for each layer in place of one for all (0, or as long as the cache: none), whose layers keep rings of the
    latest positions alone, with room for chunks of `appended` rows; longer ones go in parts.

    In a graph, record with `stream=graph.stream` and call `step` before each replay that appends, `publish` before one
    that only attends: positions and lengths then come from device memory (`positions`, `lengths`, one per layer), which
    eager calls do not change. What a replay could not do again is a `CudaError` before anything is recorded: host
    arrays, chunks, a position on the host.

    One thread at a time: arguments and scratch memory are the executor's.
    """

    def __init__(
        self,
        device: Device,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        max_len: int,
        kv_dtype: object = "f32",
        q_dtype: object = "f32",
        max_chunks: int = 64,
        windows: Iterable[int] | None = None,
        appended: int = 64,
        **options: Any,
    ) -> None:
        self.device = device
        self.q_dtype = to_dtype(q_dtype)
        if windows is not None and "window" in options:
            raise SpecError(f"Executor.windows: goes without window (got window={options['window']!r})")
        sizes = (n_layers, n_heads, n_kv_heads, head_dim, max_len)
        self.cache = KvCache(device, *sizes, kv_dtype, windows=windows, appended=appended)
        made = self.cache
        n_layers, n_heads, n_kv_heads, head_dim = made.n_layers, made.n_heads, made.n_kv_heads, made.head_dim
        self.n_layers, self.n_heads, self.n_kv_heads, self.head_dim = n_layers, n_heads, n_kv_heads, head_dim
        self.stream = self._latest = device.default_stream
        self._others: list[Stream] = []  # that share memory with the call under way
        (self.max_chunks,) = positive("Executor", max_chunks=max_chunks)
        self._flash_decoding: dict[Attention, FlashDecoding] = {}
        row, kv_row = (n_heads, head_dim), (n_kv_heads, head_dim)
        self._arguments = Arguments(device, self.q_dtype, {"q": row, "k": kv_row, "v": kv_row, "out": row})
        self._kernels = AttentionKernels(self.cache, self.q_dtype, options)
        self.positions = device.zeros(n_layers, "s32")
        self.lengths = device.zeros(n_layers, "s32")

    def __repr__(self) -> str:
        heads = f"{self.n_heads}/{self.n_kv_heads}/{self.head_dim}"
        return f"Executor({self.n_layers} layers, heads {heads}, {self.q_dtype}, {self.cache!r})"

    # one position -------------------------------------------------------------------------------------------------
    def incremental_attention(
        self, layer: int, q: object, k: object, v: object, out: object, stream: object = None
    ) -> int:
        """Append k, v `[n_kv_heads, head_dim]` at the layer's position, attend with q `[n_heads, head_dim]` over all
        positions so far, fill `out` like q; the new length.

        Arguments are NumPy arrays, or on the device; flat ones are fine. A wrong argument is a `SpecError`, a full
        cache a `CapacityError`; both leave lengths and contents as they were. While recording, the length does not
        change: `step` counts.
        """
        stream = self.device._given(stream)
        if stream is not None and stream.capturing:
            no_host_arrays(q, k, v, out)
            count, at = self.cache.length(layer), slice(layer, layer + 1)
            given = self._buffers(q=q, k=k, v=v, out=out)
            self._kernels.recorded_step(layer, given, self.positions[at], self.lengths[at]).launch(stream)
            return count
        length = self.cache.room(layer, 1) + 1
        buffers = self._buffers(q=q, k=k, v=v, out=out)
        attention = self._kernels.step(layer, buffers["q"], buffers["out"], length)
        where = self._begin(stream, buffers, layer)
        self._arguments.upload({"q": q, "k": k, "v": v}, where)
        self.cache.append(layer, buffers["k"], buffers["v"], where)
        self._launch(attention, where, layer, length - 1)
        self._arguments.download("out", out, where)
        self._end()
        return length

    def flash_attention_cached(
        self, layer: int, q: object, k: object, v: object, out: object, stream: object = None
    ) -> int:
        """Append positions at the layer's and attend over all of them, causally; the new length.

        One position as `incremental_attention`; or a chunk: q, out `[rows, n_heads, head_dim]`, k, v
        `[rows, n_kv_heads, head_dim]`. Every length ≥ 1 works, and the cache never leaves the device.
        """
        if len(getattr(q, "shape", ())) < 3:
            return self.incremental_attention(layer, q, k, v, out, stream)
        stream = self.device._uncaptured(stream, "Executor: a chunk", "its position is the host's; record single rows")
        rows = row_count("q", q)
        length = self.cache.room(layer, rows) + rows
        most = self.cache.rings.takes(layer, rows)
        if most < rows:  # a ring keeps no more before queries read
            parts = [slice(first, first + most) for first in range(0, rows, most)]
            counts = {row_count(name, array) for name, array in {"k": k, "v": v, "out": out}.items()}
            if counts != {rows}:
                raise SpecError(f"flash_attention_cached: must have {rows} rows each (got {sorted(counts)})")
            for part in parts:
                length = self.flash_attention_cached(layer, q[part], k[part], v[part], out[part], stream)  # type: ignore[index]
            return length
        given = {"q": q, "k": k, "v": v, "out": out}
        where = stream or self.stream
        buffers = self._arguments.rows(given, dict.fromkeys(given, rows), where)
        attention = self._kernels.chunk(layer, buffers["q"], buffers["out"], length)
        self._begin(stream, buffers, layer)
        self.cache.append(layer, buffers["k"], buffers["v"], where)
        self._launch(attention, where, layer, length - rows)
        take_back(out, buffers["out"], where)
        self._end()
        return length

    def flash_decoding(self, layer: int, q: object, out: object, stream: object = None) -> None:
        """Attend with q over what a layer holds, in chunks that run side by side; fills `out`, appends nothing.

        While recording, length comes from device memory (`step`, or `lengths`). `flash_decoding_nodes` adds the same
        to a graph as explicit nodes.
        """
        stream, length = self.device._given(stream), self.cache.length(layer)
        if recording(stream):
            no_host_arrays(q, out)
        rows = self._rows(q=q, out=out)
        if stream is not None and stream.capturing:
            self._flash(layer).record(layer, rows["q"], rows["out"], stream)
            return
        where = self._begin(stream, rows, layer)
        self._arguments.upload({"q": q}, where)
        self._flash(layer).launch(layer, rows["q"], rows["out"], length, where)
        self._arguments.download("out", out, where)
        self._end()

    def flash_decoding_nodes(self, graph: Graph, layer: int, q: object, out: object) -> tuple[Node, Node]:
        """Append chunk and reduction to a graph as explicit nodes; arguments on the device."""
        if not isinstance(graph, Graph):
            raise SpecError(f"flash_decoding_nodes: graph must be a Graph, device.graph() (got {brief(graph)})")
        no_host_arrays(q, out)
        self.cache.length(layer)  # is it there?
        rows = self._rows(q=q, out=out)
        return self._flash(layer).add_to(graph, layer, rows["q"], rows["out"])

    def flash_attention(
        self, q: object, k: object, v: object, out: object, causal: bool = True, stream: object = None
    ) -> None:
        """Attention of whole sequences, without the cache: q, out `[n, n_heads, head_dim]`, k, v
        `[m, n_kv_heads, head_dim]`; causal: the queries are the last n of the m positions, so that n ≤ m."""
        stream = self.device._given(stream)
        if recording(stream):
            no_host_arrays(q, k, v, out)
        where = stream or self.stream
        rows, keys = row_count("q", q), row_count("k", k)
        if causal and rows > keys:
            raise SpecError(f"flash_attention: causal, q must have at most as many rows as k, {keys} (got {rows})")
        counts = {"q": rows, "k": keys, "v": keys, "out": rows}
        buffers = self._arguments.rows({"q": q, "k": k, "v": v, "out": out}, counts, where)
        attention = self._kernels.whole(buffers, causal)
        self._begin(stream, buffers)
        attention.launch(where)
        take_back(out, buffers["out"], where)
        self._end()

    def rope(self, q: object, k: object = None, position: object = 0, stream: object = None, **options: Any) -> None:
        """Rotate q `[n_heads, head_dim]` and k `[n_kv_heads, head_dim]` to a position, in place (a leading axis is
        consecutive positions); `options` are those of `Rope`: theta, style, rotary_dim, scaling, precise, …

        `position` is an int, or s32 `[1]` on the device, which a graph needs: `positions[layer]` is where `step` puts
        it.
        """
        stream = self.device._given(stream)
        if recording(stream):
            no_host_arrays(q, k)
        if isinstance(position, int | np.generic | np.ndarray):
            what, instead = f"Executor.rope: position {position}", "one on the device (positions[layer]) can change"
            self.device._uncaptured(stream, what, instead)
        else:
            position = as_rows("position", argument(self.device, "position", position), (1,))
        where = stream or self.stream
        given = {"q": q} if k is None else {"q": q, "k": k}
        rows = row_count("q", q) if len(getattr(q, "shape", ())) == 3 else 1
        buffers = self._arguments.rows(given, dict.fromkeys(given, rows), where, written=("q", "k"))
        bound = self._kernels.rope(buffers, position, options)
        self._begin(stream, buffers)
        bound.launch(where)
        for name, array in given.items():
            take_back(array, buffers[name], where)
        self._end()

    # graphs -------------------------------------------------------------------------------------------------------
    def step(self, stream: object = None) -> None:
        """Count one position in every layer, and put positions and lengths into device memory for a replay.

        Raises `CapacityError`, changing nothing, when a layer is full.
        """
        stream = self.device._uncaptured(stream, "Executor.step", "call it before each replay")
        before = [self.cache.room(layer, 1) for layer in range(self.n_layers)]
        positions = np.array(before, np.int32)
        told = {"positions": self.positions, "lengths": self.lengths}
        where = self._begin(stream, told)
        self.positions.copy_from(positions, where)
        self.lengths.copy_from(positions + np.int32(1), where)
        self._end()
        for layer, length in enumerate(before):
            self.cache.set_length(layer, length + 1)

    def publish(self, stream: object = None) -> None:
        """Put the lengths as they are into device memory, for replays that append nothing (`flash_decoding`), after
        eager calls, a rollback or a restore."""
        stream = self.device._uncaptured(stream, "Executor.publish", "call it before each replay")
        held = np.array([self.cache.length(layer) for layer in range(self.n_layers)], np.int32)
        where = self._begin(stream, {"lengths": self.lengths})
        self.lengths.copy_from(held, where)
        self._end()

    # arguments ----------------------------------------------------------------------------------------------------
    def _buffers(self, **given: object) -> dict[str, Buffer]:
        """Every argument on the device, `[n_heads, head_dim]` and the like."""
        return {name: self._arguments.one(name, array) for name, array in given.items()}

    def _rows(self, **given: object) -> dict[str, Buffer]:
        """The same with a leading 1."""
        return {name: b.reshape(1, *b.shape) for name, b in self._buffers(**given).items()}

    def _begin(self, stream: Stream | None, buffers: Mapping[str, Buffer], layer: int | None = None) -> Stream:
        """The stream to work on, after the call before this one; without one given, our own, after what other streams
        do with the arguments and the layer."""
        where = self.stream if stream is None else stream
        self._others = []
        if recording(where):
            return where
        self.device._uncaptured(stream, "Executor", "a graph of another library would not count positions")
        if stream is None:
            used = [b.allocation for b in buffers.values()]
            if layer is not None:  # its keys stand for all that goes with them
                used.append(self.cache.k(layer).allocation)
            self._others = after_others(where, used)
        if where is not self._latest:
            where.wait(self._latest)
            self._latest = where
        return where

    def _launch(self, attention: Step, where: Stream, layer: int, before: int) -> None:
        """Attend over what was appended. If that fails, the layer's length is what it was `before`."""
        try:
            attention.launch(where)
        except BaseException:
            self.cache.set_length(layer, before)
            raise

    def _end(self) -> None:
        """What those other streams do from now on comes after our work."""
        for other in self._others:
            other.wait(self.stream)

    def _flash(self, layer: int) -> FlashDecoding:
        """That of a layer's attention; layers of one share it."""
        attention = self._kernels.of(layer)
        found = self._flash_decoding.get(attention)
        if found is None:
            found = FlashDecoding(self.cache, attention, self.lengths, self.max_chunks)
            self._flash_decoding[attention] = found
        return found


def recording(stream: Stream | None) -> bool:
    """Whether work given to `stream` now is recorded into a graph."""
    return stream is not None and stream.capturing


def no_host_arrays(*arrays: object) -> None:
    """What a graph is made of stays where it is."""
    if any(isinstance(a, np.ndarray) for a in arrays):
        raise CudaError("Executor: a graph takes device arrays only (got NumPy arrays)")
