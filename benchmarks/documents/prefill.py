"""The part of docs/performance.md that is about prefill: of every case the newest run that has it beside a peer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.cases.prefill import GROUPS, cases, is_alone
from benchmarks.report.decode import mean, table
from benchmarks.report.rows import RESULTS, runs
from benchmarks.report.selection import commit_of

Impls = dict[str, dict[str, Any]]  # the rows of a case of one run, by implementation

NAMES = {
    "ptxgen": "ours",
    "ptxgen-widened": "ours, widened",
    "ptxgen-sm_90": "ours, mma.sync of sm_90",
    "ptxgen-sm_80": "ours, mma.sync",
    "sdpa-flash": "FlashAttention 2 (torch)",
    "sdpa-cudnn": "cuDNN (torch)",
    "sdpa-cudnn, no mask": "cuDNN (torch), no mask",
    "flashinfer": "FlashInfer",
}
PEERS = ("sdpa-flash", "sdpa-cudnn", "sdpa-cudnn, no mask", "flashinfer")
ALONE = {"n_heads", "n_kv_heads", "head_dim", "tokens", "dtype"}  # what the case of a causal prompt alone has


def newest(peers: int = 1) -> list[Impls]:
    """Of every case the rows of the last run that has ours and so many `peers`, in the order of the benchmark's: the
    rows of a case are written together, so those of a run that was interrupted are whole, too. A peer that this run
    does not have is of the last run before that has it beside ours."""
    found: dict[str, Impls] = {}
    beside: dict[str, Impls] = {}
    for rows in runs("prefill").values():
        here: dict[str, Impls] = {}
        for row in rows:
            here.setdefault(_key(row["case"]), {})[row["impl"]] = row
        for key, impls in here.items():
            theirs = {name: row for name, row in impls.items() if name in PEERS}
            if "ptxgen" in impls and len(theirs) >= peers:
                found[key] = beside.get(key, {}) | impls
            if "ptxgen" in impls:
                beside.setdefault(key, {}).update(theirs)
    order = {_key(case): n for n, case in enumerate(itertools.chain.from_iterable(map(cases, GROUPS)))}
    return [found[key] for key in sorted(found, key=lambda key: (order.get(key, len(order)), key))]


def _key(case: Mapping[str, Any]) -> str:
    return json.dumps(case, sort_keys=True)


def prefill() -> Iterator[str]:
    """TFLOP/s by heads and length; then of chunks, batches, pages and whatever else there is."""
    measured = newest()
    alone, others = (
        [impls for impls in measured if is_alone(impls["ptxgen"]["case"]) is which] for which in (True, False)
    )
    yield (
        "## Prefill, bf16, causal, TFLOP/s\n\nFor sm_90a on wgmma, for sm_80 on `mma.sync`. Graph nodes over "
        "inputs beyond the L2 cache; medians of rounds, each with the implementations in another order. Each line is "
        "of the newest run that measured the case beside a peer; a figure with a star is of an earlier run.\n"
    )
    yield _rates(alone)
    shown = [name for name in NAMES if name != "ptxgen" and any(name in impls for impls in alone)]
    yield f"Times ours, geometric means: {'; '.join(map(_said(alone), shown))}.\n"
    if others:
        yield (
            "Other cases, TFLOP/s as above. `keys`: the tokens are the last of so many positions. `lengths`: a batch "
            "of sequences of these lengths, in pages of `page_size`. `kv_dtype`: a cache of 8 bits; peers have its "
            "values in 16. `fp8`: queries become e4m3, too. `seconds`: launches without a pause, so that "
            'power is the limit. With a head_dim of 120 over 8 bits "ours" is on `mma.sync`.\n'
        )
        yield _rates(others)


def _said(measured: Sequence[Impls]) -> Callable[[str], str]:
    """How an implementation's times stand to ours, in words."""

    def said(name: str) -> str:
        ratios = [impls[name]["us"] / impls["ptxgen"]["us"] for impls in measured if name in impls]
        of = "" if len(ratios) == len(measured) else f" ({len(ratios)} of {len(measured)} cases)"
        return f"{NAMES[name]} {mean(ratios):.2f}, least {min(ratios):.2f}{of}"

    return said


def _rates(measured: Sequence[Impls]) -> str:
    """A table of TFLOP/s, and whose commit each line is of."""
    names = [name for name in NAMES if any(name in impls for impls in measured)]
    more = any(impls["ptxgen"]["case"].keys() - ALONE for impls in measured)
    lines = []
    for impls in measured:
        case, ours = impls["ptxgen"]["case"], impls["ptxgen"]
        shape = f"{case['n_heads']}/{case['n_kv_heads']}/{case['head_dim']}"
        what = [", ".join(f"{name} {case[name]}" for name in case if name not in ALONE)] if more else []
        rates = (_rate(impls[name], ours) if name in impls else "" for name in names)
        lines.append([shape, str(case["tokens"]), *what, *rates, ours["commit"]])
    heads = ["heads q/kv/dim", "tokens", *([""] if more else []), *(NAMES[name] for name in names), "commit"]
    return table(heads, lines)


def _rate(row: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """A row's TFLOP/s, with a star where it is not of our run."""
    return f"{row['tflops']:.0f}" + ("" if row["run"] == ours["run"] else " *")


def counters() -> Iterator[str]:
    """What the hardware counts in prefill's main cases."""
    if "prefill_counters" not in {path.stem for path in RESULTS.glob("*.jsonl")}:
        return
    rows = next(of for of in reversed(runs("prefill_counters").values()) if of[0]["impl"] == "ptxgen")  # others: tiles
    lines = []
    for row in rows:
        heads = "/".join(str(row["case"][name]) for name in ("n_heads", "n_kv_heads", "head_dim"))
        shares = (f"{row[name]:.0f} %" for name in ("tensor_percent", "exponentials_percent"))
        lines.append([heads, str(row["case"]["tokens"]), f"{row['us']:g}", f"{row['GHz']:.2f}", *shares, row["stalls"]])
    yield (
        "## Prefill as ncu counts it\n\nShares of cycles in which the tensor cores are busy, and the units of "
        "exponentials; then what a warp waits for, in shares of its cycles. Warps whose turn it is not, and the "
        f"producer's, wait at barriers and for copies. {commit_of(rows)}\n"
    )
    yield table(["heads q/kv/dim", "tokens", "µs", "GHz", "tensor cores", "exponentials", "waits"], lines)
