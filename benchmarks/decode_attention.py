"""Decode attention, one layer: IncrementalAttention beside the read of its KV cache alone, and torch's SDPA.

    python -m benchmarks.decode_attention [--cases grid,types,…]     measure on a GPU, print, append rows
    python -m benchmarks.decode_attention --report [--run ID]        the table of the last run, or of one run

Every implementation is timed as graph nodes back to back over enough KV sets to defeat the L2, and checked against
float32. `ptxgen-programmatic` is the same chain launched programmatically: each kernel's query and newest position wait
for the kernel ahead, its older positions do not. `floor` reads as many bytes once.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.rows import Run, load, markdown
from ptxgen.generator import generate
from ptxgen.kernels import IncrementalAttention

SHAPES = ((32, 4, 64), (32, 8, 128), (12, 2, 128), (28, 4, 128), (32, 32, 128), (32, 32, 80))
GRID = ((1, 512), (1, 4096), (1, 32768), (1, 131072), (8, 4096), (32, 2048))
RAGGED = (65536, *(4096,) * 31)
SCALE_GROUP = 32
READ = """
extern "C" __global__ void __launch_bounds__(512) read_all(const uint4 *p, unsigned long long n, unsigned *out) {
  unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  unsigned all = 0;
  for (; i + 7 * step < n; i += 8 * step) {
    uint4 v[8];
    for (int k = 0; k < 8; k++)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w) : "l"(p + i + k * step));
    for (int k = 0; k < 8; k++) all ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < n; i += step) { uint4 v = p[i]; all ^= v.x ^ v.y ^ v.z ^ v.w; }
  if (all == 0x12345678) *out = all;
}
"""


@dataclass(frozen=True)
class Case:
    """What is measured: shape, capacity and length (`context`), element type of the cache, paging, ragged lengths."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    batch: int
    context: int
    kv_dtype: str = "f16"
    page_size: int = 0
    ragged: bool = False

    def fields(self) -> dict[str, Any]:
        """As a row has them: without what is at its default."""
        shown = dataclasses.asdict(self)
        return {k: v for k, v in shown.items() if v or k in ("n_heads", "batch")}

    @property
    def lengths(self) -> tuple[int, ...]:
        return RAGGED if self.ragged else (self.context,) * self.batch

    @property
    def bytes(self) -> int:
        """K and V that have to be read."""
        row = self.head_dim * {"f32": 4, "f16": 2, "bf16": 2}.get(self.kv_dtype, 1)
        row += 2 * -(-self.head_dim // SCALE_GROUP) if self.kv_dtype == "s8" else 0
        return 2 * sum(self.lengths) * self.n_kv_heads * row

    def spec(self, *, programmatic: bool = False) -> IncrementalAttention:
        batched = self.batch > 1 or self.page_size > 0
        return IncrementalAttention(
            max_len=self.context, head_dim=self.head_dim, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads,
            q_dtype="f32" if self.kv_dtype == "f32" else "f16", kv_dtype=self.kv_dtype, batched=batched,
            indirect=not batched, page_size=self.page_size, programmatic=programmatic,
        )  # fmt: skip


def cases(which: str) -> Iterator[Case]:
    """The cases of a name: grid, types, odd, batches."""
    llama = (32, 8, 128)
    if which == "grid":
        yield from (Case(*shape, *size) for shape in SHAPES for size in GRID)
    elif which == "types":
        sizes = ((1, 4096), (1, 32768), (1, 131072), (8, 4096), (32, 4096))
        yield from (Case(*llama, *size, kind) for kind in ("e4m3", "s8", "f32", "bf16") for size in sizes)
    elif which == "odd":
        yield from (Case(8 * g, 8, 128, 1, 32768) for g in (1, 2, 3, 5, 8, 9, 12, 16, 24))
        yield from (Case(32, 8, d, 1, 32768) for d in (40, 64, 80, 96, 192, 256, 512))
    elif which == "batches":
        yield Case(*llama, 32, 65536, ragged=True)
        yield from (Case(*llama, 32, 2048, page_size=size) for size in (0, 16, 64))
        yield from (Case(*llama, batch, 4096) for batch in (2, 4, 16, 64))
    else:
        raise SystemExit(f"--cases: one of grid, types, odd, batches (got {which})")


class Inputs:
    """The tensors of one case: `sets` caches to rotate among, and float32 results for the first."""

    def __init__(self, case: Case) -> None:
        import torch

        from benchmarks.gpu import sets_for

        self.case = case
        torch.manual_seed(0)
        page = case.page_size or case.context
        pages = case.batch * -(-case.context // page)
        self.shape = (pages, case.n_kv_heads, page, case.head_dim)
        self.sets = max(2, min(sets_for(case.bytes), int(60e9 // (2 * math.prod(self.shape) * 4))))
        self.caches = [{x: self._cache() for x in ("k_cache", "v_cache")} for _ in range(self.sets)]
        self.scales = self._scales()
        kind = torch.float32 if case.kv_dtype == "f32" else torch.float16
        self.q = torch.randn(case.batch, case.n_heads, case.head_dim, device="cuda", dtype=kind)
        self.lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
        self.table = torch.arange(pages, dtype=torch.int32, device="cuda").reshape(case.batch, -1)
        self.wanted = torch.stack([self._attend(i, length) for i, length in enumerate(case.lengths)])

    def _cache(self) -> Any:
        import torch

        made = torch.empty(
            self.shape, dtype=torch.float32 if self.case.kv_dtype == "f32" else torch.float16, device="cuda"
        )
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
        shape = (*self.shape[:-1], -(-self.case.head_dim // SCALE_GROUP))
        make = lambda: (torch.rand(shape, device="cuda") / 40 + 1 / 80).to(torch.float16)  # noqa: E731
        return {"k_scales": make(), "v_scales": make()}

    def _rows(self, x: str, sequence: int, head: int, length: int) -> Any:
        per = self.shape[0] // self.case.batch
        pages = slice(sequence * per, (sequence + 1) * per)
        rows = self.caches[0][f"{x}_cache"][pages, head].float().flatten(0, 1)[:length]
        if self.scales:
            scales = self.scales[f"{x}_scales"][pages, head].float().flatten(0, 1)[:length]
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


Measured = tuple[float, float]  # µs a call, error


def timed(inputs: Inputs, call_of: Callable[[dict[str, Any]], Callable[[], Any]], out: Any = None) -> Measured:
    """Time of the calls over all sets, and the error of the first (into `out`, or returned by the call)."""
    import torch

    from benchmarks.gpu import graph_us

    calls = [call_of(caches) for caches in inputs.caches]
    result = calls[0]()
    torch.cuda.synchronize()
    error = inputs.error(result if out is None else out)
    return graph_us(calls * max(1, -(-8 // len(calls)))), error


def ours(target: str = "", *, programmatic: bool = False) -> Callable[[Inputs], Measured]:
    """IncrementalAttention with the plan of `target` (default: of this GPU)."""

    def measure(inputs: Inputs) -> Measured:
        import torch

        from benchmarks.gpu import Loaded

        case, spec = inputs.case, inputs.case.spec(programmatic=programmatic)
        major, minor = torch.cuda.get_device_capability()
        out = torch.full_like(inputs.q, math.nan)
        loaded = Loaded(generate(spec, target or f"sm_{major}{minor}"), batch=case.batch, pages=inputs.shape[0])
        lengths = {"seq_lens" if spec.batched else "seq_len": inputs.lengths}
        table = {"page_table": inputs.table} if case.page_size else {}
        try:
            fixed = {**inputs.scales, **table, **lengths}
            return timed(inputs, lambda caches: loaded.bind(q=inputs.q, out=out, **caches, **fixed), out)
        finally:
            loaded.close()

    return measure


def sdpa(backend: str) -> Callable[[Inputs], Measured]:
    """torch's scaled_dot_product_attention with one of its backends; equal lengths and half floats only."""

    def measure(inputs: Inputs) -> Measured:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        case = inputs.case
        if case.ragged or case.page_size or case.kv_dtype not in ("f16", "bf16"):
            raise ValueError("not a case for it")
        q = inputs.q[:, :, None].to(inputs.caches[0]["k_cache"].dtype)

        def call(caches: dict[str, Any]) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, caches["k_cache"], caches["v_cache"], enable_gqa=case.n_heads != case.n_kv_heads
                )

        return timed(inputs, lambda caches: lambda: call(caches))

    return measure


class Floor:
    """The read of a case's bytes alone: the best of a few geometries, rotating through one large buffer."""

    def __init__(self) -> None:
        import torch
        from cuda.bindings import driver, nvrtc

        from benchmarks.gpu import check

        program = check(nvrtc.nvrtcCreateProgram(READ.encode(), b"read.cu", 0, [], []))
        major, minor = torch.cuda.get_device_capability()
        check(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()]))
        image = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, image))
        torch.zeros(1, device="cuda")
        self.function = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(image)), b"read_all"))
        self.buffer = torch.ones(int(3e9), dtype=torch.uint8, device="cuda")
        self.out = torch.zeros(1, dtype=torch.int32, device="cuda")

    def us(self, nbytes: int) -> float:
        """Microseconds of one read."""
        import ctypes

        import torch
        from cuda.bindings import driver

        from benchmarks.gpu import check, graph_us, sets_for

        sms = torch.cuda.get_device_properties(0).multi_processor_count
        sets = max(1, min(sets_for(nbytes), self.buffer.numel() // nbytes))

        def call(index: int, grid: int, block: int) -> Callable[[], None]:
            start = self.buffer.data_ptr() + index * (nbytes // 256 * 256)
            values = ((start, nbytes // 16, self.out.data_ptr()), (ctypes.c_uint64,) * 3)
            return lambda: check(
                driver.cuLaunchKernel(
                    self.function, grid, 1, 1, block, 1, 1, 0, torch.cuda.current_stream().cuda_stream, values, 0
                )
            )

        shapes = [(sms * per, block) for per in (1, 2, 4) for block in (256, 512)]
        return min(graph_us([call(i % sets, *shape) for i in range(max(sets, 4))]) for shape in shapes)


IMPLEMENTATIONS: dict[str, Callable[[Inputs], Measured]] = {
    "ptxgen": ours(),
    "ptxgen-programmatic": ours(programmatic=True),
    "ptxgen-sm_80": ours("sm_80"),
    "sdpa-cudnn": sdpa("CUDNN_ATTENTION"),
    "sdpa-flash": sdpa("FLASH_ATTENTION"),
}


def measure_all(run: Run, which: list[str], implementations: list[str]) -> None:
    """Rows of every case of these names."""
    floor = Floor()
    for case in (case for name in which for case in cases(name)):
        inputs = Inputs(case)
        read = floor.us(min(case.bytes, int(2.9e9)))
        run.add(case.fields(), "floor", us=read, bytes=case.bytes)
        shown = [f"floor {read:.2f}"]
        for name in implementations:
            try:
                us, error = IMPLEMENTATIONS[name](inputs)
            except (ValueError, RuntimeError) as refused:
                shown.append(f"{name}: {str(refused).splitlines()[0][:50]}")
                continue
            run.add(case.fields(), name, us=us, bytes=case.bytes, error=error)
            shown.append(f"{name} {us:.2f}" + ("" if error < 5e-3 else f" ERROR {error:.1e}"))
        print(case.fields(), " ".join(shown), flush=True)


def report(rows: list[dict[str, Any]]) -> str:
    """The rows, and the geometric means of peers over ours and of ours over the floor."""
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        by_case.setdefault(str(row["case"]), {})[row["impl"]] = row["us"]
    lines = [markdown(rows), ""]
    for name in dict.fromkeys(row["impl"] for row in rows if row["impl"].startswith("ptxgen")):
        for label, ratio in (("best peer / {}", _over_peers), ("{} / floor", _over_floor)):
            found = [r for times in by_case.values() if (r := ratio(times, name))]
            if found:
                mean = math.exp(sum(map(math.log, found)) / len(found))
                lines.append(f"{label.format(name)}: {mean:.3f} (geometric mean of {len(found)} cases)")
    return "\n".join(lines)


def _over_peers(times: dict[str, float], name: str) -> float:
    peers = [us for impl, us in times.items() if not impl.startswith(("ptxgen", "floor"))]
    return min(peers) / times[name] if peers and name in times else 0.0


def _over_floor(times: dict[str, float], name: str) -> float:
    return times[name] / times["floor"] if name in times and "floor" in times else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="print a run, measure nothing")
    parser.add_argument("--run", help="the run to report (default: the last)")
    parser.add_argument("--cases", default="grid,types,odd,batches", help="names of case lists")
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS), help="which to time")
    arguments = parser.parse_args()
    if arguments.report:
        print(report(load("decode_attention", arguments.run)))
        return
    import torch

    run = Run("decode_attention", torch.cuda.get_device_name())
    try:
        measure_all(run, arguments.cases.split(","), arguments.implementations.split(","))
    finally:
        run.save()
    print(report(run.rows))


if __name__ == "__main__":
    main()
