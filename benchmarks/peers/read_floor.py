"""The floor of every kernel that is bound by memory: how long a GPU takes only to read so many bytes, L2 cold.

The best of three ways to read and a few geometries each: all threads over the whole buffer, each CTA a run of its own,
and (sm_90 on) bulk copies into a ring in shared memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

CHUNK = 16384  # bytes of a bulk copy
NEAREST = 4  # ways that a quick look leaves to be compared
CODE = """
typedef unsigned long long u64;
static __device__ __forceinline__ unsigned read_one(const uint4 *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v.x ^ v.y ^ v.z ^ v.w;
}
#define LOAD(a, b, c, d, p) "ld.global.nc.L1::no_allocate.v4.u32 {%" #a ",%" #b ",%" #c ",%" #d "}, [%" #p "];"
#define VALUES(v) "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
#define ALL(v) (v.x ^ v.y ^ v.z ^ v.w)
static __device__ __forceinline__ unsigned read_range(const uint4 *p, u64 i, u64 step, u64 end) {
  unsigned all = 0;
  for (; i + 7 * step < end; i += 8 * step) {  // one statement, so that all eight are in flight at once
    uint4 a, b, c, d, e, f, g, h;
    const uint4 *q = p + i;
    asm volatile(LOAD(0, 1, 2, 3, 32) LOAD(4, 5, 6, 7, 33) LOAD(8, 9, 10, 11, 34) LOAD(12, 13, 14, 15, 35)
                 LOAD(16, 17, 18, 19, 36) LOAD(20, 21, 22, 23, 37) LOAD(24, 25, 26, 27, 38) LOAD(28, 29, 30, 31, 39)
                 : VALUES(a), VALUES(b), VALUES(c), VALUES(d), VALUES(e), VALUES(f), VALUES(g), VALUES(h)
                 : "l"(q), "l"(q + step), "l"(q + 2 * step), "l"(q + 3 * step), "l"(q + 4 * step), "l"(q + 5 * step),
                   "l"(q + 6 * step), "l"(q + 7 * step));
    all ^= ALL(a) ^ ALL(b) ^ ALL(c) ^ ALL(d) ^ ALL(e) ^ ALL(f) ^ ALL(g) ^ ALL(h);
  }
  for (; i < end; i += step) all ^= read_one(p + i);
  return all;
}
extern "C" __global__ void __launch_bounds__(512) read_all(const uint4 *p, u64 n, unsigned *out, unsigned stages) {
  u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  unsigned all = read_range(p, first, gridDim.x * (u64)blockDim.x, n);
  if (all == 0x12345678) *out = all;
}
extern "C" __global__ void __launch_bounds__(512) read_runs(const uint4 *p, u64 n, unsigned *out, unsigned stages) {
  u64 run = (n + gridDim.x - 1) / gridDim.x, begin = run * blockIdx.x, end = begin + run < n ? begin + run : n;
  unsigned all = read_range(p, begin + threadIdx.x, blockDim.x, end);
  if (all == 0x12345678) *out = all;
}
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void read_bulk(const uint4 *p, u64 n, unsigned *out, unsigned stages) {
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ __align__(8) u64 full[16];
  const u64 each = CHUNK / 16, chunks = (n + each - 1) / each;
  if (threadIdx.x) return;
  unsigned bars = (unsigned)__cvta_generic_to_shared(full), room = (unsigned)__cvta_generic_to_shared(ring);
  for (unsigned s = 0; s < stages; s++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bars + 8 * s));
  asm volatile("fence.mbarrier_init.release.cluster;");
  u64 ahead = blockIdx.x;
  unsigned slot = 0, parity = 0;
  for (u64 c = blockIdx.x; ; ) {
    bool issue = ahead < chunks;
    if (issue) {
      u64 left = (n - ahead * each) * 16;
      unsigned bytes = left < CHUNK ? (unsigned)left : CHUNK;
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(bars + 8 * slot), "r"(bytes));
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   :: "r"(room + CHUNK * slot), "l"(p + ahead * each), "r"(bytes), "r"(bars + 8 * slot) : "memory");
      ahead += gridDim.x;
      slot = slot + 1 == stages ? 0 : slot + 1;
      if (ahead < (u64)stages * gridDim.x) continue;  // the ring is not full yet
    }
    if (c >= chunks) break;
    unsigned at = (unsigned)((c - blockIdx.x) / gridDim.x % stages), done = 0;
    parity = (unsigned)((c - blockIdx.x) / gridDim.x / stages & 1);
    while (!done)
      asm volatile("{ .reg .pred d; mbarrier.try_wait.parity.shared.b64 d, [%1], %2; selp.u32 %0, 1, 0, d; }"
                   : "=r"(done) : "r"(bars + 8 * at), "r"(parity) : "memory");
    c += gridDim.x;
  }
  if (n == 0x12345678) *out = ring[0];
}
#endif
""".replace("CHUNK", str(CHUNK))


@dataclass(frozen=True)
class Way:
    """A kernel and a geometry: CTAs an SM, threads, chunks in flight of a CTA (bulk copies)."""

    kernel: str
    ctas: int
    threads: int
    stages: int = 0


def ways(major: int) -> Iterator[Way]:
    """What is tried on a GPU of that major compute capability."""
    for kernel in ("read_all", "read_runs"):
        for ctas, threads in ((1, 128), (1, 256), (1, 512), (2, 256), (2, 512), (4, 128), (4, 256), (4, 512)):
            yield Way(kernel, ctas, threads)
    if major >= 9:
        for ctas, stages in ((1, 4), (1, 8), (1, 13), (2, 3), (2, 6), (4, 3)):
            yield Way("read_bulk", ctas, 32, stages)


class Floor:
    """The read of some bytes alone, rotating through one large buffer. `best` says which way won, by size."""

    def __init__(self) -> None:
        import torch
        from cuda.bindings import driver, nvrtc

        from benchmarks.timing.gpu import check

        program = check(nvrtc.nvrtcCreateProgram(CODE.encode(), b"read.cu", 0, [], []))
        self.major, minor = torch.cuda.get_device_capability()
        arch = f"sm_{self.major}{minor}" + ("a" if self.major == 9 else "")
        check(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={arch}".encode()]))
        image = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, image))
        self.buffer = torch.ones(int(3e9), dtype=torch.uint8, device="cuda")
        self.out = torch.zeros(1, dtype=torch.int32, device="cuda")
        module = check(driver.cuModuleLoadData(image))
        self.functions: dict[str, Any] = {}
        for name in {way.kernel for way in ways(self.major)}:
            function = self.functions[name] = check(driver.cuModuleGetFunction(module, name.encode()))
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            if name == "read_bulk":
                check(driver.cuFuncSetAttribute(function, limit, 13 * CHUNK))
        self.best: dict[int, Way] = {}

    def us(self, nbytes: int) -> float:
        """Microseconds of one read now, by the way that is fastest for that size."""
        nbytes = nbytes // 256 * 256
        if nbytes not in self.best:
            quick = self.measure(nbytes, ways(self.major), replays=3, settle=0.002)
            found = self.measure(nbytes, sorted(quick, key=quick.__getitem__)[:NEAREST])
            self.best[nbytes] = min(found, key=found.__getitem__)
        way = self.best[nbytes]
        return self.measure(nbytes, [way])[way]

    def call(self, nbytes: int) -> Callable[[], None]:
        """One read, by the way that `us` found for that size."""
        nbytes = nbytes // 256 * 256
        return self._call(self.best[nbytes], 0, nbytes)

    def measure(self, nbytes: int, these: Iterable[Way], replays: int = 9, settle: float = 0.04) -> dict[Way, float]:
        """Microseconds of these ways; see `graph_us`."""
        from benchmarks.timing.gpu import graph_us, sets_for

        if not 256 <= nbytes <= self.buffer.numel():
            raise ValueError(f"Floor.measure: from 256 to {self.buffer.numel()} bytes (got {nbytes})")
        sets = max(1, min(max(8, sets_for(nbytes)), self.buffer.numel() // nbytes))
        return {
            way: graph_us([self._call(way, i % sets, nbytes) for i in range(max(sets, 8))], replays, settle)
            for way in these
        }

    def _call(self, way: Way, index: int, nbytes: int) -> Callable[[], None]:
        import torch
        from cuda.bindings import driver

        from benchmarks.timing.gpu import check

        grid = way.ctas * torch.cuda.get_device_properties(0).multi_processor_count
        start = self.buffer.data_ptr() + index * nbytes
        kinds = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
        values = ((start, nbytes // 16, self.out.data_ptr(), way.stages), kinds)
        function, shared = self.functions[way.kernel], way.stages * CHUNK
        return lambda: check(
            driver.cuLaunchKernel(
                function, grid, 1, 1, way.threads, 1, 1, shared, torch.cuda.current_stream().cuda_stream, values, 0
            )
        )
