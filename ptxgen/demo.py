"""`make demo`: the attention of one layer of Llama 3.2 1B, token by token, on the GPU or on the CPU executor.

Generates the two kernels of a decode step, writes their PTX, loads them, and runs rotate-and-append then attend over a
growing context, each step compared with NumPy in float64. The CPU executor runs the steps once more in check mode.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.errors import ExecutionError
from ptxgen.kernels import IncrementalAttention, RopeKvAppend
from ptxgen.parity import Verdict, compare, limit_of
from ptxgen.runtime import Device, open_device

SHAPE: dict[str, Any] = dict(max_len=2048, head_dim=64, n_heads=32, n_kv_heads=8, kv_dtype="f16", indirect=True)
ROPE: dict[str, Any] = dict(
    theta=500000.0, scaling="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192
)
# Contexts to attend over: every one of the first tokens, then around tiles and splits, up to the cache's last position.
CONTEXTS = (*range(1, 9), 63, 64, 65, 255, 512, 1024, 2048)
FILLING = """Each line is one step: one token is rotated, appended by the kernel, and attends over the whole context.
Where the context jumps, the positions in between are random numbers, written to the caches by the host as a
prefill would leave them; "filled before" counts them. q, k and v of the tokens are random as well: the shape
is the model's, its weights are not needed.
"""


@dataclass(frozen=True)
class Step:
    """One decode step: the verdict on its output, and its time in microseconds."""

    context: int
    verdict: Verdict
    microseconds: float


class Layer:
    """One layer's caches, the two bound kernels, and the same state in NumPy."""

    def __init__(self, device: Device, seed: int = 0) -> None:
        self.device = device
        self.rng = np.random.default_rng(seed)
        self.append = RopeKvAppend(**SHAPE, **ROPE, src_dtype="f16", in_place=False)
        self.attend = IncrementalAttention(**SHAPE, q_dtype="f16")
        self.kernels = [device.load(spec) for spec in (self.append, self.attend)]
        heads, kv_heads, dim, max_len = (SHAPE[n] for n in ("n_heads", "n_kv_heads", "head_dim", "max_len"))
        half = np.float16
        self.host = {
            "q": np.zeros((1, heads, dim), half), "k": np.zeros((1, kv_heads, dim), half),
            "v": np.zeros((1, kv_heads, dim), half), "q_out": np.full((1, heads, dim), np.nan, half),
            "k_cache": np.full((kv_heads, max_len, dim), np.nan, half),
            "v_cache": np.full((kv_heads, max_len, dim), np.nan, half),
            "position": np.zeros(1, np.int32), "seq_len": np.zeros(1, np.int32),
        }  # fmt: skip
        self.buffers = {name: device.array(value) for name, value in self.host.items()}
        self.out = device.empty((heads, dim), "f16")
        bound = self.buffers
        first = self.kernels[0].bind(**{p.name: bound[p.name] for p in self.kernels[0].params})
        second = self.kernels[1].bind(
            q=bound["q_out"].reshape(heads, dim), k_cache=bound["k_cache"], v_cache=bound["v_cache"], out=self.out,
            seq_len=bound["seq_len"],
        )  # fmt: skip
        self.graph = device.graph()
        self.graph.add(second, after=[self.graph.add(first)])

    def fill(self, context: int) -> int:
        """Random positions up to `context`, as a prefill would leave them; how many these are."""
        start = int(self.host["seq_len"][0])
        if context <= start:
            return 0
        for name in ("k_cache", "v_cache"):
            cache = self.host[name]
            cache[:, start:context] = self.rng.standard_normal((cache.shape[0], context - start, cache.shape[2]))
            self.buffers[name].copy_from(cache)
        self.host["seq_len"][0] = context
        return context - start

    def step(self) -> Step:
        """Append one token and attend; the graph is replayed, only device memory has changed."""
        position = int(self.host["seq_len"][0])
        for name in ("q", "k", "v"):
            self.host[name][:] = self.rng.standard_normal(self.host[name].shape)
            self.buffers[name].copy_from(self.host[name])
        self.host["position"][0], self.host["seq_len"][0] = position, position + 1
        for name in ("position", "seq_len"):
            self.buffers[name].copy_from(self.host[name])
        self.out.fill(float("nan"))
        self.device.synchronize()
        started = time.perf_counter()
        self.graph.launch()
        self.device.synchronize()
        microseconds = (time.perf_counter() - started) * 1e6
        return Step(position + 1, self._judge(), microseconds)

    def _judge(self) -> Verdict:
        written = self.append.reference(**{p.name: self.host[p.name] for p in self.append.params()})
        self.host["k_cache"], self.host["v_cache"] = written["k_cache"], written["v_cache"]
        want = self.attend.reference(
            q=written["q_out"][0], k_cache=self.host["k_cache"], v_cache=self.host["v_cache"],
            out=np.zeros(self.out.shape, np.float16), seq_len=self.host["seq_len"],
        )  # fmt: skip
        return compare("out", self.out.numpy(), want["out"], limit_of(self.attend))


def check() -> bool:
    """The same steps in the CPU executor's check mode; prints what came of it, and says whether all is well."""
    started = time.perf_counter()
    layer = Layer(open_device("cpu", mode="check"))
    try:
        for context in CONTEXTS:
            layer.fill(context - 1)
            if not (verdict := layer.step().verdict).ok:
                raise ExecutionError(f"context {context}: {verdict}")
    except ExecutionError as found:
        print(f"Check mode found:\n{found}")
        return False
    seconds = time.perf_counter() - started
    print(f"The same {len(CONTEXTS)} steps in check mode, {seconds:.1f} s: no race, missing barrier, access out of\n"
          "bounds or read of uninitialised memory was found.")  # fmt: skip
    return True


def write_ptx(layer: Layer, folder: Path) -> list[Path]:
    """The PTX that runs, and its launch contracts."""
    import json

    from ptxgen.output import write_files

    files: dict[str, str | bytes] = {}
    for kernel in layer.kernels:
        files[f"{kernel.ptx.entry}.{kernel.ptx.target}.ptx"] = kernel.ptx.text
        files[f"{kernel.ptx.entry}.{kernel.ptx.target}.json"] = json.dumps(kernel.ptx.manifest(), indent=2) + "\n"
    return list(write_files(folder, files))


def main(folder: Path = Path("demo_out")) -> int:
    """Run the demo; 0 when every step matches."""
    started = time.perf_counter()
    device = open_device()
    layer = Layer(device)
    loaded = time.perf_counter() - started
    paths = write_ptx(layer, folder)
    target = layer.kernels[1].ptx.target
    print(f"Llama 3.2 1B, one layer: {SHAPE['n_heads']} query heads, {SHAPE['n_kv_heads']} KV heads of "
          f"{SHAPE['head_dim']}, f16 cache of {SHAPE['max_len']} positions")  # fmt: skip
    print(f"device {device.name}, PTX for {target}, generated and loaded in {loaded * 1e3:.0f} ms\n")
    print(FILLING)
    print("context  filled before  rotate + append + attend  error against float64")
    wrong = 0
    for context in CONTEXTS:
        filled = layer.fill(context - 1)
        step = layer.step()
        wrong += not step.verdict.ok
        note = "" if step.verdict.ok else f"  WRONG: {step.verdict.why}"
        print(f"{step.context:7d}  {filled:13d}  {step.microseconds:18.0f} µs    {step.verdict.error:.1e} "
              f"(limit {step.verdict.limit:.0e}){note}")  # fmt: skip
    print(f"\n{len(CONTEXTS) - wrong} of {len(CONTEXTS)} steps match.")
    if device.kind == "cpu":
        wrong += not check()
    print("The PTX that ran:")
    for path in paths:
        print(f"  {path}")
    if device.kind == "cpu":
        print("No GPU here: the CPU executor ran this PTX. `ptxgen doctor` says what it looked for.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
