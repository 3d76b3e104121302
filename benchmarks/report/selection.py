"""Which rows of a benchmark a document shows: of which run, and those that a run has alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.report.rows import runs


def rows_measured(bench: str, impl: str = "", without: Sequence[str] = (), tokens: int = 0) -> list[dict[str, Any]]:
    """The rows of the last run that have a time: what was not reached is in the rows alone. `impl`: of the last run
    that has rows of it; `without`: that has none of these; `tokens`: that has products of so many."""
    whole = [rows for rows in runs(bench).values() if not rows[-1].get("partial")]
    if tokens:
        whole = [rows for rows in whole if any(row["case"].get("m") == tokens for row in rows)]
    of = [({row["impl"] for row in rows if "us" in row}, rows) for rows in whole]
    fitting = (rows for names, rows in reversed(of) if (not impl or impl in names) and names.isdisjoint(without))
    chosen = next(fitting, None)
    if chosen is None:
        none = f", without {' or '.join(without)}" if without else ""
        raise SystemExit(f"{bench}: no run with rows of {impl or 'anything'}{none}")
    return [row for row in chosen if "us" in row]


def newest_of_models(bench: str, impl: str) -> list[dict[str, Any]]:
    """Of every model the timed rows of the last whole run that has it by `impl`."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rows in runs(bench).values():
        for model in {row["case"]["model"] for row in rows if row["impl"] == impl and "us" in row}:
            if not rows[-1].get("partial"):
                found[model] = [row for row in rows if row["case"]["model"] == model and "us" in row]
    return [row for model in sorted(found) for row in found[model]]


def newest_rows(bench: str) -> list[dict[str, Any]]:
    """Of every model in every weights the timed rows of the last whole run that has it."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for rows in runs(bench).values():
        if rows[-1].get("partial"):
            continue
        timed = [row for row in rows if "us" in row]
        for key in {model_of(row) for row in timed if row["impl"] == "ptxgen"}:
            found[key] = [row for row in timed if model_of(row) == key]
    return [row for key in sorted(found) for row in found[key]]


def newest_tokens(bench: str, impl: str) -> list[dict[str, Any]]:
    """Of every number of tokens in every weights the timed rows of the last whole run with `impl` that has it."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for rows in runs(bench).values():
        if rows[-1].get("partial"):
            continue
        timed = [row for row in rows if "us" in row]
        if all(row["impl"] != impl for row in timed):
            continue
        for key in {tokens_of(row) for row in timed}:
            found[key] = [row for row in timed if tokens_of(row) == key]
    return [row for key in sorted(found) for row in found[key]]


def tokens_of(row: Mapping[str, Any]) -> tuple[str, int]:
    """A product's weights, and its tokens."""
    return row["case"]["weights"], row["case"]["m"]


def runs_of_tokens(rows: Iterable[Mapping[str, Any]]) -> str:
    """Which weights' tokens are of which run and commit, in a sentence."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        weights, tokens = tokens_of(row)
        of = found.setdefault(f"run {row['run']}, commit {row['commit']}", {}).setdefault(weights, [])
        if str(tokens) not in of:
            of.append(str(tokens))
    if len(found) == 1:
        return f"R{next(iter(found))[1:]}."
    said = [", ".join(" ".join((name, *of)) for name, of in each.items()) + f": {run}" for run, each in found.items()]
    return f"By tokens: {'; '.join(said)}."


def rows_alone(bench: str, since: str = "") -> list[dict[str, Any]]:
    """The last timed row of every case and implementation in partial runs since the last whole one, or that run; of
    models since the last whole one that has the model in these weights."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run, rows in runs(bench).items():
        if rows[-1].get("partial"):
            found |= {(json.dumps(row["case"]), row["impl"]): row for row in rows if "us" in row}
        elif run == since or not since:
            had = {_model(row) for row in rows}
            found = {key: row for key, row in found.items() if _model(row) not in had}
    return list(found.values())


def _model(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """A row's model and weights; None where it is of no model."""
    return model_of(row) if "model" in row["case"] else None


def rows_elsewhere(bench: str, peer: str, ours: str) -> list[dict[str, Any]]:
    """A peer's last rows of the cases that our newest rows have without it."""
    newest = newest_rows(bench)
    beside = {json.dumps(row["case"]) for row in newest if row["impl"] == peer}
    wanted = {json.dumps(row["case"]) for row in newest if row["impl"] == ours} - beside
    every = [row for rows in runs(bench).values() for row in rows if "us" in row and row["impl"] == peer]
    return list({key: row for row in every if (key := json.dumps(row["case"])) in wanted}.values())


def model_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """A row's model and weights."""
    return row["case"]["model"], row["case"]["weights"]


def commit_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """The run and the commit of the rows of one run, in a sentence."""
    return f"Run {rows[0]['run']}, commit {rows[0]['commit']}."


def commits_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Which models' rows are of which run and commit, in a sentence."""
    found: dict[str, list[str]] = {}
    for row in rows:
        names = found.setdefault(f"run {row['run']}, commit {row['commit']}", [])
        if (name := " ".join(model_of(row))) not in names:
            names.append(name)
    if len(found) == 1:
        return f"R{next(iter(found))[1:]}."
    said = [f"{', '.join(names)}: {run}" for run, names in found.items()]
    return f"By model: {'; '.join(said)}."


def span(ratios: Sequence[float]) -> str:
    """The least and the largest of ratios."""
    least, most = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return least if least == most else f"{least} to {most}"
