"""`KvCache`: the keys and values of one sequence, all layers, in device memory. Owns lengths, not attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.errors import CapacityError, SpecError, brief
from ptxgen.kernel import KernelType
from ptxgen.models.attention import Attention, program_of
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.memory.stream_order import after_others
from ptxgen.runtime.core.memory.wrap import argument
from ptxgen.runtime.core.step import Step
from ptxgen.runtime.kv import sizing
from ptxgen.runtime.kv.layers import KvLayers, cache_dtype, from_zero, positive, within
from ptxgen.runtime.kv.rings import Rings
from ptxgen.runtime.kv.snapshot import Layer, Snapshot
from ptxgen.runtime.kv.strided import Blocks
from ptxgen.scales import scale_groups

_SHORT = 8  # rows of an append whose bound kernel is kept


class KvCache:
    """K and V `[n_kv_heads, max_len, head_dim]` per layer; int8 with f16 scales `[n_kv_heads, max_len, groups]`.

    Memory is allocated once and its addresses stay until `free`. Every layer has a length of its own: `append` adds at
    it. What would go past `max_len` raises `CapacityError` and changes nothing. What lies past a length reaches no
    result; kernels may load it early, so that a checker of reads (initcheck) wants it written once. `stream` is where
    `append` works without one of its own.

    `windows`, one a layer: a layer with a window keeps a ring of the latest positions alone, `[n_kv_heads, ring,
    head_dim]` with position p in row p % ring; `appended` rows may join at a time before queries read. What a ring has
    lost cannot be gone back to: a length that needs it is a `CapacityError`.
    """

    def __init__(
        self,
        device: Device,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        max_len: int,
        dtype: object = "f32",
        windows: Iterable[int] | None = None,
        appended: int = 64,
    ) -> None:
        if not isinstance(device, Device):
            raise SpecError(f"KvCache.device: must be a Device, as open_device gives it (got {brief(device)})")
        n_layers, n_heads, n_kv_heads, head_dim, max_len = positive(
            "KvCache", n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, max_len=max_len
        )
        if n_heads % n_kv_heads:
            raise SpecError(f"KvCache.n_heads: must be a multiple of n_kv_heads {n_kv_heads} (got {n_heads})")
        self.device = device
        self.n_layers, self.n_heads, self.n_kv_heads = n_layers, n_heads, n_kv_heads
        self.head_dim, self.max_len = head_dim, max_len
        self.dtype = cache_dtype("KvCache.dtype", dtype)
        self.groups = scale_groups(head_dim)
        self.stream = device.default_stream
        self._lengths = [0] * n_layers
        self._appends: dict[tuple[int, int, DType], Step] = {}
        self.rings = Rings(windows, n_layers, positive("KvCache", appended=appended)[0], max_len)
        self._written = [0] * n_layers  # of rings: positions up to here have had a row
        rows = [(n_kv_heads, self.rings.rows(layer)) for layer in range(n_layers)]
        self._store = KvLayers(device, rows, head_dim, self.dtype)

    # memory -------------------------------------------------------------------------------------------------------
    @property
    def allocated(self) -> bool:
        """Whether the memory is there; false after `free`."""
        return bool(self._store)

    @property
    def nbytes(self) -> int:
        """Device memory of all layers."""
        return self._store.nbytes

    def buffers(self, layer: int) -> dict[str, Buffer]:
        """The buffers of a layer by parameter name: k_cache, v_cache, and for int8 k_scales, v_scales."""
        return self._store.buffers(layer)

    def k(self, layer: int) -> Buffer:
        """Keys of a layer, `[n_kv_heads, max_len, head_dim]`."""
        return self.buffers(layer)["k_cache"]

    def v(self, layer: int) -> Buffer:
        """Values of a layer, `[n_kv_heads, max_len, head_dim]`."""
        return self.buffers(layer)["v_cache"]

    def free(self) -> None:
        """Give the memory back; graphs and bound kernels that use it raise from then on."""
        self._store.free()
        self._appends = {}
        self.reset()

    def reset(self) -> None:
        """Forget all positions; the bytes stay."""
        self._lengths, self._written = [0] * self.n_layers, [0] * self.n_layers

    def zero(self, stream: object = None) -> None:
        """Forget all positions and fill the memory with zeros."""
        stream = self.device._uncaptured(stream, "KvCache.zero", "lengths are the host's; fill buffers(layer)")
        self._store.zero(stream)
        self.reset()

    bytes_per_sequence = staticmethod(sizing.bytes_per_sequence)
    max_batch = staticmethod(sizing.max_batch)

    # lengths ------------------------------------------------------------------------------------------------------
    def length(self, layer: int) -> int:
        """Positions held by a layer."""
        return self._lengths[within("KvCache: layer", layer, 0, self.n_layers - 1)]

    def set_length(self, layer: int, n: int) -> None:
        """Say that a layer holds `n` positions, 0 … max_len."""
        at = within("KvCache: layer", layer, 0, self.n_layers - 1)
        length, _ = within("KvCache.set_length:", n, 0, self.max_len), self._store.held
        self.rings.check("KvCache.set_length", at, length, self._written[at])
        self._put_length(at, length)

    def _put_length(self, layer: int, length: int) -> None:
        self._lengths[layer] = length
        self._written[layer] = max(length, self._written[layer]) if length else 0

    def rollback(self, position: int) -> None:
        """Forget the positions from `position` on, in every layer; never lengthens one."""
        first = from_zero("KvCache.rollback: position", position)
        lengths = [min(n, first) for n in self._lengths]
        for layer, length in enumerate(lengths):
            self.rings.check("KvCache.rollback", layer, length, self._written[layer])
        for layer, length in enumerate(lengths):
            self._put_length(layer, length)

    def room(self, layer: int, rows: int) -> int:
        """The layer's length, if `rows` more positions fit; else `CapacityError`."""
        length, rows = self.length(layer), from_zero("KvCache.room: rows", rows)
        if length + rows > self.max_len:
            raise CapacityError(
                f"KvCache: layer {layer} holds {length} of {self.max_len} positions, {rows} more do not fit; nothing "
                f"was changed (rollback or reset make room)"
            )
        return length

    # contents -----------------------------------------------------------------------------------------------------
    def append(self, layer: int, k: object, v: object, stream: object = None) -> int:
        """Add positions at the layer's length; the new length. k, v `[rows, n_kv_heads, head_dim]` on the device: a
        buffer, or what `Device.wrap` takes.

        Converts, or quantises, to the cache's dtype in one launch. Without a `stream`, on the device's default one,
        after what other streams have been given on k, v and the layer, and before what these are given next. Cannot be
        recorded: a replay would write the same position again.
        """
        instead = "KvCacheScatter with indirect=True takes its position from the device"
        stream = self.device._uncaptured(stream, "KvCache.append", instead)
        k, v = (argument(self.device, f"append({n})", x) for n, x in (("k", k), ("v", v)))
        rows = k.shape[0] if len(k.shape) == 3 else 1
        position = self.room(layer, rows)
        shape = (rows, self.n_kv_heads, self.head_dim)
        k, v = as_rows("append(k)", k, shape), as_rows("append(v)", v, shape)
        most = self.rings.rows(layer)
        if rows > most:  # of so many only the last stay; two rows of one launch must not meet
            self.append(layer, k[:most], v[:most], stream)
            return self.append(layer, k[most:], v[most:], stream)
        step = self._scatter(layer, k, v, position)
        others = after_others(self.stream, step.allocations()) if stream is None else []
        step.launch(stream or self.stream)
        for other in others:
            other.wait(self.stream)
        self._put_length(layer, position + rows)
        return position + rows

    def _scatter(self, layer: int, k: Buffer, v: Buffer, position: int) -> Step:
        """The append of a layer, a number of rows and a source dtype, updated; kept where it is short."""
        key = (layer, k.shape[0], k.dtype)
        step = self._appends.get(key)
        if step is not None:
            return step.update(k=k, v=v, position=position)
        program = program_of(("append", scatter(self, k.dtype, layer)), sizes={"rows": k.shape[0]})
        step = Step(self.device, program, {"k": k, "v": v, "position": position, **self.buffers(layer)})
        if k.shape[0] <= _SHORT:
            self._appends[key] = step
        return step

    def peek(self, layer: int, kind: str, position: int, head: int = 0, n: int | None = None) -> np.ndarray:
        """The first `n` values (default: all) at one position of one head, as float32. Out of range is an error."""
        label = "KvCache.peek"
        at = within(f"{label}: position", position, 0, self.length(layer) - 1)
        row = within(f"{label}: head", head, 0, self.n_kv_heads - 1)
        return self._store.values(label, layer, kind, (row, self._row(label, layer, at)), n)

    def _row(self, label: str, layer: int, position: int) -> int:
        """The row of a position that is still there."""
        first, _ = self.rings.held(layer, self._written[layer])
        if position < first:
            raise CapacityError(
                f"{label}: layer {layer} is a ring that holds positions from {first} on (got {position})"
            )
        return position % self.rings.rows(layer)

    def fingerprint(self, layer: int, n_positions: int) -> np.ndarray:
        """The sum of the first head's key at each of the first `n_positions`, float32."""
        count = within("KvCache.fingerprint: n_positions", n_positions, 0, self.length(layer))
        for position in range(min(count, 1)):  # the first is there, or has been lost
            self._row("KvCache.fingerprint", layer, position)
        keys = self._store.values("KvCache.fingerprint", layer, "k", (0, slice(0, count)))
        return np.asarray(keys.sum(axis=1, dtype=np.float32))

    def blocks(self, layer: int, length: int) -> dict[str, Blocks]:
        """The first `length` positions of every head, per buffer of a layer; of a ring its first rows, or all."""
        found, length = {}, within("KvCache.blocks: length", length, 0, self.max_len)
        rows = self.rings.rows(layer)
        for name, buffer in self.buffers(layer).items():
            row = buffer.shape[2] * buffer.dtype.bytes
            found[name] = Blocks(buffer, 0, min(length, rows) * row, self.n_kv_heads, rows * row)
        return found

    def snapshot(self) -> Snapshot:
        """Copy the filled part of every layer to the host."""
        layers = []
        for layer, length in enumerate(self._lengths):
            arrays = {}
            first, _ = self.rings.held(layer, self._written[layer])
            for name, blocks in self.blocks(layer, self._written[layer] if first else length).items():
                buffer = blocks.buffer
                out = np.empty(
                    (self.n_kv_heads, blocks.width // buffer[0, 0].nbytes, buffer.shape[2]), buffer.dtype.numpy
                )
                rows = blocks.read(out)
                arrays[name.removesuffix("_cache")] = rows[:, self.rings.slots(layer, first, length)] if first else rows
            layers.append(Layer(**arrays, first=first))
        return Snapshot(self.dtype, tuple(layers))

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back and set the lengths; one that does not fit raises and changes nothing. After an error
        on the way, which leaves rows of both, the cache is empty."""
        if not isinstance(snapshot, Snapshot):
            raise SpecError(f"KvCache.restore: must be a Snapshot (got {brief(snapshot)})")
        if len(snapshot) != self.n_layers or snapshot.dtype != self.dtype:
            want = f"{self.n_layers} layers of {self.dtype}"
            raise SpecError(f"KvCache.restore: must have {want} (got {len(snapshot)} of {snapshot.dtype})")
        for index, stored in enumerate(snapshot.layers):
            self._check_stored(index, stored)
        try:
            for index, stored in enumerate(snapshot.layers):
                self._put_back(index, stored)
        except BaseException:
            self.reset()
            raise

    def _put_back(self, index: int, stored: Layer) -> None:
        """One layer of a snapshot that fits."""
        arrays, most = stored.arrays(), self.rings.rows(index)
        around = stored.first > 0 or stored.seq_len > most
        for name, blocks in self.blocks(index, most if around else stored.seq_len).items():
            rows = arrays[name.removesuffix("_cache")]
            if around:
                ring = np.zeros((self.n_kv_heads, most, rows.shape[2]), rows.dtype)
                last = rows[:, -most:]
                ring[:, self.rings.slots(index, stored.seq_len - last.shape[1], stored.seq_len)] = last
                rows = ring
            blocks.write(np.ascontiguousarray(rows))
        self._lengths[index] = stored.seq_len
        self._written[index] = max(stored.seq_len, stored.first + most if stored.first else 0)

    def _check_stored(self, index: int, stored: Layer) -> None:
        """Whether one layer of a snapshot has the arrays of this cache, each with its dtype and shape."""
        arrays = stored.arrays()
        for name, buffer in self.buffers(index).items():
            short = name.removesuffix("_cache")
            label, array = f"KvCache.restore: layer {index} {short}", arrays.get(short)
            kind, width = buffer.dtype.numpy, buffer.shape[2]
            if not isinstance(array, np.ndarray) or array.dtype != kind:
                got = "none" if array is None else getattr(array, "dtype", brief(array))
                raise SpecError(f"{label} must be an array of {buffer.dtype} (got {got})")
            if array.ndim != 3 or array.shape != (self.n_kv_heads, stored.seq_len - stored.first, width):
                want = f"[{self.n_kv_heads}, seq_len, {width}]"
                raise SpecError(f"{label} must be {want} (got {list(array.shape)})")
        needed = max(0, stored.seq_len - self.rings.windows[index] + 1) if self.rings.sizes[index] else 0
        if stored.first > needed:
            said = f"must hold the positions from {needed} on (got those from {stored.first} on)"
            raise SpecError(f"KvCache.restore: layer {index} {said}")
        if stored.seq_len > self.max_len:
            held = f"layer {index} has {stored.seq_len} positions"
            raise CapacityError(f"KvCache.restore: {held}, the cache takes {self.max_len}; nothing was changed")

    def __repr__(self) -> str:
        shape = f"{self.n_layers} × [{self.n_kv_heads}, {self.max_len}, {self.head_dim}] {self.dtype}"
        return f"KvCache({shape}, lengths {min(self._lengths)}…{max(self._lengths)}, {self.device.name})"


def scatter(cache: Any, source: DType, layer: int, **options: Any) -> KernelType:
    """The kernel that appends rows of `source` to a layer of a cache, single or batched."""
    attention = Attention(
        head_dim=cache.head_dim, n_heads=cache.n_heads, n_kv_heads=cache.n_kv_heads, max_len=cache.max_len,
        q_dtype=source, kv_dtype=cache.dtype, ring=cache.rings.sizes[layer],
    )  # fmt: skip
    return attention.spec("kv_cache_scatter", **options)


def as_rows(label: str, buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
    """The buffer in that shape: given so, without its leading 1, or flat. Raises `SpecError`."""
    if 0 in shape:
        raise SpecError(f"{label}: must have at least one row (got shape {list(buffer.shape)})")
    if buffer.shape == shape:
        return buffer
    flat = (int(np.prod(shape)),)
    if buffer.shape in (flat, shape[1:] if shape[0] == 1 else flat):
        return buffer.reshape(*shape)
    raise SpecError(f"{label}: must have shape {list(shape)} (got {list(buffer.shape)})")
