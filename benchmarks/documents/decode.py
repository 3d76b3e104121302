"""The decode attention part of docs/performance.md, from the committed rows of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.cases.decode import GRID, LISTS, LLAMA, SHAPES, Case
from benchmarks.report.decode import Times, best, by_case, is_peer, label, mean, over_floor, over_peers, ratios, table
from benchmarks.report.decode_aims import aims
from benchmarks.report.rows import RESULTS, SHARED, load, runs
from benchmarks.report.selection import commit_of

EXACT = 5e-3
NOTES = RESULTS / "decode_attention.md"
NAMES = {
    "sdpa-cudnn": "cuDNN (torch)", "sdpa-flash": "FlashAttention 2 (torch)", "flashinfer-single": "FlashInfer single",
    "flashinfer-single-tc": "FlashInfer single, tensor cores", "flashinfer-batch": "FlashInfer batch, pages of 16",
    "flashinfer-batch-tc": "FlashInfer batch, tensor cores", "flashinfer-xqa": "FlashInfer XQA",
}  # fmt: skip
PEERS = {"cuDNN": "sdpa-cudnn", "FlashAttention 2": "sdpa-flash", "FlashInfer": "flashinfer"}
SECTIONS = {
    "Batches: ragged and even": "batches", "Pages": "paged", "A cache that is not full": "capacities",
    "Groups and head sizes": "odd", "Batches that no row of the tuning table is for": "untuned",
}  # fmt: skip
CACHES = ((1, 4096), (1, 32768), (1, 131072), (8, 4096), (8, 32768), (32, 4096))
INTRODUCTION = """## Decode attention, f16

Microseconds a call, one launch whatever the length: **ours** (with programmatic launch) / the best peer / only reading
the KV cache. Calls are nodes of a CUDA graph, over so many KV caches in turn that none is in the L2. With programmatic
launch each kernel of a chain may begin before the one ahead has ended: it reads older positions at once, and waits with
its query and the newest position.
"""

Cases = Mapping[Case, Times]


def whole_grids() -> dict[str, list[dict[str, Any]]]:
    """Rows of every run that measured the whole grid, by its id."""
    return {name: rows for name, rows in runs("decode_attention").items() if set(LISTS["grid"]) <= by_case(rows).keys()}


def of_grid(rows: Sequence[Mapping[str, Any]]) -> Cases:
    """The grid's cases of a run."""
    return {case: times for case, times in by_case(rows).items() if case in LISTS["grid"]}


def notes() -> tuple[str, str]:
    """The notes' first line, which names their run, and the rest."""
    first, _, rest = NOTES.read_text(encoding="utf-8").partition("\n")
    return first, rest.lstrip("\n")


def documented(first: str | None = None) -> list[dict[str, Any]]:
    """Rows of the run that the notes are about, as their first line says: `Run: ID`."""
    first = notes()[0] if first is None else first
    word, _, run = first.partition(" ")
    grids = whole_grids()
    if word != "Run:" or run not in grids:
        raise SystemExit(
            f"{NOTES.name}: the first line must be `Run: ID`, one of the runs of the whole grid: "
            f"{', '.join(grids)} (got {first!r})"
        )
    return grids[run]


def newest() -> list[dict[str, Any]]:
    """Rows of the last run of the whole grid: those of the tables."""
    return list(whole_grids().values())[-1]


def fullest(name: str, first: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Rows of the run that measured most cases of a list beside a peer, or else most; of several `first`, then the
    last."""
    every: list[Sequence[Mapping[str, Any]]] = [first, *reversed(runs("decode_attention").values())]

    def measured(run: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        found = [times for case, times in by_case(run).items() if case in LISTS[name] and "ptxgen" in times]
        return sum(best(times) is not None for times in found), len(found)

    return max(every, key=measured)


def grid(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The table of the grid, the geometric means, and who is ahead where."""
    cases = of_grid(rows)
    yield INTRODUCTION
    yield "![Share of the read rate by context](images/decode_attention.png)\n"
    lines = [
        ["/".join(map(str, heads)), *(_cell(cases[Case(*heads, *point)]) for point in GRID)] for heads in SHAPES
    ]  # fmt: skip
    yield table(["heads q/kv/dim", *(f"{b}×{c}" for b, c in GRID)], lines)
    yield means(cases) + f" Run {rows[0]['run']}, commit {rows[0]['commit']}, {rows[0]['device']}.\n"
    behind = {case: r for case, r in ratios(cases, over_peers("ptxgen")).items() if r < 1}
    if behind:
        words = (f"{label(case)} ({ratio:.2f})" for case, ratio in behind.items())
        yield f"Behind the best peer (best peer ÷ ours): {', '.join(words)}.\n"
    yield "### Every run of the grid\n"
    yield (
        "Each run was on one H200; the read of 134 MB shows how fast that one is. The first run had only the peers in "
        "torch. From run fd5cada4e67e on, every measurement begins with 40 ms of replays that do not count.\n"
    )
    heads = ["run", "commit", "read µs", "best peer ÷ ours", "least", "ours ÷ read", "programmatic"]
    yield table(heads, list(history()))
    yield "### Each peer: geometric mean of its time over ours, and share of the read rate\n"
    yield table(["peer", "cases", "time ÷ ours", "share of the read rate", "run", "commit"], list(every_peer(rows)))
    reasons: dict[str, dict[str, None]] = {}
    for row in rows:
        if "why" in row and row["impl"] in NAMES:
            reasons.setdefault(row["why"], {})[NAMES[row["impl"]]] = None
    yield "What is missing, and why:\n"
    yield from (f"- {'; '.join(names)}: {why}" for why, names in reasons.items())
    yield ""
    yield from inexact(rows)


def history() -> Iterator[list[str]]:
    """A line for every run of the whole grid that had peers and programmatic launches."""
    for name, rows in whole_grids().items():
        cases = of_grid(rows)
        peer, floor, linked = compared(cases)
        if not peer or not linked:
            continue
        least = min(peer, key=peer.__getitem__)
        read = cases[Case(*LLAMA, 1, 32768)]["floor"]
        ahead, over, chained = (f"{mean(list(found.values())):.3f}" for found in (peer, floor, linked))
        worst = f"{peer[least]:.3f} ({label(least)})"
        yield [name, rows[0]["commit"], f"{read:.1f}", ahead, worst, over, chained]


def inexact(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Whose results were further from float32 than the element type explains."""
    errors: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["impl"], row["case"]["kv_dtype"])
        errors[key] = max(errors.get(key, 0.0), row.get("error", 0.0))
    found = [f"{NAMES.get(n, n)} with {kind} {e:.1%}" for (n, kind), e in errors.items() if not e < EXACT]
    if found:
        yield f"Relative errors above {EXACT:.1%} of the result: {', '.join(found)}.\n"


def compared(cases: Cases) -> tuple[dict[Case, float], dict[Case, float], dict[Case, float]]:
    """Best peer ÷ ours, ours ÷ read, and that with programmatic launch, of every case that has them."""
    of = (over_peers("ptxgen"), over_floor("ptxgen"), over_floor("ptxgen-programmatic"))
    peer, floor, linked = (ratios(cases, each) for each in of)
    return peer, floor, linked


def means(cases: Cases) -> str:
    """One sentence of geometric means."""
    peer, floor, linked = (list(found.values()) for found in compared(cases))
    return (
        f"Geometric means of {len(peer)} cases: best peer ÷ ours {mean(peer):.2f} (least {min(peer):.2f}), ours ÷ read "
        f"{mean(floor):.2f}, with programmatic launch {mean(linked):.2f}."
    )


def _cell(times: Times) -> str:
    peer = best(times)
    shown = f"**{times['ptxgen']:.1f}** ({times['ptxgen-programmatic']:.1f})"
    return f"{shown} / {'–' if peer is None else f'{peer:.1f}'} / {times['floor']:.1f}"


def every_peer(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """A line a peer, over the cases that it ran: of this run, or of the last whole grid that had it."""
    found: dict[str, Sequence[Mapping[str, Any]]] = {}
    for run in (*whole_grids().values(), rows):
        found |= dict.fromkeys({row["impl"] for row in run if is_peer(row["impl"]) and "us" in row}, run)
    for name in sorted(found, key=list(NAMES).index):
        run = found[name]
        ran = [times for times in of_grid(run).values() if name in times]
        over = (mean([t[name] / t["ptxgen"] for t in ran]), mean([t["floor"] / t[name] for t in ran]))
        yield [NAMES[name], str(len(ran)), *(f"{each:.2f}" for each in over), run[0]["run"], run[0]["commit"]]


def others(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Other caches, batches, pages, head sizes: ours, the best peer, and shares of the read rate."""
    own = fullest("types", rows)
    cases = by_case(own)
    yield "### Other caches, 32/8/128\n"
    yield (
        "Here and in the tables below, a cell is the time of ours and its share of the rate at which the cache can be "
        "read; in brackets the same of the best peer.\n"
    )
    yield from _elsewhere(own, rows)
    lines = []
    for kind in ("f16", "bf16", "e4m3", "s8", "f32"):
        found = [cases.get(Case(*LLAMA, *point, kind)) for point in CACHES]
        lines.append([kind, *(_share(times) for times in found)])
    yield table(["cache", *(f"{b}×{c}" for b, c in CACHES)], lines)
    for title, name in SECTIONS.items():
        own = fullest(name, rows)
        measured = by_case(own)
        lines = [[label(c), _share(measured[c]), _invariant(measured[c])] for c in LISTS[name] if c in measured]
        if lines:
            plain = name in ("odd", "capacities")
            yield f"### {title}\n"
            yield from _elsewhere(own, rows)
            yield table(["case", "ours (best peer)", "batch-invariant"][: 2 if plain else 3],
                        [line[: 2 if plain else 3] for line in lines])  # fmt: skip
    yield from invariance(by_case(rows))


def _elsewhere(own: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Says that a table is of another run."""
    if own[0]["run"] != rows[0]["run"]:
        yield (
            f"From run {own[0]['run']}, commit {own[0]['commit']}, which measured most of these cases beside a peer.\n"
        )


def invariance(cases: Cases) -> Iterator[str]:
    """What batch invariance costs, by the size of the batch."""
    costs: dict[bool, list[float]] = {}
    for case, times in cases.items():
        if "ptxgen-invariant" in times and "ptxgen" in times:
            costs.setdefault(case.batch > 1, []).append(times["ptxgen-invariant"] / times["ptxgen"])
    if costs:
        words = (
            f"{mean(found) - 1:+.0%} for {'batches' if several else 'a batch of one, against the kernel for one'} "
            f"(geometric mean of {len(found)} cases, {min(found) - 1:+.0%} to {max(found) - 1:+.0%})"
            for several, found in sorted(costs.items())
        )
        yield (
            "`batch_invariant=True` gives a sequence the same bytes in every batch: splits follow its length alone. "
            f"In time it is {'; '.join(words)}.\n"
        )


def _share(times: Times | None) -> str:
    if times is None or "ptxgen" not in times:
        return "–"
    peer = best(times)
    shown = f"{times['ptxgen']:.1f} µs, {times['floor'] / times['ptxgen']:.2f}"
    return shown if peer is None else f"{shown} ({peer:.1f} µs, {times['floor'] / peer:.2f})"


def _invariant(times: Times) -> str:
    return f"{times['ptxgen-invariant']:.1f} µs" if "ptxgen-invariant" in times else "–"


def counters() -> Iterator[str]:
    """What Nsight Compute says of the main cases, in the last run of `benchmarks.counters`; and notes."""
    if (RESULTS / "counters.jsonl").is_file():
        rows = load("counters")
        measures = list(dict.fromkeys(name for row in rows for name in row if name not in SHARED))
        lines = [
            [label(Case(**row["case"])), row["impl"], *(_plain(row.get(name, "")) for name in measures)] for row in rows
        ]
        yield "### Counters (Nsight Compute)\n"
        yield f"{commit_of(rows)}\n"
        yield table(["case", "kernel", *(name.replace("_", " ") for name in measures)], lines)
    heading, _, text = notes()[1].partition("\n")
    yield heading + "\n"
    about, last = documented(), newest()
    yield from aims(of_grid(last), by_case(last))
    if about[0]["run"] != last[0]["run"]:
        yield f"The notes below were written after run {about[0]['run']} (commit {about[0]['commit']}).\n"
    yield text.lstrip("\n")


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def peers_in(cases: Cases) -> list[str]:
    """The peers that were measured."""
    measured = {name for times in cases.values() for name in times}
    return [word for word, start in PEERS.items() if any(name.startswith(start) for name in measured)]
