"""Memory of the oracle: one flat byte array, in which every state space has its place, and how addresses map to it.

Addresses are generic: global ones start at GLOBAL, each CTA's shared memory is seen through a window at SHARED (a peer
of rank r through SHARED + (r + 1 << 24)), each thread's local memory through a window at LOCAL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SHARED = 0x1_0000_0000
LOCAL = 0x2_0000_0000
GLOBAL = 0x7000_0000_0000
RANK_SHIFT = 24


class OracleFault(Exception):
    """The oracle met something it cannot or will not run: an unknown instruction, a wild address, a deadlock."""


class Memory:
    """Global memory: named arrays copied in, each at a 256-byte boundary with a gap of poison after it."""

    def __init__(self) -> None:
        self.bytes = np.zeros(256, np.uint8)
        self.owned = np.zeros(256, bool)
        self.maps: dict[bytes, Any] = {}  # tensor maps by what kernels are given

    def allocate(self, size: int) -> int:
        """Address of `size` fresh bytes."""
        start = -(-self.bytes.size // 256) * 256
        self.bytes = np.concatenate([self.bytes, np.full(start + size + 256 - self.bytes.size, 0xCB, np.uint8)])
        self.owned = np.concatenate([self.owned, np.zeros(self.bytes.size - self.owned.size, bool)])
        self.owned[start : start + size] = True
        return GLOBAL + start

    def add(self, array: np.ndarray) -> int:
        """Address of a copy of `array`."""
        address = self.allocate(array.nbytes)
        self.write(address, array)
        return address

    def write(self, address: int, array: np.ndarray) -> None:
        """Overwrites bytes from `address` on."""
        start = address - GLOBAL
        self.bytes[start : start + array.nbytes] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        """A copy of what is at `address`, with the dtype and shape of `like`."""
        start = address - GLOBAL
        return np.frombuffer(self.bytes[start : start + like.nbytes].tobytes(), like.dtype).reshape(like.shape)


class Spaces:
    """The memory of one launch: `bytes` holds global memory, then the CTAs' shared, then the threads' local memory."""

    def __init__(self, memory: Memory, ctas: np.ndarray, ranks: np.ndarray, cluster_size: int, shared: int, local: int):
        self.global_size = memory.bytes.size
        self.shared_size, self.local_size = -(-shared // 256) * 256, -(-local // 16) * 16
        n_ctas = int(ctas.max()) + 1
        self.local_start = self.global_size + n_ctas * self.shared_size
        rest = np.full(self.local_start - self.global_size + ctas.size * self.local_size, 0xCB, np.uint8)
        self.bytes = np.concatenate([memory.bytes, rest])
        self.owned = memory.owned
        self.ctas, self.ranks, self.cluster_size, self.memory = ctas, ranks, cluster_size, memory

    def finish(self) -> None:
        """Writes global memory back to the `Memory` that outlives the launch."""
        self.memory.bytes = self.bytes[: self.global_size].copy()

    def place(self, address: np.ndarray, size: int, threads: np.ndarray) -> np.ndarray:
        """Positions in `bytes` of the generic addresses that `threads` use for accesses of `size` bytes."""
        address = address.astype(np.int64)
        if (address % size if size & (size - 1) == 0 else address * 0).any():
            raise OracleFault(f"misaligned access of {size} bytes at {address[address % size != 0][0]:#x}")
        at = address - GLOBAL
        shared, local = (address >= SHARED) & (address < LOCAL), (address >= LOCAL) & (address < GLOBAL)
        offset = address - SHARED
        rank = np.where(offset >> RANK_SHIFT, (offset >> RANK_SHIFT) - 1, self.ranks[threads])
        cta = self.ctas[threads] - self.ranks[threads] + rank
        inside = offset & ((1 << RANK_SHIFT) - 1)
        at = np.where(shared, self.global_size + cta * self.shared_size + inside, at)
        own = address - LOCAL
        at = np.where(local, self.local_start + threads * self.local_size + own, at)
        ok = (at >= 0) & np.where(shared, (inside + size <= self.shared_size) & (rank < self.cluster_size), True)
        ok &= np.where(local, own + size <= self.local_size, True)
        known = np.clip(at, 0, self.global_size - size)
        ok &= shared | local | (self.owned[known] & self.owned[known + size - 1] & (at == known))
        if not ok.all():
            bad = np.flatnonzero(~ok)[0]
            raise OracleFault(f"thread {threads[bad]}: no memory at {address[bad]:#x} for {size} bytes")
        return at

    def load(self, at: np.ndarray, size: int) -> np.ndarray:
        """Bytes `[threads, size]` at positions that `place` gave."""
        return self.bytes[at[:, None] + np.arange(size)]

    def store(self, at: np.ndarray, data: np.ndarray) -> None:
        """Writes bytes `[threads, size]`; of two threads at one place, the higher wins."""
        self.bytes[at[:, None] + np.arange(data.shape[1])] = data
