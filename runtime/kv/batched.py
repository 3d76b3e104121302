"""`BatchedKvCache`: the keys and values of several sequences, contiguous or in pages. Owns lengths, not attention."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator

import numpy as np

from ptxgen.errors import CapacityError, CudaError, SpecError, brief
from ptxgen.lines.words import counted
from ptxgen.models.attention import program_of
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.memory.stream_order import after_others
from ptxgen.runtime.core.memory.wrap import argument
from ptxgen.runtime.core.step import Step
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.kv.kvcache import KvCache, as_rows, scatter
from ptxgen.runtime.kv.layers import KvLayers, check_kind, from_zero, positive, within
from ptxgen.runtime.kv.pages import PageTable
from ptxgen.runtime.kv.sizing import bytes_per_sequence, overhead
from ptxgen.runtime.kv.slot_copies import Pair, blocks_of_slot
from ptxgen.spec.cache_fields import PAGE_LAYOUTS

log = logging.getLogger("ptxgen.runtime")


class BatchedKvCache:
    """Caches `[batch, n_kv_heads, max_len, head_dim]` per layer, with the dimensions of a single `KvCache`.

    With `page_size`, `[n_pages, n_kv_heads, page_size, head_dim]`, in the `page_layout` "nhd" `[n_pages, page_size,
    n_kv_heads, head_dim]`, and `page_table`. Layers that are rings there are rings here; in pages every slot has pages
    of its own for them, which come again in a page table that never changes. A slot has one length for all
    layers. A decode step is `step()`, which makes room and puts `positions` and `lengths` into device memory, then per
    layer `append` and attention; a graph of the latter two stays valid over steps, and over every `resize` that does
    not grow. Growing gives new addresses: `generation` counts them, and graphs of the old ones raise. A slot that no
    step has named, or whose length was set since, takes part in nothing: it is −1 in `positions`, 0 in `lengths`.
    """

    def __init__(
        self, cache: KvCache, batch: int, page_size: int = 0, n_pages: int | None = None, page_layout: str = "hnd"
    ) -> None:
        if not isinstance(cache, KvCache):
            raise SpecError(f"BatchedKvCache.cache: must be a KvCache (got {brief(cache)})")
        (batch,) = positive("BatchedKvCache", batch=batch)
        if not isinstance(page_size, int | np.integer) or page_size & (page_size - 1) or 0 < page_size < 16:
            raise SpecError(f"BatchedKvCache.page_size: must be a power of two from 16 on, or 0 (got {page_size!r})")
        if n_pages is not None and not page_size:
            raise SpecError(f"BatchedKvCache.n_pages: needs a page_size (got n_pages={n_pages})")
        if n_pages is not None:
            (n_pages,) = positive("BatchedKvCache", n_pages=n_pages)
        if page_layout not in PAGE_LAYOUTS or (page_layout != PAGE_LAYOUTS[0] and not page_size):
            want = f"one of {', '.join(PAGE_LAYOUTS)}, the first without pages"
            raise SpecError(f"BatchedKvCache.page_layout: must be {want} (got {brief(page_layout)})")
        if page_size and any(ring % page_size for ring in cache.rings.sizes):
            said = ", ".join(map(str, sorted({ring for ring in cache.rings.sizes if ring})))
            raise SpecError(f"BatchedKvCache.page_size: must divide the rings of {said} rows (got {page_size})")
        self.device, self.rings, self.page_layout = cache.device, cache.rings, page_layout
        self.n_layers, self.n_heads, self.n_kv_heads = cache.n_layers, cache.n_heads, cache.n_kv_heads
        self.head_dim, self.max_len, self.dtype = cache.head_dim, cache.max_len, cache.dtype
        self.page_size = int(page_size)
        self.generation = 0
        self._n_pages = n_pages
        self._store: KvLayers | None = None
        self._check_room("BatchedKvCache", batch)
        self._allocate(batch)

    def _allocate(self, batch: int) -> None:
        """Take memory for `batch` empty sequences; where there is none, nothing has changed."""
        device, (rows, count) = self.device, self._extents(batch)
        shapes = [self._shape(layer, rows, count, batch) for layer in range(self.n_layers)]
        store = KvLayers(device, shapes, self.head_dim, self.dtype)
        pages = PageTable(device, batch, self._entries, count, rows) if self.page_size else None
        told = device.array(np.repeat(np.array([[-1], [0]], np.int32), batch, 1))
        self.batch = self.allocated_batch = batch
        self.pages: PageTable | None = pages
        self._store, self._told = store, told  # positions and lengths on the device, side by side
        self._positions, self._device_lengths = told[0], told[1]
        self._lengths = np.zeros(batch, np.int32)
        self._written = np.zeros(batch, np.int32)  # positions of slots up to here have had a row
        self._stepping = np.zeros(batch, bool)  # slots whose position on the device may not be −1
        self._pointers: dict[tuple[int, str], Buffer] = {}
        self._appends: dict[tuple[int, str], Step] = {}
        self._ring_tables: dict[int, Buffer] = {}

    def _shape(self, layer: int, rows: int, count: int, batch: int) -> tuple[int, ...]:
        """Of a layer's K and V but for a row's elements."""
        ring = self.rings.sizes[layer]
        if not self.page_size:
            return (batch, self.n_kv_heads, ring or rows)
        axes = (self.n_kv_heads, self.page_size)
        pages = batch * ring // self.page_size if ring else count
        return (pages, *(axes[::-1] if self.page_layout == "nhd" else axes))

    def _ring_pages(self, slot: int, layer: int) -> list[int]:
        """A slot's own pages of a layer that is a ring."""
        n = self.rings.sizes[layer] // self.page_size
        return list(range(slot * n, (slot + 1) * n))

    def _ring_table(self, layer: int) -> Buffer:
        """The page table of layers with rings of this size: pages that come again."""
        ring = self.rings.sizes[layer]
        if ring not in self._ring_tables:
            n = ring // self.page_size
            entries = np.arange(self._entries) % n + n * np.arange(self.allocated_batch)[:, None]
            self._ring_tables[ring] = self.device.array(entries.astype(np.int32))
        return self._ring_tables[ring]

    @property
    def _entries(self) -> int:
        """Pages of a full sequence."""
        return -(-self.max_len // self.page_size)

    def _extents(self, batch: int) -> tuple[int, int]:
        """Positions of a page, or of a sequence, and how many of these are allocated."""
        if self.page_size:
            return self.page_size, self._n_pages or batch * self._entries
        return self.max_len, batch

    def __repr__(self) -> str:
        shape = f"{self.batch} sequences × {self.n_layers} × [{self.n_kv_heads}, {self.max_len}, {self.head_dim}]"
        pages = f", pages of {self.page_size}" if self.page_size else ""
        return f"BatchedKvCache({shape} {self.dtype}{pages}, {self.device.name})"

    # memory -------------------------------------------------------------------------------------------------------
    def resize(self, batch: int) -> bool:
        """Use `batch` sequences; true if the addresses changed, which is when it grows past what is allocated.

        A smaller batch keeps memory and addresses, and empties the slots that go out of use; a grown one starts empty.
        Raises `CapacityError` before anything is given up where the memory for growing is not there. Should others
        take it in that moment, the cache is left as after `free`.
        """
        (batch,) = positive("BatchedKvCache", batch=batch)
        if batch <= self.allocated_batch and self._store:
            self._empty(batch, self.batch, None)
            self.batch = batch
            return False
        self._check_room("BatchedKvCache.resize", batch)
        self.free()
        self._allocate(batch)
        self.generation += 1
        log.info("BatchedKvCache: grown to %d sequences; graphs of the old addresses are invalid", batch)
        return True

    def _check_room(self, label: str, batch: int) -> None:
        """`CapacityError` where the memory for `batch` sequences is not there: a system that lends more than it has
        would end the process in the middle of the first fill."""
        rows, count = self._extents(batch)
        row = bytes_per_sequence(1, self.n_kv_heads, self.head_dim, 1, self.dtype)
        whole = row * rows * self.rings.sizes.count(0)  # of a page, or of a sequence, in all layers without rings
        fixed = row * batch * sum(self.rings.sizes) + overhead(batch, self.n_layers, None)
        fixed += 4 * batch * self._entries if self.page_size else 0
        need, there = fixed + whole * count, self.device.memory().available + self.nbytes
        if not need > there > 0:  # 0: the system does not say
            return
        what, narrower = counted(batch, "sequence"), "elements of fewer bytes"
        if self._n_pages:
            what, fitting = f"{what} and {counted(count, 'page')}", max(0, there - fixed) // max(whole, 1)
            fit = f"n_pages={fitting}" if whole and fitting else "fewer sequences" if batch > 1 else narrower
        else:
            what, fitting = f"{what} of {self.max_len} positions", batch * there // need
            fit = f"about {fitting} of them" if fitting else "a smaller max_len" if whole else narrower
        said = f"caches for {what} need {need:,} bytes, and {self.device.name} has about {there:,} free"
        raise CapacityError(f"{label}: {said}; {fit} would fit; nothing was changed")

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
        held = self._held.buffers(layer)
        if self.pages is not None:
            table = self._ring_table(layer) if self.rings.sizes[layer] else self.pages.buffer
            return held | {"page_table": table[: self.batch]}
        return {name: buffer[: self.batch] for name, buffer in held.items()}

    @property
    def _held(self) -> KvLayers:
        if not self._store:
            raise CudaError("BatchedKvCache: was freed; resize it")
        return self._store

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
        key = (within("BatchedKvCache: layer", layer, 0, self.n_layers - 1), kind)
        check_kind("BatchedKvCache.pointers", kind)
        if key not in self._pointers:
            buffer = self._held.buffers(layer)[f"{kind}_cache"]
            self._pointers[key] = self.device.pointers([buffer[i] for i in range(self.allocated_batch)])
        return self._pointers[key][: self.batch]

    def free(self) -> None:
        """Give the memory back; graphs and bound kernels that use it raise from then on."""
        if self._store:
            self._store.free()
            for buffer in (self._told, *self._pointers.values()):
                buffer.free()
            for table in (*([] if self.pages is None else [self.pages.buffer]), *self._ring_tables.values()):
                table.free()
        self._ring_tables = {}
        self._store, self._pointers, self._appends = None, {}, {}
        self._lengths[:], self._written[:], self._stepping[:] = 0, 0, False

    def reset(self) -> None:
        """Forget all positions; the bytes stay."""
        _ = self._held
        self._empty(0, self.batch, None)

    def zero(self, stream: object = None) -> None:
        """Forget all positions and fill the memory with zeros."""
        stream = self.device._uncaptured(stream, "BatchedKvCache.zero", "lengths are the host's; fill buffers(layer)")
        self._held.zero(stream)
        self.reset()

    # lengths ------------------------------------------------------------------------------------------------------
    def length(self, slot: int) -> int:
        """Positions held by a slot."""
        return int(self._lengths[self._slot(slot)])

    def set_length(self, slot: int, n: int, stream: object = None) -> None:
        """Say that a slot holds `n` positions, 0 … max_len; pages are taken or given back.

        The slot takes part in nothing until the next step; where it did, the device is told, on `stream`.
        """
        at, length = self._slot(slot), within("BatchedKvCache.set_length:", n, 0, self.max_len)
        where = self.device._uncaptured(stream, "BatchedKvCache.set_length", "lengths are the host's")
        _ = self._held
        for layer in range(self.n_layers):
            self.rings.check("BatchedKvCache.set_length", layer, length, int(self._written[at]))
        with self._reserved({at: length}):
            self._put_out(at, at + 1, where)
        self._put_length(at, length, max(length, int(self._written[at])))

    def _put_length(self, at: int, length: int, written: int) -> None:
        """What the host knows of a slot that takes part in nothing, and has the pages; `written`: of its rings."""
        self._lengths[at], self._written[at] = length, written if length else 0
        if self.pages is not None:
            self.pages.shrink(at, length)

    @contextlib.contextmanager
    def _reserved(self, lengths: dict[int, int]) -> Iterator[None]:
        """Pages for lengths of slots, which are given back after an error."""
        try:
            if self.pages is not None:
                self.pages.reserve(lengths)
            yield
        except BaseException:
            if self.pages is not None:
                for slot in lengths:
                    self.pages.shrink(slot, int(self._lengths[slot]))
            raise

    def _put_out(self, first: int, end: int, where: Stream | None) -> None:
        """Tell the device of neighbouring slots that they take part in nothing, if it does not know."""
        if self._stepping[first:end].any():
            self._positions[first:end].fill(-1, where)
            self._device_lengths[first:end].fill(0, where)
            self._stepping[first:end] = False

    def _empty(self, first: int, end: int, where: Stream | None) -> None:
        """Neighbouring slots hold nothing; all of them, or after an error what they held."""
        self._put_out(first, end, where)
        self._lengths[first:end] = 0
        for slot in range(first, end):
            self._put_length(slot, 0, 0)

    def rollback(self, slot: int, position: int, stream: object = None) -> None:
        """Forget the positions of a slot from `position` on, as `set_length` does; never lengthens it."""
        first = from_zero("BatchedKvCache.rollback: position", position)
        self.set_length(slot, min(self.length(slot), first), stream)

    def _slot(self, slot: object) -> int:
        return within("BatchedKvCache: slot", slot, 0, self.batch - 1)

    # a decode step ------------------------------------------------------------------------------------------------
    def step(self, slots: Iterable[int] | None = None, stream: object = None) -> None:
        """Make room for one position in `slots` (default: all in use) and say so to the device, on `stream`.

        Raises `CapacityError`, changing nothing, when a slot is full or pages run out. Positions count when the device
        has been told of them, and pages are given back where it was not. Call it before each replay: it cannot be
        recorded.
        """
        where = self.device._uncaptured(stream, "BatchedKvCache.step", "call it before each replay")
        _ = self._held
        if slots is not None and not isinstance(slots, Iterable):
            raise SpecError(f"BatchedKvCache.step: slots must be several ints (got {slots!r})")
        active = list(range(self.batch)) if slots is None else sorted({self._slot(slot) for slot in slots})
        for slot in active:
            if self._lengths[slot] >= self.max_len:
                raise CapacityError(
                    f"BatchedKvCache: slot {slot} holds all {self.max_len} positions; nothing was changed"
                )
        told = np.zeros((2, self.allocated_batch), np.int32)
        told[0] = -1
        told[0, active] = self._lengths[active]
        told[1, active] = told[0, active] + 1
        with self._reserved({slot: self.length(slot) + 1 for slot in active}):
            if self.pages is not None:
                self.pages.upload(where)
            self._stepping[:] = True  # until the copy is under way
            self._told.copy_from(told, where)
        self._stepping = told[0] >= 0
        self._lengths[active] += 1
        self._written[active] = np.maximum(self._written[active], self._lengths[active])

    def append(self, layer: int, k: object, v: object, stream: object = None) -> None:
        """Write this step's k, v `[batch, n_kv_heads, head_dim]` at `positions`, in one launch."""
        layer = within("BatchedKvCache: layer", layer, 0, self.n_layers - 1)
        shape = (self.batch, self.n_kv_heads, self.head_dim)
        where = self.device._given(stream)
        k, v = (argument(self.device, f"append({n})", x) for n, x in (("k", k), ("v", v)))
        self._append(layer, as_rows("append(k)", k, shape), as_rows("append(v)", v, shape)).launch(where)

    def _append(self, layer: int, k: Buffer, v: Buffer) -> Step:
        key = (layer, f"{k.dtype} {self.batch}")
        step = self._appends.get(key)
        if step is not None:
            return step.update(k=k, v=v)
        pages = {} if self.pages is None else {"pages": self._held.buffers(layer)["k_cache"].shape[0]}
        given = {"k": k, "v": v, "positions": self.positions, **self.buffers(layer)}
        options = {"page_size": self.page_size, "page_layout": self.page_layout, "ring": 0} if pages else {}
        append = ("append", scatter(self, k.dtype, layer, batched=True, **options))
        program = program_of(append, sizes={"rows": self.batch, **pages})
        step = self._appends[key] = Step(self.device, program, given | {f"n_{name}": n for name, n in pages.items()})
        return step

    # contents -----------------------------------------------------------------------------------------------------
    def scatter_from(
        self, cache: KvCache, slot: int, seq_len: int, layer: int | None = None, stream: object = None
    ) -> None:
        """Copy the first `seq_len` positions of a single cache, one layer or all, into a slot, and set its length.

        Stays on the device, in strided copies (one per layer and buffer where contiguous) on `stream`; without one,
        after all earlier work on both caches, and complete on return. 0 does nothing. Raises `SpecError` for a slot
        that is not there, other dimensions, or more than the cache holds. After an error the slot holds what it held,
        or nothing, where rows may have been copied over that.
        """
        where = self.device._uncaptured(stream, "BatchedKvCache.scatter_from", "lengths are the host's")
        slot = self._slot(slot)
        names = ("n_layers", "n_kv_heads", "head_dim", "dtype", "device")
        if (
            not isinstance(cache, KvCache)
            or cache.rings.sizes != self.rings.sizes
            or any(getattr(self, name) != getattr(cache, name) for name in names)
        ):
            raise SpecError(f"BatchedKvCache.scatter_from: must have the same dimensions (got {brief(cache)})")
        layers = range(self.n_layers) if layer is None else (layer,)
        length = within("BatchedKvCache.scatter_from: seq_len", seq_len, 0, min(cache.length(i) for i in layers))
        if length == 0:
            return
        sources, targets = ([kept.buffers(i) for i in layers] for kept in (cache, self._held))
        if where is None:
            where = self.device.default_stream
            told = [self._told, *([] if self.pages is None else [self.pages.buffer])]
            moved = [b for held in (*sources, *targets) for b in held.values()]
            after_others(where, (b.allocation for b in told + moved))
        # A ring that was rolled back has lost what the positions behind the length overwrote.
        written = max(length, *(cache._written[i] for i in layers if self.rings.sizes[i]), 0)
        if layer is not None:  # the other layers keep their rows, which must serve this length
            for i in range(self.n_layers):
                self.rings.check("BatchedKvCache.scatter_from", i, length, int(self._written[slot]))
            written = max(written, int(self._written[slot]))
        with self._reserved({slot: length}):
            self._put_out(slot, slot + 1, where)
            moves = [
                pair
                for i, source, target in zip(layers, sources, targets, strict=True)
                for pair in self._moves(slot, i, length, source, target)
            ]
            try:
                for here, there in moves:
                    here.move_to(there, where)
                if self.pages is not None:
                    self.pages.shrink(slot, length)
                    self.pages.upload(where)
            except BaseException:
                self._put_length(slot, 0, 0)
                raise
        self._put_length(slot, length, written)
        if stream is None:
            where.synchronize()

    def _moves(
        self, slot: int, layer: int, length: int, source: dict[str, Buffer], target: dict[str, Buffer]
    ) -> Iterator[Pair]:
        """The copies that bring the first positions of a layer into a slot."""
        ring, pages = self.rings.sizes[layer], None
        if self.pages is not None:
            pages = self._ring_pages(slot, layer) if ring else self.pages.table[slot].tolist()
        rows = min(length, ring) if ring else length  # of a ring its rows as they are
        for name, buffer in source.items():
            yield from blocks_of_slot(buffer, target[name], slot, pages, rows, self.page_layout == "nhd")

    def peek(self, layer: int, kind: str, slot: int, position: int, head: int = 0, n: int | None = None) -> np.ndarray:
        """The first `n` values (default: all) at one position of one head of a slot, as float32."""
        label = "BatchedKvCache.peek"
        at = within(f"{label}: position", position, 0, self.length(slot) - 1)
        row = within(f"{label}: head", head, 0, self.n_kv_heads - 1)
        ring = self.rings.sizes[within(f"{label}: layer", layer, 0, self.n_layers - 1)]
        if ring and at < self._written[slot] - ring:
            first = self._written[slot] - ring
            raise CapacityError(f"{label}: layer {layer} is a ring that holds positions from {first} on (got {at})")
        at = at % ring if ring else at
        place = (self._slot(slot), row, at)
        if self.pages is not None:
            pages = self._ring_pages(slot, layer) if ring else self.pages.table[slot]
            inside = (row, at % self.page_size)
            place = (int(pages[at // self.page_size]), *(inside[::-1] if self.page_layout == "nhd" else inside))
        return self._held.values(label, layer, kind, place, n)
