"""Lives of random caches: random operations, each compared with the float64 oracle. `tests.tools.soak` runs them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ptxgen.dtypes import dtype
from ptxgen.errors import CapacityError
from ptxgen.kernels import IncrementalAttention
from ptxgen.parity import LIMITS, compare
from ptxgen.runtime import BatchedKvCache, Device, Executor, KvCache, Snapshot
from tests.support.kv_caches import KINDS, spoil
from tests.support.kv_oracle import Oracle

QUERIES = ("f32", "f16", "bf16")


class Life:
    """A random shape, and operations by name with their chances. `dice` decides the shape, `rng` all that happens."""

    CHANCES: ClassVar[dict[str, float]]

    def __init__(self, device: Device, dice: np.random.Generator, rng: np.random.Generator) -> None:
        self.device, self.rng = device, rng
        self.kv_heads = int(dice.choice([1, 2, 3, 4, 8]))
        self.heads = self.kv_heads * int(dice.choice([1, 2, 3, 4, 7, 8]))
        self.dim = int(dice.choice([32, 64, 80, 128]))
        self.kind, self.query = str(dice.choice(KINDS)), str(dice.choice(QUERIES))
        self.layers = int(dice.integers(1, 4))
        self.shape, self.kv_shape = (self.heads, self.dim), (self.kv_heads, self.dim)
        self.limit = max(LIMITS[self.kind], LIMITS[self.query])
        self.worst = 0.0

    def step(self) -> str:
        """One random operation; its name."""
        chances = np.array(list(self.CHANCES.values()))
        name = str(self.rng.choice(list(self.CHANCES), p=chances / chances.sum()))
        getattr(self, name)()
        self.agree(name)
        return name

    def agree(self, after: str) -> None:
        """Lengths are the oracle's."""
        raise NotImplementedError

    def contents(self) -> list[bytes]:
        """All bytes of all caches."""
        raise NotImplementedError

    def random(self, *shape: int) -> np.ndarray:
        """Normal values that the query type holds."""
        return self.rng.standard_normal(shape, np.float32).astype(dtype(self.query).numpy)

    def nan(self, *shape: int) -> np.ndarray:
        return np.full(shape, np.nan, np.float32).astype(dtype(self.query).numpy)

    def check(self, got: np.ndarray, want: np.ndarray, what: str) -> None:
        verdict = compare(what, got, want, self.limit)
        if not verdict.ok:
            raise AssertionError(f"{verdict}; {self!r}")
        self.worst = max(self.worst, verdict.error / verdict.limit)

    def refused(self, call: Callable[[], object]) -> None:
        """A call that a full cache refuses, and that has changed nothing."""
        before = self.contents()
        try:
            call()
        except CapacityError:
            assert self.contents() == before, f"a refused call wrote; {self!r}"
            return
        raise AssertionError(f"no CapacityError; {self!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.heads}/{self.kv_heads}/{self.dim} {self.query}, {self.kind})"


def floats(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def bytes_of(cache: KvCache | BatchedKvCache) -> list[bytes]:
    return [b.numpy().tobytes() for layer in range(cache.n_layers) for b in cache.buffers(layer).values()]


class Sequence(Life):
    """An executor and its cache, with a captured graph of its layers."""

    CHANCES: ClassVar[dict[str, float]] = {
        "decode": 25, "decode_on_device": 20, "chunk": 12, "append": 6, "rollback": 10, "snapshot": 5, "replay": 15,
        "flash": 8, "rope": 3, "overflow": 3, "peek": 5, "fingerprint": 3,
    }  # fmt: skip

    def __init__(self, device: Device, dice: np.random.Generator, rng: np.random.Generator) -> None:
        super().__init__(device, dice, rng)
        self.max_len = int(dice.choice([17, 64, 250, 2500]))
        shape = (self.layers, self.heads, self.kv_heads, self.dim)
        self.executor = Executor(device, *shape, self.max_len, self.kind, self.query)
        self.cache = self.executor.cache
        spoil(self.cache)
        self.oracle = Oracle(*shape, self.kind)
        self.graph: Any = None

    def agree(self, after: str) -> None:
        got, want = ([x.length(i) for i in range(self.layers)] for x in (self.cache, self.oracle))
        assert got == want, f"{after}: {got}, not {want}; {self!r}"

    def contents(self) -> list[bytes]:
        return bytes_of(self.cache)

    def make_room(self, rows: int) -> None:
        if any(self.oracle.length(i) + rows > self.max_len for i in range(self.layers)):
            self.roll(int(self.rng.integers(0, self.max_len - rows + 1)))

    def roll(self, position: int) -> None:
        self.cache.rollback(position)
        self.oracle.rollback(position)

    def rows(self, *lead: int) -> list[np.ndarray]:
        """q, k, v."""
        return [self.random(*lead, *s) for s in (self.shape, self.kv_shape, self.kv_shape)]

    def any_layer(self) -> int:
        return int(self.rng.integers(self.layers))

    def remember(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        self.oracle.append(layer, floats(k), floats(v))

    def attended(self, layer: int, q: np.ndarray) -> np.ndarray:
        return self.oracle.attend(layer, floats(q))

    def decode(self) -> None:
        self.make_room(1)
        layer, (q, k, v), out = self.any_layer(), self.rows(), self.nan(*self.shape)
        self.remember(layer, k, v)
        assert self.executor.incremental_attention(layer, q, k, v, out) == self.oracle.length(layer)
        self.check(out, self.attended(layer, q), "decode")

    def decode_on_device(self) -> None:
        self.make_room(1)
        layer, host = self.any_layer(), self.rows()
        out = self.device.empty(self.shape, self.query).fill(np.nan)
        self.remember(layer, *host[1:])
        self.executor.incremental_attention(layer, *(self.device.array(x) for x in host), out)
        self.check(out.numpy(), self.attended(layer, host[0]), "decode_on_device")

    def chunk(self) -> None:
        rows = int(self.rng.integers(1, min(self.max_len, 40)))
        self.make_room(rows)
        layer, (q, k, v), out = self.any_layer(), self.rows(rows), self.nan(rows, *self.shape)
        self.remember(layer, k, v)
        self.executor.flash_attention_cached(layer, q, k, v, out)
        self.check(out, self.oracle.attend_chunk(layer, floats(q)), "chunk")

    def append(self) -> None:
        rows = int(self.rng.integers(1, 6))
        self.make_room(rows)
        layer, (_, k, v) = self.any_layer(), self.rows(rows)
        self.remember(layer, k, v)
        assert self.cache.append(layer, self.device.array(k), self.device.array(v)) == self.oracle.length(layer)

    def rollback(self) -> None:
        self.roll(int(self.rng.integers(0, self.max_len + 1)))

    def snapshot(self) -> None:
        kept = self.cache.snapshot()
        for layer, pair in enumerate(kept):
            for got, want in zip(pair, self.oracle.layers[layer], strict=True):
                self.check(got, want.swapaxes(0, 1), "snapshot")
        if self.rng.random() < 0.5:
            with tempfile.TemporaryDirectory() as place:
                kept.save(Path(place) / "cache.npz")
                kept = Snapshot.load(Path(place) / "cache.npz")
            self.cache.zero()
            self.cache.restore(kept)

    def replay(self) -> None:
        self.make_room(1)
        if self.graph is None:
            self.capture()
        for array, buffer in zip(self.host, self.buffers, strict=True):
            array[...] = self.random(*array.shape)
            buffer.copy_from(array, self.executor.stream)
        self.executor.step()
        self.graph.launch(self.executor.stream)
        for layer in range(self.layers):
            self.remember(layer, *self.host[1:])
            self.check(self.outs[layer].numpy(), self.attended(layer, self.host[0]), "replay")
            self.check(self.flashed[layer].numpy(), self.attended(layer, self.host[0]), "replay of flash_decoding")

    def capture(self) -> None:
        self.host = self.rows()
        self.buffers = [self.device.array(x) for x in self.host]
        empty = [self.device.zeros(self.shape, self.query) for _ in range(2 * self.layers)]
        self.outs, self.flashed = empty[: self.layers], empty[self.layers :]
        with self.device.graph() as self.graph:
            for layer in range(self.layers):
                self.executor.incremental_attention(layer, *self.buffers, self.outs[layer], self.graph.stream)
                self.executor.flash_decoding(layer, self.buffers[0], self.flashed[layer], self.graph.stream)

    def flash(self) -> None:
        layer, q, out = self.any_layer(), self.random(*self.shape), self.nan(*self.shape)
        self.executor.flash_decoding(layer, q, out)
        self.check(out, self.attended(layer, q), "flash")

    def rope(self) -> None:
        q, _, k = self.rows()
        position = int(self.rng.integers(self.max_len))
        turned, on_device = q.copy(), self.device.array(k)
        self.executor.rope(turned, on_device, position=position, theta=10000.0, style="neox", precise=True)
        angle = position * 10000.0 ** (-np.arange(self.dim // 2) / (self.dim // 2))
        for got, x in ((turned, q), (on_device.numpy(), k)):
            a, b = np.split(x.astype(np.float64), 2, axis=1)
            self.check(got, np.hstack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)]),
                       "rope")  # fmt: skip

    def overflow(self) -> None:
        rows = self.max_len + 1 - self.oracle.length(0)
        q, k, v = self.rows(rows)
        self.refused(lambda: self.executor.flash_attention_cached(0, q, k, v, np.zeros_like(q)))
        self.refused(lambda: self.cache.append(0, self.device.array(k), self.device.array(v)))
        if rows == 1:
            self.refused(lambda: self.executor.incremental_attention(0, q[0], k[0], v[0], np.zeros_like(q[0])))
            self.refused(self.executor.step)

    def peek(self) -> None:
        layer = self.any_layer()
        if self.oracle.length(layer):
            position, head = int(self.rng.integers(self.oracle.length(layer))), int(self.rng.integers(self.kv_heads))
            got = self.cache.peek(layer, "v", position, head)
            self.check(got, self.oracle.layers[layer][1][position, head], "peek")

    def fingerprint(self) -> None:
        layer = self.any_layer()
        n = int(self.rng.integers(self.oracle.length(layer) + 1))
        want = self.oracle.layers[layer][0][:n, 0].sum(axis=1)
        assert np.allclose(self.cache.fingerprint(layer, n), want, rtol=1e-5, atol=1e-4), repr(self)


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


LIVES = (Sequence, Batch)
