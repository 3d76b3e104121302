"""A batched cache and a single one beside it, as they live under random operations."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import BatchedKvCache, Device, KvCache
from tests.support.attention.kv_caches import spoil
from tests.support.attention.kv_oracle import Oracle
from tests.tools.soaked.life import Life, bytes_of, floats


class Batch(Life):
    """A batched cache, contiguous or in pages, and a single one to copy from; a graph of a step's layers."""

    CHANCES: ClassVar[dict[str, float]] = {
        "decode": 40, "replay": 25, "scatter": 12, "refill": 3, "rollback": 10, "resize": 4, "peek": 6,
    }  # fmt: skip

    def __init__(self, device: Device, dice: np.random.Generator, rng: np.random.Generator) -> None:
        super().__init__(device, dice, rng)
        self.max_len, self.page = int(dice.choice([33, 64, 1300])), int(dice.choice([0, 16, 32]))
        self.dims = (self.layers, self.heads, self.kv_heads, self.dim)
        self.single = KvCache(device, *self.dims, self.max_len, self.kind)
        batch = int(dice.integers(2, 5))
        few = batch * -(-self.max_len // self.page) * 2 // 3 if self.page and dice.random() < 0.5 else None
        self.cache = BatchedKvCache(self.single, batch, page_size=self.page, n_pages=few)
        spec = IncrementalAttention(
            max_len=self.max_len, head_dim=self.dim, n_heads=self.heads, n_kv_heads=self.kv_heads, q_dtype=self.query,
            kv_dtype=self.kind, batched=True, page_size=self.page,
        )  # fmt: skip
        self.attention = device.load(spec)
        spoil(self.single)
        self.start()
        self.refill()

    def start(self) -> None:
        """A cache with new addresses: nothing is held."""
        spoil(self.cache)
        self.slots = [Oracle(*self.dims, self.kind) for _ in range(self.cache.batch)]
        self.graph: Any = None

    def agree(self, after: str) -> None:
        got, want = ([f(i) for i in range(self.cache.batch)] for f in (self.cache.length, self.held))
        assert got == want, f"{after}: {got}, not {want}; {self!r}"
        if self.cache.pages is not None:
            used = sum(-(-n // self.page) for n in want)
            assert self.cache.pages.free_pages == self.cache.pages.n_pages - used, f"{after}: pages; {self!r}"

    def held(self, slot: int) -> int:
        return self.slots[slot].length(0)

    def contents(self) -> list[bytes]:
        lengths = [self.cache.length(slot) for slot in range(self.cache.batch)]
        return [*bytes_of(self.cache), self.cache.positions.numpy().tobytes(), np.array(lengths).tobytes()]

    def any_slot(self) -> int:
        return int(self.rng.integers(self.cache.batch))

    def refill(self) -> None:
        """Other contents for the single cache."""
        self.source = Oracle(*self.dims, self.kind)
        self.single.reset()
        rows = int(self.rng.integers(1, self.max_len + 1))
        for layer in range(self.layers):
            k, v = self.random(rows, *self.kv_shape), self.random(rows, *self.kv_shape)
            self.single.append(layer, self.device.array(k), self.device.array(v))
            self.source.append(layer, floats(k), floats(v))

    def scatter(self) -> None:
        slot, n = self.any_slot(), int(self.rng.integers(1, self.source.length(0) + 1))
        stream = self.device.default_stream if self.rng.random() < 0.5 else None

        def copy() -> None:
            self.cache.scatter_from(self.single, slot, n, stream=stream)

        if not self.fits({slot: n}):
            self.refused(copy)
            return
        copy()
        self.slots[slot].layers = [[x[:n] for x in layer] for layer in self.source.layers]

    def fits(self, lengths: dict[int, int]) -> bool:
        """Whether there are positions and pages for these slots to have these lengths."""
        if max(lengths.values(), default=0) > self.max_len:
            return False
        if self.cache.pages is None:
            return True
        more = (-(-n // self.page) - -(-self.held(slot) // self.page) for slot, n in lengths.items())
        return sum(max(n, 0) for n in more) <= self.cache.pages.free_pages

    def begin(self) -> list[int]:
        """A step of some slots that have room, after one that is refused for others."""
        active = [slot for slot in range(self.cache.batch) if self.rng.random() < 0.7]
        while not self.fits({slot: self.held(slot) + 1 for slot in active}):
            self.refused(lambda: self.cache.step(active))
            slot = active.pop()
            if self.rng.random() < 0.5:
                self.roll(slot, int(self.rng.integers(self.held(slot) + 1)))
        self.cache.step(active, self.device.default_stream)
        return active

    def finish(self, active: list[int], layer: int, rows: list[np.ndarray], out: np.ndarray) -> None:
        q, k, v = map(floats, rows)
        for slot, oracle in enumerate(self.slots):
            if slot in active:
                oracle.append(layer, k[slot], v[slot])
            want = oracle.attend(layer, q[slot]) if slot in active else np.zeros(self.shape)
            self.check(out[slot], want, f"slot {slot} of {active}")

    def rows(self) -> list[np.ndarray]:
        return [self.random(self.cache.batch, *s) for s in (self.shape, self.kv_shape, self.kv_shape)]

    def attend(self, layer: int, q: Any, out: Any, stream: Any) -> None:
        bound = self.attention.bind(q=q, out=out, seq_lens=self.cache.lengths, **self.cache.buffers(layer))
        bound.launch(stream)

    def decode(self) -> None:
        active, stream = self.begin(), self.device.default_stream
        for layer in range(self.layers):
            rows = self.rows()
            q, k, v = (self.device.array(x) for x in rows)
            out = self.device.empty(q.shape, self.query).fill(np.nan)
            self.cache.append(layer, k, v, stream)
            self.attend(layer, q, out, stream)
            self.finish(active, layer, rows, out.numpy())

    def replay(self) -> None:
        if self.graph is None:
            self.buffers = [self.device.array(x) for x in self.rows()]
            self.outs = [self.device.zeros(self.buffers[0].shape, self.query) for _ in range(self.layers)]
            with self.device.graph() as self.graph:
                for layer, out in enumerate(self.outs):
                    self.cache.append(layer, *self.buffers[1:], self.graph.stream)
                    self.attend(layer, self.buffers[0], out, self.graph.stream)
        active, rows = self.begin(), self.rows()
        for buffer, array in zip(self.buffers, rows, strict=True):
            buffer.copy_from(array)
        self.graph.launch()
        for layer, out in enumerate(self.outs):
            self.finish(active, layer, rows, out.numpy())

    def rollback(self) -> None:
        self.roll(self.any_slot(), int(self.rng.integers(self.max_len + 1)))

    def roll(self, slot: int, position: int) -> None:
        self.cache.rollback(slot, position)
        self.slots[slot].rollback(position)

    def resize(self) -> None:
        batch = int(self.rng.integers(1, 6))
        if self.cache.resize(batch):
            self.start()
            return
        empty = (Oracle(*self.dims, self.kind) for _ in range(batch))
        self.slots = [*self.slots[:batch], *empty][:batch]
        self.graph = None

    def peek(self) -> None:
        slot, layer = self.any_slot(), int(self.rng.integers(self.layers))
        if self.held(slot):
            position, head = int(self.rng.integers(self.held(slot))), int(self.rng.integers(self.kv_heads))
            got = self.cache.peek(layer, "k", slot, position, head)
            self.check(got, self.slots[slot].layers[layer][0][position, head], "peek")
