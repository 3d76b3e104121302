"""An executor and its cache, as they live under random operations."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ptxgen.runtime import Device, Executor, Snapshot
from tests.support.attention.kv_caches import spoil
from tests.support.attention.kv_oracle import Oracle
from tests.tools.soaked.life import Life, bytes_of, floats


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
        """Random rows of q, k and v, with leading extents such as tokens."""
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
