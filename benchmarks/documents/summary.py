"""The summary of docs/performance.md and the README's table: ours beside the best peer, by what is computed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.documents import decode as decode_document
from benchmarks.documents.comparisons import Line, lines
from benchmarks.report.decode import mean, table
from benchmarks.report.selection import newest_rows

NAMED = 6  # cases in which a peer is ahead, of a comparison
HEADS = ("what", "precision", "beside", "best peer ÷ ours", "least", "peer ahead in")
MORE = ("most", "largest error", "commit")
READING = (
    "`best peer ÷ ours` is the time of the fastest peer over ours on an {}: above 1, ours is faster. It is a geometric "
    "mean over cases; `least` is the least of them. `precision` is that of our activations, queries, keys and values: "
    '"exact" is as exact as products in f32. `beside` names the peers, and their precision where it is another.'
)


def cells(each: Line) -> list[str]:
    """A line of the short table."""
    found = list(each.times.values())
    return [
        each.what,
        each.precision,
        each.beside,
        f"{mean(found):.2f}",
        f"{min(found):.2f}",
        f"{len(each.behind)} of {len(found)}",
    ]


def more(each: Line) -> list[str]:
    """What a line of the long table has besides."""
    return [f"{max(each.times.values()):.2f}", f"{each.error:.1e}" if each.error else "", ", ".join(each.commits)]


def named(behind: Mapping[str, float]) -> str:
    """The cases and their ratios; of many the worst, and how many more there are."""
    said = [f"{case} ({ratio:.3f})" for case, ratio in itertools.islice(behind.items(), NAMED)]
    return ", ".join(said) + (f" and {len(behind) - NAMED} more" if len(behind) > NAMED else "")


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The section, with its heading, given the rows of the decode attention run that the document is of."""
    every = lines(rows)
    yield "## Summary\n"
    yield f"{READING.format(rows[0]['device'])} Two measurements of a case differ by some percent.\n"
    yield table(HEADS, [cells(each) for each in every if each.short])
    yield f"{token_times()}\n"
    behind = [each for each in every if each.behind]
    yield "Where a peer is ahead, the worst cases first:\n" if behind else "No peer is ahead anywhere.\n"
    for each in behind:
        yield (
            f"- {each.what} ({each.precision}), {len(each.behind)} of {len(each.times)} cases beside {each.beside}: "
            f"{named(each.behind)}"
        )
    yield ""
    yield "### All comparisons\n"
    yield (
        "`largest error` is the largest relative error of ours in these cases, against float32 or float64; "
        "[the runtime](runtime.md#a-whole-model) says how much logits of whole models differ. `commit` is what was "
        "measured; in brackets a peer that was measured in another run. [Experiments](experiments.md) has what changed "
        f"since and was not measured here yet. {_scatter()}\n"
    )
    yield table([*HEADS, *MORE], [[*cells(each), *more(each)] for each in every])


def token_times() -> str:
    """What a token of each whole model takes, and the read of its weights, in a sentence."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in newest_rows("decode_step"):
        if (row["case"]["batch"], row["case"]["depth"]) == (1, 0):
            found.setdefault((row["case"]["model"], row["case"]["weights"]), {})[row["impl"]] = row["us"]
    said = (
        f"{model} {weights} {us['ptxgen']:.0f} ({us['floor']:.0f})"
        for (model, weights), us in found.items()
        if {"ptxgen", "floor"} <= us.keys()
    )
    return f"A token from an empty cache takes, in µs (in brackets: only reading the weights): {', '.join(said)}."


def _scatter() -> str:
    """How much runs of the grid of decode attention differ, in a sentence."""
    least = [float(each[4].split()[0]) for each in decode_document.history()]
    return (
        f"Runs differ: in the {len(least)} runs of decode attention's grid `least` is {min(least):.2f} to "
        f"{max(least):.2f}."
    )


def readme(rows: Sequence[Mapping[str, Any]]) -> str:
    """The README's table: the short one, the chart, and where the rest is."""
    return (
        f"{READING.format(rows[0]['device'])}\n\n"
        + table(HEADS, [cells(each) for each in lines(rows) if each.short])
        + f"\n{token_times()}\n"
        + "\n[Performance](docs/performance.md#summary) has the cases in which a peer is ahead, errors, and every "
        "measurement with its commit.\n\n"
        "![Share of the rate at which the KV cache can be read, by context](docs/images/decode_attention.png)\n"
    )
