"""`Executor`: cached attention of a model's layers, from host or device arrays. Owns a `KvCache`, a stream, staging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.bound import BoundKernel
from ptxgen.runtime.buffer import Buffer
from ptxgen.runtime.kvcache import KvCache, as_rows
from ptxgen.runtime.staging import Staging
from ptxgen.runtime.stream import Stream

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType
    from ptxgen.runtime.device import Device


class Executor:
    """Attention over a KV cache that stays on the device; one position at a time, or a chunk of a prompt.

    Host arrays are staged, and results are there on return; with device arrays alone nothing synchronises, and work is
    ordered on `stream` (or the stream of the call). `q_dtype` is the type of q, k, v and out; `kv_dtype` the cache's.
    `options` are those of `IncrementalAttention`: scale, soft_cap, window.

    In a graph, record with `stream=graph.stream` and call `step` before each replay: positions and lengths then come
    from device memory.
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
        **options: Any,
    ) -> None:
        self.device = device
        self.q_dtype = to_dtype(q_dtype)
        self.cache = KvCache(device, n_layers, n_heads, n_kv_heads, head_dim, max_len, kv_dtype)
        self.n_layers, self.n_heads, self.n_kv_heads, self.head_dim = n_layers, n_heads, n_kv_heads, head_dim
        self.stream = device.stream()
        self._options = options
        self._shape = {
            "q": (n_heads, head_dim),
            "k": (n_kv_heads, head_dim),
            "v": (n_kv_heads, head_dim),
            "out": (n_heads, head_dim),
        }
        self._spec(indirect=False)  # an option that does not exist is an error here
        self._staging: Staging | None = None
        self._bound: dict[tuple[str, int], BoundKernel] = {}
        self._workspaces: dict[KernelType, dict[str, Buffer]] = {}
        self.positions = device.zeros(n_layers, "s32")
        self.lengths = device.zeros(n_layers, "s32")

    def _spec(self, indirect: bool) -> KernelType:
        from ptxgen.kernels import IncrementalAttention

        cache = self.cache
        made: KernelType = IncrementalAttention(
            max_len=cache.max_len, head_dim=self.head_dim, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads,
            q_dtype=self.q_dtype, kv_dtype=cache.dtype, indirect=indirect, **self._options,
        )  # fmt: skip
        return made

    # one position -------------------------------------------------------------------------------------------------
    def incremental_attention(
        self, layer: int, q: object, k: object, v: object, out: object, stream: Stream | None = None
    ) -> int:
        """Append k, v `[n_kv_heads, head_dim]` at the layer's position, attend with q `[n_heads, head_dim]` over all
        positions so far, fill `out` like q; the new length.

        Arguments are NumPy arrays, or on the device; flat ones are fine. A wrong argument is a `SpecError`, a full
        cache a `CapacityError`; both leave lengths and contents as they were. While recording, the length does not
        change: `step` counts.
        """
        where = self.stream if stream is None else stream
        if where.capturing:
            return self._record(layer, q, k, v, out, where)
        length = self.cache.room(layer, 1) + 1
        given = {"q": q, "k": k, "v": v, "out": out}
        host = {n: a for n, a in given.items() if isinstance(a, np.ndarray)}
        buffers = {n: self._buffer(n, a) for n, a in given.items()}
        attention = self._attention(layer, buffers["q"], buffers["out"], length)
        if host:
            self._stage().upload({n: a for n, a in host.items() if n != "out"}, where)
        self.cache.append(layer, buffers["k"], buffers["v"], where)
        attention.launch(where)
        if "out" in host:
            self._stage().download("out", host["out"], where)
        return length

    def flash_attention_cached(
        self, layer: int, q: object, k: object, v: object, out: object, stream: Stream | None = None
    ) -> int:
        """Append positions at the layer's and attend over all of them, causally; the new length.

        One position as `incremental_attention`; or a chunk: q, out `[rows, n_heads, head_dim]`, k, v
        `[rows, n_kv_heads, head_dim]`. Every length ≥ 1 works, and the cache never leaves the device.
        """
        if len(getattr(q, "shape", ())) < 3:
            return self.incremental_attention(layer, q, k, v, out, stream)
        where = self.stream if stream is None else stream
        rows = int(q.shape[0])  # type: ignore[attr-defined]
        shapes = {name: (rows, *shape) for name, shape in self._shape.items()}
        length = self.cache.room(layer, rows) + rows
        buffers = self._bring({"q": q, "k": k, "v": v, "out": out}, shapes, where)
        attention = self._prefill(layer, buffers["q"], buffers["out"], rows, length)
        self.cache.append(layer, buffers["k"], buffers["v"], where)
        attention.launch(where)
        self._take_back(out, buffers["out"], where)
        return length

    def flash_attention(
        self, q: object, k: object, v: object, out: object, causal: bool = True, stream: Stream | None = None
    ) -> None:
        """Attention of whole sequences, without the cache: q, out `[n, n_heads, head_dim]`, k, v
        `[m, n_kv_heads, head_dim]`, any n ≤ m; causal: the queries are the last n of the m positions."""
        where = self.stream if stream is None else stream
        rows, keys = (int(a.shape[0]) for a in (q, k))  # type: ignore[attr-defined]
        shapes = {n: (keys if n in "kv" else rows, *shape) for n, shape in self._shape.items()}
        buffers = self._bring({"q": q, "k": k, "v": v, "out": out}, shapes, where)
        spec = self._multi_head(causal=causal, kv_dtype=buffers["k"].dtype)
        self.device.load(spec).bind(**buffers, q_len=rows, kv_len=keys).launch(where)
        self._take_back(out, buffers["out"], where)

    def rope(
        self, q: object, k: object = None, position: int = 0, stream: Stream | None = None, **options: Any
    ) -> None:
        """Rotate q `[n_heads, head_dim]` and k `[n_kv_heads, head_dim]` to a position, in place (a leading axis is
        consecutive positions); `options` are those of `Rope`: theta, style, rotary_dim, scaling, precise, …"""
        from ptxgen.kernels import Rope

        where = self.stream if stream is None else stream
        given = {"q": q} if k is None else {"q": q, "k": k}
        rows = int(q.shape[0]) if len(q.shape) == 3 else 1  # type: ignore[attr-defined]
        buffers = self._bring(given, {n: (rows, *self._shape[n]) for n in given}, where, read="qk")
        heads = 0 if k is None else self.n_kv_heads
        spec = Rope(head_dim=self.head_dim, n_heads=self.n_heads, n_kv_heads=heads, dtype=self.q_dtype, **options)
        self.device.load(spec).bind(**buffers, position=position).launch(where)
        for name, array in given.items():
            self._take_back(array, buffers[name], where)

    # graphs -------------------------------------------------------------------------------------------------------
    def step(self, stream: Stream | None = None) -> None:
        """Count one position in every layer, and put positions and lengths into device memory for a replay.

        Raises `CapacityError`, changing nothing, when a layer is full.
        """
        before = [self.cache.room(layer, 1) for layer in range(self.n_layers)]
        positions = np.array(before, np.int32)
        where = self.stream if stream is None else stream
        self.positions.copy_from(positions, where)
        self.lengths.copy_from(positions + np.int32(1), where)
        for layer, length in enumerate(before):
            self.cache.set_length(layer, length + 1)

    def _record(self, layer: int, q: object, k: object, v: object, out: object, stream: Stream) -> int:
        """Append and attend, position and length from device memory; loads and binds before anything is recorded."""
        from ptxgen.kernels import KvCacheScatter

        given = {"q": q, "k": k, "v": v, "out": out}
        if any(isinstance(a, np.ndarray) for a in given.values()):
            raise CudaError("Executor: a graph takes device arrays only (got NumPy arrays)")
        buffers = {n: self._buffer(n, a) for n, a in given.items()}
        cache, one = self.cache, slice(layer, layer + 1)
        scatter = KvCacheScatter(
            max_len=cache.max_len, head_dim=self.head_dim, n_kv_heads=self.n_kv_heads, kv_dtype=cache.dtype,
            src_dtype=self.q_dtype, indirect=True,
        )  # fmt: skip
        rows = {n: as_rows(n, buffers[n], (1, *self._shape[n])) for n in ("k", "v")}
        held = cache.buffers(layer)
        append = self.device.load(scatter).bind(**rows, position=self.positions[one], **held)
        spec = self._spec(indirect=True)
        attend = self.device.load(spec).bind(
            q=buffers["q"], out=buffers["out"], seq_len=self.lengths[one], **held, **self._workspace(spec)
        )
        append.launch(stream)
        attend.launch(stream)
        return cache.length(layer)

    # bound kernels ------------------------------------------------------------------------------------------------
    def _attention(self, layer: int, q: Buffer, out: Buffer, length: int) -> BoundKernel:
        """The attention of a layer over `length` positions, bound once and updated."""
        bound = self._bound.get(("attention", layer))
        if bound is not None:
            return bound.update(q=q, out=out, seq_len=length)
        spec = self._spec(indirect=False)
        bound = self.device.load(spec).bind(
            q=q, out=out, seq_len=length, **self.cache.buffers(layer), **self._workspace(spec)
        )
        self._bound["attention", layer] = bound
        return bound

    def _prefill(self, layer: int, q: Buffer, out: Buffer, rows: int, length: int) -> BoundKernel:
        spec = self._multi_head(causal=True, kv_dtype=self.cache.dtype, max_len=self.cache.max_len)
        held = {name.removesuffix("_cache"): buffer for name, buffer in self.cache.buffers(layer).items()}
        return self.device.load(spec).bind(q=q, out=out, q_len=rows, kv_len=length, **held)

    def _multi_head(self, **fields: Any) -> KernelType:
        from ptxgen.kernels import MultiHeadAttention

        made: KernelType = MultiHeadAttention(
            head_dim=self.head_dim, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads, q_dtype=self.q_dtype,
            **self._options, **fields,
        )  # fmt: skip
        return made

    def _workspace(self, spec: KernelType) -> dict[str, Buffer]:
        """Scratch memory of a spec, shared by all layers: they run one after the other."""
        made = self._workspaces.get(spec)
        if made is None:
            made = {
                p.name: (self.device.zeros if p.zeroed else self.device.empty)(p.shape, p.dtype)  # type: ignore[arg-type]
                for p in spec.params()
                if p.access == "workspace"
            }
            self._workspaces[spec] = made
        return made

    # arrays -------------------------------------------------------------------------------------------------------
    def _stage(self) -> Staging:
        if self._staging is None:
            self._staging = Staging(self.device, self.q_dtype, self._shape)
        return self._staging

    def _buffer(self, name: str, array: object) -> Buffer:
        """The device buffer of an argument, checked: its own, or the staging one of a host array."""
        if isinstance(array, np.ndarray):
            return self._stage().buffer_for(name, array)
        return self._typed(name, array, self._shape[name])

    def _typed(self, name: str, array: object, shape: tuple[int, ...]) -> Buffer:
        buffer = as_rows(name, self.device.wrap(array), shape)
        if buffer.dtype != self.q_dtype:
            raise SpecError(f"{name}: must be {self.q_dtype} (got {buffer.dtype}, shape {list(buffer.shape)})")
        return buffer

    def _bring(
        self, given: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], stream: Stream, read: str = "qkv"
    ) -> dict[str, Buffer]:
        """Arguments of any number of rows on the device; every one is checked before the first is copied."""
        found: dict[str, Buffer] = {}
        for name, array in given.items():
            if not isinstance(array, np.ndarray):
                found[name] = self._typed(name, array, shapes[name])
            elif array.shape != shapes[name] and array.shape != shapes[name][1:] * (shapes[name][0] == 1):
                raise SpecError(f"{name}: must have shape {list(shapes[name])} (got {list(array.shape)})")
            elif to_dtype(array.dtype) != self.q_dtype:
                raise SpecError(f"{name}: must be {self.q_dtype} (got {array.dtype}, shape {list(array.shape)})")
        for name, array in given.items():
            if name not in found:
                found[name] = self.device.empty(shapes[name], self.q_dtype, stream)
                if name in read:
                    found[name].copy_from(array.reshape(shapes[name]), stream)
        return {name: found[name] for name in given}

    def _take_back(self, array: object, buffer: Buffer, stream: Stream) -> None:
        if isinstance(array, np.ndarray):
            array[...] = buffer.numpy(stream=stream).reshape(array.shape)
