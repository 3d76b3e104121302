"""Writes docs/performance.md from the last run of every benchmark's rows: `python -m benchmarks.performance`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HEADS = ((32, 4, 64), (32, 8, 128), (12, 2, 128), (28, 4, 128), (32, 32, 128), (32, 32, 80))
GRID = ((1, 512), (1, 4096), (1, 32768), (1, 131072), (8, 4096), (32, 2048))
CACHES = ((1, 4096), (1, 32768), (1, 131072), (8, 4096))
PEERS = ("sdpa-cudnn", "sdpa-flash")

INTRODUCTION = """# Performance

All figures are from one NVIDIA H200 (sm_90a), each beside its peers in one run. The raw rows lie in
`benchmarks/results/`; this file is written from them by `python -m benchmarks.performance`. Measure again with
`python -m benchmarks.decode_attention` (also `prefill`, `flash_decoding`, `small_kernels`, `launch`, `host_attention`).
"""
DECODE = """## Decode attention, f16

Microseconds per call as a graph node, with enough KV sets in turn to defeat the L2: **ours** (with programmatic launch)
/ the better of torch's SDPA with cuDNN and with FlashAttention / the read of the KV cache alone. One launch, whatever
the length.
"""
SHORT = """FlashInfer was not part of this run. Short of the aim (1.45 × the best peer, never below it): 32/8/128 at
32×2048, and multi-head attention (a group of one) from 134 MB on, where cuDNN is ahead by a few percent. Short contexts
are bound by the launch, the load of the length and the merge, not by the memory.
"""


def last_run(bench: str) -> list[dict[str, Any]]:
    """Rows of the latest run of a benchmark."""
    rows = [json.loads(line) for line in (HERE / "results" / f"{bench}.jsonl").read_text().splitlines()]
    return [row for row in rows if row["run"] == rows[-1]["run"]]


def by_case(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """case (as sorted JSON) → implementation → row."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(json.dumps(row["case"], sort_keys=True), {})[row["impl"]] = row
    return found


def mean(ratios: list[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(head: list[str], lines: Iterable[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines]) + "\n"


def decode() -> Iterable[str]:
    """The grid of f16 cases, then the other caches."""
    rows = last_run("decode_attention")
    cases = by_case(rows)

    def at(heads: tuple[int, int, int], point: tuple[int, int], kind: str) -> dict[str, dict[str, Any]]:
        shape = dict(zip(("n_heads", "n_kv_heads", "head_dim"), heads, strict=True))
        case = shape | dict(batch=point[0], context=point[1], kv_dtype=kind)
        return cases.get(json.dumps(case, sort_keys=True), {})

    peer, floor, programmatic, lines = [], [], [], []
    for heads in HEADS:
        cells = ["/".join(map(str, heads))]
        for point in GRID:
            us = {impl: row["us"] for impl, row in at(heads, point, "f16").items()}
            best = min(us[p] for p in PEERS)
            peer.append(best / us["ptxgen"])
            floor.append(us["ptxgen"] / us["floor"])
            programmatic.append(us["ptxgen-programmatic"] / us["floor"])
            cells.append(f"**{us['ptxgen']:.1f}** ({us['ptxgen-programmatic']:.1f}) / {best:.1f} / {us['floor']:.1f}")
        lines.append(cells)
    yield DECODE
    yield table(["heads q/kv/dim", *(f"{b}×{c}" for b, c in GRID)], lines)
    yield (
        f"Geometric means of {len(peer)} cases: best peer / ours {mean(peer):.2f} (least {min(peer):.2f}), ours / read "
        f"{mean(floor):.2f}, with programmatic launch {mean(programmatic):.2f}. Run {rows[0]['run']}, commit "
        f"{rows[0]['commit']}.\n"
    )
    yield SHORT
    lines = []
    for kind in ("f16", "bf16", "e4m3", "s8", "f32"):
        cells = [kind]
        for point in CACHES:
            us = {impl: row["us"] for impl, row in at((32, 8, 128), point, kind).items()}
            cells.append(f"{us['ptxgen']:.1f} µs, {us['floor'] / us['ptxgen']:.2f}" if us else "–")
        lines.append(cells)
    yield "### Other caches, 32/8/128: time, and share of the rate at which the cache can be read\n"
    yield table(["cache", *(f"{b}×{c}" for b, c in CACHES)], lines)


def prefill() -> Iterable[str]:
    """TFLOP/s by heads and length."""
    rows = last_run("prefill")
    names = ("ptxgen", "sdpa-flash", "sdpa-cudnn")
    lines, ratios = [], []
    for key, impls in by_case(rows).items():
        case = json.loads(key)
        heads = f"{case['n_heads']}/{case['n_kv_heads']}/{case['head_dim']}"
        work = 2 * case["n_heads"] * case["head_dim"] * case["tokens"] ** 2 / 1e6
        lines.append([heads, str(case["tokens"]), *(f"{work / impls[n]['us']:.0f}" for n in names)])
        ratios.append(impls["sdpa-flash"]["us"] / impls["ptxgen"]["us"])
    yield "## Prefill, bf16, causal, TFLOP/s\n\nmma.sync, the sm_80 way; wgmma is not used yet.\n"
    yield table(["heads q/kv/dim", "tokens", "ours", "FlashAttention 2 (torch)", "cuDNN (torch)"], lines)
    yield f"FlashAttention 2 / ours: {mean(ratios):.2f} (geometric mean), least {min(ratios):.2f}.\n"


def small() -> Iterable[str]:
    """Kernels of a decode step besides attention, one row each."""
    rows = [r for r in last_run("small_kernels") if r["impl"] == "ptxgen" and r["case"].get("rows") == 1]
    rope = [r["us"] for r in rows if r["case"]["kernel"].startswith("rope_kv_append")]
    yield "## Other kernels of a decode step, as graph nodes\n"
    yield f"- RopeKvAppend, one token, {len(rope)} specs: {min(rope):.2f} to {max(rope):.2f} µs"
    for row in rows:
        if row["case"]["kernel"] in ("arg_max n128256", "arg_max n128256_f16"):
            yield f"- {row['case']['kernel']}: {row['us']:.2f} µs"
    yield ""


def launches() -> Iterable[str]:
    """A launch from Python, and a whole step from host arrays."""
    counts = (2, 5, 20, 40)
    impls: dict[str, dict[int, dict[str, Any]]] = {}
    for row in last_run("launch"):
        impls.setdefault(row["impl"], {})[row["case"]["arguments"]] = row
    lines = [[name, *(f"{c[n]['us']:.2f} ({c[n]['of_c']:.2f})" for n in counts)] for name, c in impls.items()]
    yield "## A launch from Python, microseconds (and times a launch from C)\n"
    yield table(["", *(f"{n} arguments" for n in counts)], lines)
    yield "## TinyLlama's shape, f32 cache of 4096 positions, host arrays in and out\n"
    for row in last_run("host_attention"):
        if row["case"].get("kv_dtype") == "f32":
            yield f"- {row['impl']}: {row['us']:.1f} µs"
    yield ""


def main() -> None:
    """Write the document."""
    parts = [INTRODUCTION, *decode(), *prefill(), *small(), *launches()]
    (HERE.parent / "docs" / "performance.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
