"""The cases of the decode attention benchmark, and their tensors with a float32 result to compare with."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ptxgen.kernels import IncrementalAttention
from ptxgen.scales import SCALE_GROUP, scale_groups

SHAPES = ((32, 4, 64), (32, 8, 128), (12, 2, 128), (28, 4, 128), (32, 32, 128), (32, 32, 80))
GRID = ((1, 512), (1, 4096), (1, 32768), (1, 131072), (8, 4096), (32, 2048))
RAGGED = {"one long": (65536, *(4096,) * 31), "spread": tuple(256 * (i + 1) for i in range(32))}
NAMES = ("k_cache", "v_cache")


@dataclass(frozen=True)
class Case:
    """What is measured: shape, length (`context`), element type of the cache, paging, ragged lengths, and the capacity
    of cache and kernel where it is not the length."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    batch: int
    context: int
    kv_dtype: str = "f16"
    page_size: int = 0
    ragged: str = ""  # a name of `RAGGED`
    capacity: int = 0  # 0: the length

    def fields(self) -> dict[str, Any]:
        """As a row has them: without what is at its default."""
        shown = dataclasses.asdict(self)
        return {k: v for k, v in shown.items() if v or k in ("n_heads", "batch")}

    @property
    def lengths(self) -> tuple[int, ...]:
        return RAGGED[self.ragged] if self.ragged else (self.context,) * self.batch

    @property
    def group(self) -> int:
        return self.n_heads // self.n_kv_heads

    @property
    def bytes(self) -> int:
        """K and V that have to be read."""
        row = self.head_dim * {"f32": 4, "f16": 2, "bf16": 2}.get(self.kv_dtype, 1)
        row += 2 * scale_groups(self.head_dim) if self.kv_dtype == "s8" else 0
        return 2 * sum(self.lengths) * self.n_kv_heads * row

    def spec(self, **options: bool) -> IncrementalAttention:
        """The kernel for it, with these options; one sequence is a batch only where they say so."""
        batched = options.pop("batched", self.batch > 1 or self.page_size > 0)
        return IncrementalAttention(
            max_len=self.capacity or self.context, head_dim=self.head_dim, n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads, q_dtype="f32" if self.kv_dtype == "f32" else "f16", kv_dtype=self.kv_dtype,
            batched=batched, indirect=not batched, page_size=self.page_size, **options,
        )  # fmt: skip


LLAMA = (32, 8, 128)
LISTS: dict[str, tuple[Case, ...]] = {
    "grid": tuple(Case(*shape, *size) for shape in SHAPES for size in GRID),
    "types": tuple(
        Case(*LLAMA, *size, kind)
        for kind in ("e4m3", "s8", "f32", "bf16")
        for size in ((1, 4096), (1, 32768), (1, 131072), (8, 4096), (8, 32768), (32, 4096))
    ),
    "odd": (
        *(Case(8 * g, 8, 128, 1, 32768) for g in (1, 2, 3, 5, 6, 7, 8, 9, 12, 16, 24)),
        *(Case(16 * kv, kv, 128, 1, 32768) for kv in (1, 2, 4)),
        *(Case(32, 8, d, 1, 32768) for d in (40, 64, 80, 96, 192, 256, 512)),
    ),
    "batches": (
        *(Case(*LLAMA, 32, 65536, kind, ragged="one long") for kind in ("f16", "e4m3", "s8")),
        Case(*LLAMA, 32, 8192, ragged="spread"),
        *(Case(*LLAMA, batch, 4096) for batch in (2, 4, 16, 32, 64)),
    ),
    "untuned": tuple(  # batches that no row of the tuning table is for
        Case(*heads, 64, *size)
        for size in ((12, 2048), (12, 512), (24, 2048), (48, 2048))
        for heads in ((24, 24), (16, 16), (3, 3), (96, 24), (12, 3))
    ),
    "capacities": tuple(
        Case(*shape, 1, context, capacity=131072) for shape in (LLAMA, (32, 32, 128)) for context in (512, 4096, 32768)
    ),
    "paged": tuple(
        Case(*LLAMA, *size, page_size=page)
        for size in ((8, 4096), (32, 2048), (8, 32768))
        for page in (0, 16, 64, 256)
    ),
}  # fmt: skip


def cases(which: str) -> tuple[Case, ...]:
    """The cases of a list's name."""
    if which not in LISTS:
        raise SystemExit(f"--cases: one of {', '.join(LISTS)} (got {which})")
    return LISTS[which]


class Inputs:
    """The tensors of one case: `sets` caches (and their scales) to rotate among, and float32 results for the first."""

    def __init__(self, case: Case) -> None:
        import torch

        from benchmarks.timing.gpu import sets_for

        self.case = case
        torch.manual_seed(0)
        capacity = case.capacity or case.context
        page = case.page_size or capacity
        pages = case.batch * -(-capacity // page)
        self.shape = (pages, case.n_kv_heads, page, case.head_dim)
        self.sets = max(2, min(sets_for(case.bytes), int(60e9 // (2 * math.prod(self.shape) * 4))))
        if case.capacity:
            self.caches = self._parts(capacity // case.context)
        else:
            self.caches = [{x: self._cache(self.shape) for x in NAMES} | self._scales() for _ in range(self.sets)]
        kind = torch.float32 if case.kv_dtype == "f32" else torch.float16
        self.q = torch.randn(case.batch, case.n_heads, case.head_dim, device="cuda", dtype=kind)
        self.lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
        self.table = torch.arange(pages, dtype=torch.int32, device="cuda").reshape(case.batch, -1)
        self.wanted = torch.stack([self._attend(i, length) for i, length in enumerate(case.lengths)])

    def _parts(self, most: int) -> list[dict[str, Any]]:
        """Caches within one, each moved on by as many positions as are read, so that all read others."""
        from benchmarks.timing.gpu import sets_for

        count, step, whole = min(sets_for(self.case.bytes), most), self.case.context * self.case.head_dim, self.shape
        pools = {x: self._cache((math.prod(whole) + count * step,)) for x in NAMES}
        return [
            {x: pool[i * step : i * step + math.prod(whole)].view(whole) for x, pool in pools.items()}
            for i in range(count)
        ]

    def _cache(self, shape: tuple[int, ...]) -> Any:
        import torch

        made = torch.empty(shape, dtype=torch.float32 if self.case.kv_dtype == "f32" else torch.float16, device="cuda")
        made.normal_()
        if self.case.kv_dtype == "e4m3":
            return made.to(torch.float8_e4m3fn)
        if self.case.kv_dtype == "s8":
            return (made * 40).clamp(-127, 127).to(torch.int8)
        return made.to(torch.bfloat16) if self.case.kv_dtype == "bf16" else made

    def _scales(self) -> dict[str, Any]:
        import torch

        if self.case.kv_dtype != "s8":
            return {}
        shape = (*self.shape[:-1], scale_groups(self.case.head_dim))
        return {f"{x}_scales": (torch.rand(shape, device="cuda") / 40 + 1 / 80).to(torch.float16) for x in "kv"}

    def _rows(self, x: str, sequence: int, head: int, length: int) -> Any:
        per = self.shape[0] // self.case.batch
        pages = slice(sequence * per, (sequence + 1) * per)
        rows = self.caches[0][f"{x}_cache"][pages, head].float().flatten(0, 1)[:length]
        if self.case.kv_dtype == "s8":
            scales = self.caches[0][f"{x}_scales"][pages, head].float().flatten(0, 1)[:length]
            rows = rows * scales.repeat_interleave(SCALE_GROUP, -1)[:, : self.case.head_dim]
        return rows

    def _attend(self, sequence: int, length: int) -> Any:
        import torch

        case, out = self.case, []
        for head, q in enumerate(self.q[sequence].float().reshape(case.n_kv_heads, -1, case.head_dim)):
            k, v = (self._rows(x, sequence, head, length) for x in "kv")
            out.append(torch.softmax(q @ k.T / math.sqrt(case.head_dim), -1) @ v)
        return torch.cat(out)

    def error(self, out: Any) -> float:
        """‖out − wanted‖ / ‖wanted‖."""
        import torch

        return float(
            torch.linalg.norm(out.float().reshape(self.wanted.shape) - self.wanted) / torch.linalg.norm(self.wanted)
        )
