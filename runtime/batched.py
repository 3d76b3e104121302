"""`BatchedKvCache`: the keys and values of several sequences, contiguous or in pages. Owns lengths, not attention."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from ptxgen.errors import CapacityError, CudaError, SpecError
from ptxgen.runtime.bound import BoundKernel
from ptxgen.runtime.buffer import Buffer
from ptxgen.runtime.kvcache import KvCache, as_rows
from ptxgen.runtime.layers import KvLayers, positive
from ptxgen.runtime.pages import PageTable
from ptxgen.runtime.sizing import bytes_per_sequence, overhead
from ptxgen.runtime.snapshot import dequantise
from ptxgen.runtime.stream import Stream
from ptxgen.runtime.transfer import page_blocks, slot_blocks

log = logging.getLogger("ptxgen.runtime")


class BatchedKvCache:
    """Caches `[batch, n_kv_heads, max_len, head_dim]` per layer, with the dimensions of a single `KvCache`.

    With `page_size`, `[n_pages, n_kv_heads, page_size, head_dim]`, and `page_table`. A slot has one length for all
    layers. A decode step is `step()`, which makes room and puts `positions` and `lengths` into device memory, then per
    layer `append` and attention; a graph of the latter two stays valid over steps, and over every `resize` that does
    not grow. Growing gives new addresses: `generation` counts them, and graphs of the old ones raise.
    """

    def __init__(self, cache: KvCache, batch: int, page_size: int = 0, n_pages: int | None = None) -> None:
        positive("BatchedKvCache", batch=batch)
        if page_size and (page_size < 16 or page_size & (page_size - 1)):
            raise SpecError(f"BatchedKvCache.page_size: must be a power of two from 16 on, or 0 (got {page_size})")
        if n_pages is not None and not page_size:
            raise SpecError(f"BatchedKvCache.n_pages: needs a page_size (got n_pages={n_pages})")
        self.device = cache.device
        self.n_layers, self.n_heads, self.n_kv_heads = cache.n_layers, cache.n_heads, cache.n_kv_heads
        self.head_dim, self.max_len, self.dtype = cache.head_dim, cache.max_len, cache.dtype
        self.page_size = page_size
        self.generation = 0
        self._n_pages = n_pages
        self._store: KvLayers | None = None
        self._allocate(batch)

    def _allocate(self, batch: int) -> None:
        self.batch = self.allocated_batch = batch
        device = self.device
        self._lengths = np.zeros(batch, np.int32)
        self.pages: PageTable | None = None
        rows: tuple[int, ...] = (batch, self.n_kv_heads, self.max_len)
        if self.page_size:
            per_sequence = -(-self.max_len // self.page_size)
            n_pages = self._n_pages or batch * per_sequence
            self.pages = PageTable(device, batch, per_sequence, n_pages, self.page_size)
            rows = (n_pages, self.n_kv_heads, self.page_size)
        self._store = KvLayers(device, self.n_layers, rows, self.head_dim, self.dtype)
        self._positions, self._device_lengths = (device.array(np.zeros(batch, np.int32)) for _ in range(2))
        self._pointers: dict[tuple[int, str], Buffer] = {}
        self._appends: dict[tuple[int, str], BoundKernel] = {}

    # memory -------------------------------------------------------------------------------------------------------
    def resize(self, batch: int) -> bool:
        """Use `batch` sequences; true if the addresses changed, which is when it grows past what is allocated.

        A smaller batch keeps memory, addresses and lengths; a grown one starts empty. Raises `CudaError` before
        anything is given up where the memory for growing is not there.
        """
        positive("BatchedKvCache", batch=batch)
        if batch <= self.allocated_batch and self._store:
            self.batch = batch
            return False
        if not self.page_size:
            grown = bytes_per_sequence(self.n_layers, self.n_kv_heads, self.head_dim, self.max_len, self.dtype) * batch
            use = self.device.memory()
            there = use.free + use.reserved - use.used + self.nbytes
            if grown + overhead(batch, self.n_layers, None) > there:
                need = f"{batch} sequences need {grown:,} bytes"
                raise CudaError(f"BatchedKvCache.resize: {need}, about {there:,} are there; nothing was changed")
        self.free()
        self._allocate(batch)
        self.generation += 1
        log.info("BatchedKvCache: grown to %d sequences; graphs of the old addresses are invalid", batch)
        return True

    @property
    def nbytes(self) -> int:
        """Device memory of the caches."""
        return self._store.nbytes if self._store else 0

    @property
    def allocated(self) -> bool:
        """Whether the memory is there; false after `free`."""
        return bool(self._store)

    def buffers(self, layer: int) -> dict[str, Buffer]:
        """The buffers of a layer by parameter name, for the sequences in use; with pages also page_table."""
        if not self._store:
            raise CudaError("BatchedKvCache: was freed; resize it")
        held = self._store.buffers(layer)
        if self.pages is not None:
            return held | {"page_table": self.pages.buffer[: self.batch]}
        return {name: buffer[: self.batch] for name, buffer in held.items()}

    @property
    def positions(self) -> Buffer:
        """s32 `[batch]` on the device: where this step appends; −1 for a slot that takes no part."""
        return self._positions[: self.batch]

    @property
    def lengths(self) -> Buffer:
        """s32 `[batch]` on the device: what this step attends over; 0 for a slot that takes no part."""
        return self._device_lengths[: self.batch]

    def pointers(self, layer: int, kind: str) -> Buffer:
        """u64 `[batch]` on the device: where each sequence's "k" or "v" of a layer begins (contiguous storage only)."""
        if self.pages is not None:
            raise SpecError("BatchedKvCache.pointers: a paged cache has no contiguous sequences")
        key = (layer, kind)
        if key not in self._pointers:
            buffer = self._buffer(layer, kind)
            self._pointers[key] = self.device.pointers([buffer[i] for i in range(self.allocated_batch)])
        return self._pointers[key][: self.batch]

    def _buffer(self, layer: int, kind: str) -> Buffer:
        if kind not in ("k", "v"):
            raise SpecError(f'BatchedKvCache: kind must be "k" or "v" (got {kind!r})')
        if not self._store:
            raise CudaError("BatchedKvCache: was freed; resize it")
        return self._store.buffers(layer)[f"{kind}_cache"]

    def free(self) -> None:
        """Give the memory back; graphs and bound kernels that use it raise from then on."""
        if self._store:
            self._store.free()
            for buffer in (self._positions, self._device_lengths, *self._pointers.values()):
                buffer.free()
            if self.pages is not None:
                self.pages.buffer.free()
        self._store, self._pointers, self._appends = None, {}, {}

    def reset(self) -> None:
        """Forget all positions; the bytes stay."""
        for slot in range(self.allocated_batch):
            self.set_length(slot, 0)

    def zero(self, stream: Stream | None = None) -> None:
        """Forget all positions and fill the memory with zeros."""
        self.reset()
        if self._store:
            self._store.zero(stream)

    # lengths ------------------------------------------------------------------------------------------------------
    def length(self, slot: int) -> int:
        """Positions held by a slot."""
        self._check_slot(slot)
        return int(self._lengths[slot])

    def set_length(self, slot: int, n: int) -> None:
        """Say that a slot holds `n` positions, 0 … max_len; pages are taken or given back."""
        self._check_slot(slot, self.allocated_batch)
        if not 0 <= n <= self.max_len:
            raise SpecError(f"BatchedKvCache.set_length: must be within 0 … {self.max_len} (got {n})")
        if self.pages is not None:
            self.pages.reserve({slot: n})
            self.pages.shrink(slot, n)
        self._lengths[slot] = n

    def rollback(self, slot: int, position: int) -> None:
        """Forget the positions of a slot from `position` on; never lengthens it."""
        if position < 0:
            raise SpecError(f"BatchedKvCache.rollback: position must be ≥ 0 (got {position})")
        self.set_length(slot, min(self.length(slot), position))

    # a decode step ------------------------------------------------------------------------------------------------
    def step(self, slots: Iterable[int] | None = None, stream: Stream | None = None) -> None:
        """Make room for one position in `slots` (default: all in use) and say so to the device, on `stream`.

        Raises `CapacityError`, changing nothing, when a slot is full or pages run out.
        """
        active = list(range(self.batch) if slots is None else slots)
        for slot in active:
            if self.length(slot) >= self.max_len:
                raise CapacityError(
                    f"BatchedKvCache: slot {slot} holds all {self.max_len} positions; nothing was changed"
                )
        if self.pages is not None:
            self.pages.reserve({slot: self.length(slot) + 1 for slot in active})
            self.pages.upload(stream)
        positions, lengths = np.full(self.allocated_batch, -1, np.int32), np.zeros(self.allocated_batch, np.int32)
        positions[active] = self._lengths[active]
        self._lengths[active] += 1
        lengths[active] = self._lengths[active]
        self._positions.copy_from(positions, stream)
        self._device_lengths.copy_from(lengths, stream)

    def append(self, layer: int, k: Buffer, v: Buffer, stream: Stream | None = None) -> None:
        """Write this step's k, v `[batch, n_kv_heads, head_dim]` at `positions`, in one launch."""
        shape = (self.batch, self.n_kv_heads, self.head_dim)
        k, v = (as_rows(f"append({n})", b, shape) for n, b in (("k", k), ("v", v)))
        self._append(layer, k, v).launch(stream)

    def _append(self, layer: int, k: Buffer, v: Buffer) -> BoundKernel:
        from ptxgen.kernels import KvCacheScatter

        key = (layer, f"{k.dtype} {self.batch}")
        bound = self._appends.get(key)
        if bound is not None:
            return bound.update(k=k, v=v)
        spec = KvCacheScatter(
            max_len=self.max_len, head_dim=self.head_dim, n_kv_heads=self.n_kv_heads, kv_dtype=self.dtype,
            src_dtype=k.dtype, batched=True, page_size=self.page_size,
        )  # fmt: skip
        pages = {} if self.pages is None else {"n_pages": self.pages.n_pages}
        bound = self.device.load(spec).bind(k=k, v=v, positions=self.positions, **self.buffers(layer), **pages)
        self._appends[key] = bound
        return bound

    # contents -----------------------------------------------------------------------------------------------------
    def scatter_from(
        self, cache: KvCache, slot: int, seq_len: int, layer: int | None = None, stream: Stream | None = None
    ) -> None:
        """Copy the first `seq_len` positions of a single cache, one layer or all, into a slot, and set its length.

        Stays on the device: one strided copy per layer and buffer (per page where paged). 0 does nothing.
        Raises `SpecError` for a slot that is not there, other dimensions, or more than the cache holds.
        """
        self._check_slot(slot)
        names = ("n_layers", "n_kv_heads", "head_dim", "dtype", "device")
        if any(getattr(self, name) != getattr(cache, name) for name in names):
            raise SpecError(f"BatchedKvCache.scatter_from: must have the same dimensions (got {cache!r})")
        layers = range(self.n_layers) if layer is None else (layer,)
        held = min(cache.length(i) for i in layers)
        if not 0 <= seq_len <= held:
            raise SpecError(f"BatchedKvCache.scatter_from: seq_len must be within 0 … {held} (got {seq_len})")
        if seq_len == 0:
            return
        assert self._store is not None
        self.set_length(slot, seq_len)
        if self.pages is not None:
            self.pages.upload(stream)
        for index in layers:
            mine = self._store.buffers(index)
            for name, buffer in cache.buffers(index).items():
                if self.pages is None:
                    pairs = slot_blocks(buffer, mine[name], slot, seq_len)
                else:
                    pairs = page_blocks(buffer, mine[name], self.pages.table[slot].tolist(), seq_len)
                for source, target in pairs:
                    source.move_to(target, stream)

    def peek(self, layer: int, kind: str, slot: int, position: int, head: int = 0, n: int | None = None) -> np.ndarray:
        """The first `n` values (default: all) at one position of one head of a slot, as float32."""
        count = self.head_dim if n is None else n
        limits = {"position": (position, self.length(slot)), "head": (head, self.n_kv_heads)}
        for name, (value, limit) in limits.items():
            if not 0 <= value < limit:
                raise SpecError(f"BatchedKvCache.peek: {name} must be within 0 … {limit - 1} (got {value})")
        if not 1 <= count <= self.head_dim:
            raise SpecError(f"BatchedKvCache.peek: n must be within 1 … {self.head_dim} (got {n})")
        at = (slot, head, position)
        if self.pages is not None:
            page = int(self.pages.table[slot, position // self.page_size])
            at = (page, head, position % self.page_size)
        values = self._buffer(layer, kind)[at].numpy()
        assert self._store is not None
        scales = self._store.buffers(layer).get(f"{kind}_scales")
        return dequantise(values, None if scales is None else scales[at].numpy())[:count]

    def _check_slot(self, slot: int, limit: int | None = None) -> None:
        if not 0 <= slot < (limit or self.batch):
            raise SpecError(f"BatchedKvCache: slot must be within 0 … {(limit or self.batch) - 1} (got {slot})")
