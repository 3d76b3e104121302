"""From a fresh process to the first launch, split into its parts; and the warm-up of a model's kernels.

python -m benchmarks.cold_start [--rounds 7] [--report [--run ID]]      needs a GPU

"driver" is a process that only imports the bindings, initialises the driver and makes a context; "beyond the driver" is
what a whole process takes longer, all imports and a warm cache of machine code included. Times are medians of fresh
processes, from the moment before they are started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.sentence import in_a_sentence

# Every mark is `time.perf_counter()`, which on Linux all processes share.
DRIVER = """
mark("interpreter")
import cuda.bindings.driver as cu
mark("import of the bindings")
cu.cuInit(0); device = cu.cuDeviceGet(0)[1]
mark("cuInit")
cu.cuDevicePrimaryCtxRetain(device); cu.cuCtxGetCurrent()
mark("primary context")
"""
USER = """
import numpy as np
from ptxgen.kernels import KvCacheScatter
from ptxgen.runtime import open_device
{0}
device = open_device("cuda")
{1}
spec = KvCacheScatter(max_len=4096, head_dim=128, n_kv_heads=8, kv_dtype="f16")
{2}
kernel = device.load(spec)
{3}
row, cache = device.array(np.ones((1, 8, 128), np.float32)), [device.empty((8, 4096, 128), "f16") for _ in "kv"]
bound = kernel.bind(k=row, v=row, k_cache=cache[0], v_cache=cache[1], position=7)
{4}
bound.launch()
{5}
device.synchronize()
mark("first launch done")
origin = device.modules.history[0].origin
"""
PLAIN = 'mark("interpreter")' + USER.format(*[""] * 6)
SPLIT = 'mark("interpreter")' + USER.format(
    'mark("imports of ptxgen and numpy")',
    'mark("open_device: bindings, driver, and beside it the device, the generator, the templates")',
    'from ptxgen.generator import generate; generate(spec, device.target); mark("first rendering of the text")',
    'mark("cache look-up and module load")',
    'mark("allocations and bind")',
    'mark("launch, host")',
)
WARMUP = """
from ptxgen.models import model_shape
from ptxgen.models.plan import plan
from ptxgen.runtime import open_device
device = open_device("cuda")
specs = list(dict.fromkeys(step.spec for step in plan(model_shape({config}), device.target)))
mark("ready")
device.warmup(specs, workers={workers})
mark("warm")
origin = f"{{len(specs)}} {{device.modules.history[0].origin}}"
"""
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "intermediate_size": 14336,
    "rms_norm_eps": 1e-5,
}  # fmt: skip


def fresh(code: str, cache: str) -> tuple[dict[str, float], str]:
    """Run code in a new process: milliseconds from its start to every mark, and what `origin` was."""
    head = "import time\nmarks = {}\norigin = ''\ndef mark(name): marks[name] = time.perf_counter()\n"
    tail = "\nimport json; print(json.dumps([marks, str(origin)]))"
    environment = os.environ | {"PTXGEN_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has byte code
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", head + code + tail], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    marks, origin = json.loads(done.stdout.splitlines()[-1])
    return {name: (at - started) * 1e3 for name, at in marks.items()}, origin


def total(code: str, cache: str, rounds: int) -> float:
    """Median milliseconds from the start of a process to its last mark."""
    return median(max(fresh(code, cache)[0].values()) for _ in range(rounds))


def cold(run: Run, rounds: int) -> None:
    """Driver, whole process with a cold and a warm cache, and the parts of the latter."""
    with tempfile.TemporaryDirectory() as cache:
        fresh(PLAIN, "off")  # the file system's own cache, and byte code
        first, origin = fresh(PLAIN, cache)
        driver = total(DRIVER, cache, rounds)
        whole = total(PLAIN, cache, rounds)
        _, warm = fresh(PLAIN, cache)
        rows = {
            "driver": driver,
            f"whole process ({origin})": max(first.values()),
            f"whole process ({warm})": whole,
            "beyond the driver": whole - driver,
        }
        splits = [fresh(SPLIT, cache)[0] for _ in range(rounds)]
        names = list(splits[0])
        for before, name in zip([None, *names], names, strict=False):
            rows[f"part: {name}"] = median(s[name] - (s[before] if before else 0) for s in splits)
    for name, ms in rows.items():
        row = run.add({"what": "first launch"}, name, us=ms * 1e3)
        print(f"{name:68s} {row['us'] / 1e3:8.1f} ms", flush=True)


def warmups(run: Run, rounds: int) -> None:
    """A model's kernels, compiled and from the cache, one by one and in parallel."""
    for workers in (1, os.cpu_count() or 1):
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("compiled", "cached"):
                    marks, origin = fresh(WARMUP.format(config=repr(LLAMA), workers=workers), cache)
                    times.setdefault(state, []).append(marks["warm"] - marks["ready"])
        for state, measured in times.items():
            count, _, _ = origin.partition(" ")
            case = {"what": "warm-up", "model": "llama 8B", "kernels": int(count), "state": state}
            name = "one by one" if workers == 1 else f"{workers} threads"
            row = run.add(case, name, us=median(measured) * 1e3)
            print(f"warm-up of {count} kernels, {state}, {name:12s} {row['us'] / 1e3:8.1f} ms", flush=True)


def main() -> None:
    rounds = ("--rounds", {"type": int, "default": 7})
    command("cold_start", __doc__, lambda run, given: measure(run, given.rounds), rounds, device=gpu, at_once=True)


def measure(run: Run, rounds: int) -> None:
    """Add the rows of every case to a run."""
    cold(run, rounds)
    warmups(run, max(1, rounds // 3))


if __name__ == "__main__":
    in_a_sentence(main)
