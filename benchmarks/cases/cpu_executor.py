"""The kernels that the executor's benchmark runs, each with a launch on any device and what it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ptxgen
from ptxgen.kernels import IncrementalAttention

FOREIGN = Path(__file__).resolve().parent / "foreign"
HEADS, DIM, LENGTH = 32, 128, 512
SIZE, TILE = 256, 64


@dataclass(frozen=True)
class Case:
    """A kernel with its geometry; `arrays` are its arguments in order, of which `output` is written."""

    name: str
    text: str
    entry: str
    grid: tuple[int, ...]
    block: int
    make: Callable[[], list[Any]]
    expected: Callable[[list[Any]], np.ndarray]
    output: int
    shared: int = 0
    cluster: tuple[int, ...] = (1, 1, 1)
    flops: float = 0.0

    @property
    def ctas(self) -> int:
        """CTAs of a launch."""
        return int(np.prod(self.grid))

    def prepare(self, device: Any) -> tuple[list[Any], np.ndarray]:
        """(arguments on a device, what the output must be)."""
        values = self.make()
        return [device.array(v) if isinstance(v, np.ndarray) else v for v in values], self.expected(values)

    def error(self, arguments: list[Any], expected: np.ndarray) -> float:
        """Largest difference from what must come out."""
        return float(np.abs(arguments[self.output].numpy().reshape(expected.shape) - expected).max())


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.einsum("hd,hld->hl", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    found: np.ndarray = np.einsum("hl,hld->hd", weights / weights.sum(1, keepdims=True), v.astype(np.float64))
    return found


def _states(heads: int, length: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(heads)
    q = rng.standard_normal((heads, DIM), np.float32)
    k, v = (rng.standard_normal((heads, length, DIM), np.float32).astype(dtype) for _ in range(2))
    return q, k, v


def foreign_attention(heads: int = HEADS, length: int = LENGTH) -> Case:
    """Decode attention that nvcc compiled: a CTA a head."""

    def make() -> list[Any]:
        return [*_states(heads, length, "f4"), np.empty((heads, DIM), np.float32), np.int32(length)]

    text = (FOREIGN / "decode_attention.ptx").read_text()
    return Case("decode attention, nvcc, f32", text, "decode_attention", (heads,), 128, make,
                lambda values: _attention(*values[:3]), 3)  # fmt: skip


def our_attention(kv_dtype: str) -> Case:
    """Decode attention as `ptxgen.generate` makes it."""
    spec = IncrementalAttention(max_len=LENGTH, head_dim=DIM, n_heads=HEADS, n_kv_heads=HEADS, kv_dtype=kv_dtype)
    ptx = ptxgen.generate(spec, "sm_90a")
    launch = ptx.launch
    names = [param.name for param in ptx.params]

    def make() -> list[Any]:
        q, k, v = _states(HEADS, LENGTH, {"f32": "f4", "f16": "f2"}[kv_dtype])
        known = {"q": q, "k_cache": k, "v_cache": v, "out": np.empty_like(q), "seq_len": np.uint32(LENGTH)}
        return [known[p.name] if p.name in known else np.zeros(p.shape, p.dtype.numpy) for p in ptx.params]

    def expected(values: list[Any]) -> np.ndarray:
        return _attention(*(values[names.index(n)] for n in ("q", "k_cache", "v_cache")))

    return Case(f"decode attention, ours, {kv_dtype}", ptx.text, ptx.entry, tuple(map(int, launch.grid)),
                int(np.prod(launch.block)), make, expected, names.index("out"), launch.shared,
                tuple(launch.cluster or (1, 1, 1)))  # fmt: skip


def sgemm(rows: int = SIZE) -> Case:
    """C = A·B with tiles of 64 × 64, compiled by nvcc; A has `rows` rows, and the other sides are 256."""

    def make() -> list[Any]:
        rng = np.random.default_rng(rows)
        a, b = (rng.standard_normal((n, SIZE), np.float32) for n in (rows, SIZE))
        return [a, b, np.empty((rows, SIZE), np.float32), np.int32(SIZE), np.int32(SIZE)]

    text = (FOREIGN / "sgemm.ptx").read_text()
    return Case(f"SGEMM {SIZE}³, nvcc", text, "sgemm", (SIZE // TILE, rows // TILE), TILE, make,
                lambda values: values[0].astype(np.float64) @ values[1], 2, flops=2.0 * rows * SIZE * SIZE)  # fmt: skip


CASES: dict[str, Callable[[], Case]] = {
    "attention-nvcc-f32": foreign_attention,
    "attention-ours-f32": lambda: our_attention("f32"),
    "attention-ours-f16": lambda: our_attention("f16"),
    "sgemm": sgemm,
}
SCALED: dict[str, Callable[[int], Case]] = {  # by a factor on the number of CTAs
    "attention of 16 positions": lambda factor: foreign_attention(HEADS * factor, 16),
    "sgemm of more rows": lambda factor: sgemm(SIZE * factor),
}
# Cases of tests/evidence/corpus whose time in check mode is measured beside fast mode's, and what they spend it on.
CHECKED = {
    "insertion_sort": "branches, local memory", "histogram": "atomics in shared memory",
    "gemm_tiled": "tiles in shared memory", "gemm_mma": "cp.async, mma",
    "cluster_histogram": "another CTA's shared memory", "bitonic_sort": "shared memory and barriers only",
    "bulk_pipeline": "bulk copies, mbarriers", "wgmma_swizzled": "wgmma",
    "token_pipeline": "cp.async, polling an mbarrier",
}  # fmt: skip
