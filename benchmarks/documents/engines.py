"""The part of docs/engines.md that says how fast transformers' models decode and read prompts with our attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import growing_attention
from benchmarks.report.rows import RESULTS, load, runs
from benchmarks.report.selection import commit_of
from benchmarks.transformers_attention import BATCHES, DEPTHS, IMPLS, ratios, spreads, table

MARKS = ("<!-- transformers: written by python -m benchmarks.performance -->", "<!-- end of transformers -->")
KINDS = {
    "graph": "steps in a graph",
    "eager": "steps over a cache that grows",
    "new lengths": "the same at lengths that were not there before",
    "in place": "steps over a cache that grows in place",
    "prompt": "prompts",
}


def newest() -> list[dict[str, Any]]:
    """Of every kind the rows of the run that has most of its cases beside all peers, of several the last."""
    return [row for kind in KINDS for row in newest_of(kind)]


def newest_of(kind: str) -> list[dict[str, Any]]:
    """The rows of one kind that `newest` takes."""
    wanted = {(depth, batch, impl) for depth in DEPTHS for batch in BATCHES for impl in IMPLS}
    of = [
        [row for row in rows if row["case"]["kind"] == kind and "tokens_per_s" in row]
        for rows in runs("transformers_attention").values()
    ]

    def measured(rows: list[dict[str, Any]]) -> int:
        return len(wanted & {(row["case"]["depth"], row["case"]["batch"], row["impl"]) for row in rows})

    return max(reversed(of), key=measured)


def engines() -> str:
    """The section, without its heading."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    rows = newest()
    found = ratios(rows)
    yield (
        f"Tokens per second on an {rows[0]['device']} of a model of the shape of Llama 3.2 1B in bf16 with random "
        "weights, torch 2.11, transformers 5.17, all in one process and in turns "
        f"(`python -m benchmarks.transformers_attention`). {commits(rows)}\n\n"
        '- "graph": a step over a static cache, replayed from a CUDA graph.\n'
        '- "eager": a step over a cache that grows by copies, at lengths that occurred before; "new lengths": at '
        "lengths that no step before it had.\n"
        '- "in place": as "eager", but over a `growing_cache`, for all implementations.\n'
        '- "prompt": a whole prompt.\n'
        '- "fa2": torch\'s FlashAttention 2 without a mask. The host tells it how many keys count, which transformers '
        "does not do for static caches.\n"
        '- "ours / best": the median of the quotients of single turns; in brackets their first and third quartile.\n'
    )
    yield table(rows) + "\n"
    for kind, said in KINDS.items():
        of = {case[1:]: ratio for case, ratio in found.items() if case[0] == kind}
        if of:
            least, most = min(of, key=of.__getitem__), max(of, key=of.__getitem__)
            yield (
                f"- {said}: {of[least]:.3f} of the best ({least[1]} × {least[0]} positions) to {of[most]:.3f} "
                f"({most[1]} × {most[0]})"
            )
    if scattered := spreads(rows):
        yield f"- {_slower({case: high for case, (_, high) in scattered.items()})}"
    yield ""
    if (RESULTS / "growing_attention.jsonl").is_file():
        yield from _layer(load("growing_attention"))


def commits(rows: list[dict[str, Any]]) -> str:
    """Of which runs the kinds are, in a sentence or several."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        of = kinds.setdefault(commit_of([row]), [])
        if row["case"]["kind"] not in of:
            of.append(row["case"]["kind"])
    if len(kinds) == 1:
        return next(iter(kinds))
    return " ".join(f"{', '.join(of)}: {said[0].lower()}{said[1:]}" for said, of in kinds.items())


def _slower(highs: dict[tuple[Any, ...], float]) -> str:
    """Which cases are slower beyond their scatter, in a sentence."""
    slower = [f"{kind} {batch} × {depth}" for (kind, depth, batch), high in highs.items() if high < 1]
    if not slower:
        return "slower than the best in three turns of four: none"
    return f"slower than the best in three turns of four: {', '.join(slower)}"


def _layer(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "Attention of one layer over a cache that grows, in µs: behind a kernel that has copied keys and values, as a "
        f"`DynamicCache` does, and behind itself (`python -m benchmarks.growing_attention`, {rows[0]['device']}). "
        f'{commit_of(rows)} "other rows": ours without the rows of the tuning table that are for caches which grow.\n'
    )
    yield growing_attention.table(rows) + "\n"
