"""What the rows of one run of the decode attention benchmark say: tables, geometric means, the chart. Measures nothing.

Fractions are of the rate at which the same bytes can be read: floor / µs. A peer is an implementation that is not ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases.decode import GRID, SHAPES, Case

Rows = Sequence[Mapping[str, Any]]
Times = dict[str, float]  # µs by implementation
# The lines of the chart: label, implementations (the best of them counts), colour, style.
SERIES: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("ptxgen, programmatic launch", ("ptxgen-programmatic",), "#1b7f3b", "--"),
    ("ptxgen", ("ptxgen",), "#1b7f3b", "-"),
    ("cuDNN (torch)", ("sdpa-cudnn",), "#c45a00", "-"),
    ("FlashInfer, the best of its kernels", ("flashinfer-*",), "#2b5fb3", "-"),
    ("FlashAttention 2 (torch)", ("sdpa-flash",), "#8a8a8a", "-"),
)


def by_case(rows: Rows) -> dict[Case, Times]:
    """Times of every case, as far as they were measured."""
    found: dict[Case, Times] = {}
    for row in rows:
        if "us" in row:
            found.setdefault(case_of(row["case"]), {})[row["impl"]] = row["us"]
    return found


def case_of(plain: Mapping[str, Any]) -> Case:
    """The case of a row; the first runs said only that a batch was ragged."""
    return Case(**{**plain, "ragged": "one long"} if plain.get("ragged") is True else plain)


def mean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def is_peer(name: str) -> bool:
    """Whether an implementation is not ours."""
    return not name.startswith("ptxgen") and name != "floor"


def best(times: Times, names: Iterable[str] | None = None) -> float | None:
    """The least time of these implementations (`x*`: all that begin so; default: of every peer)."""
    wanted = tuple(names) if names is not None else None
    found = [us for name, us in times.items() if (is_peer(name) if wanted is None else _named(name, wanted))]
    return min(found, default=None)


def _named(name: str, wanted: Sequence[str]) -> bool:
    return any(name.startswith(w[:-1]) if w.endswith("*") else name == w for w in wanted)


def ratios(cases: Mapping[Case, Times], of: Callable[[Times], float | None]) -> dict[Case, float]:
    """A ratio of every case that has it."""
    return {case: found for case, times in cases.items() if (found := of(times)) is not None}


def over_peers(name: str) -> Callable[[Times], float | None]:
    """Time of the best peer over ours: above 1, ours is faster."""

    def of(times: Times) -> float | None:
        peer = best(times)
        return peer / times[name] if peer is not None and name in times else None

    return of


def over_floor(name: str) -> Callable[[Times], float | None]:
    """Ours ÷ the read of the bytes."""
    return lambda times: times[name] / times["floor"] if name in times and "floor" in times else None


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines]) + "\n"


def label(case: Case) -> str:
    """A case in a few words."""
    words = [f"{case.n_heads}/{case.n_kv_heads}/{case.head_dim}", f"{case.batch}×{case.context}"]
    words += [case.kv_dtype] if case.kv_dtype != "f16" else []
    words += [f"pages of {case.page_size}"] if case.page_size else []
    words += [f"of {case.capacity}"] if case.capacity else []
    return " ".join([*words, case.ragged]).strip()


def report(rows: Rows) -> str:
    """A line a case and a column an implementation, the reasons for what is missing, and the geometric means."""
    cases = by_case(rows)
    names = list(dict.fromkeys(row["impl"] for row in rows))
    lines = [
        [label(case), f"{case.bytes / 1e6:.1f}", *(f"{times[n]:.2f}" if n in times else "–" for n in names)]
        for case, times in cases.items()
    ]
    out = [table(["heads q/kv/dim, batch×context", "MB", *(f"{n} µs" for n in names)], lines)]
    for name, reason in dict.fromkeys((row["impl"], row["why"]) for row in rows if "why" in row):
        out.append(f"{name}: {reason}")
    wrong = [(row["impl"], label(case_of(row["case"])), row["error"]) for row in rows if not row.get("error", 0) < 5e-3]
    out += [f"{name}: relative error {error:.1e} at {case}" for name, case, error in wrong]
    for name in (n for n in names if n.startswith("ptxgen")):
        for what, of in ((f"best peer / {name}", over_peers(name)), (f"{name} / floor", over_floor(name))):
            if found := list(ratios(cases, of).values()):
                out.append(
                    f"{what}: {mean(found):.3f} (geometric mean of {len(found)} cases, {min(found):.2f} to "
                    f"{max(found):.2f})"
                )
    first = rows[0]
    out.append(f"{first['device']}, {first['date']}, commit {first['commit']}, run {first['run']}")
    return "\n".join(out)


def as_json(rows: Rows) -> str:
    """The rows as one JSON list."""
    return json.dumps(list(rows), indent=1)


def fractions(cases: Mapping[Case, Times], names: Sequence[str]) -> list[float | None]:
    """At every point of the grid: floor ÷ the best of these, geometric mean over the shapes that they ran."""
    out: list[float | None] = []
    for point in GRID:
        found = []
        for shape in SHAPES:
            times = cases.get(Case(*shape, *point), {})
            us = best(times, names)
            if us is not None and "floor" in times:
                found.append(times["floor"] / us)
        out.append(mean(found) if found else None)
    return out


def plot(rows: Rows, path: Path) -> None:
    """The chart of the grid as a PNG (or what the ending says). Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = by_case(rows)
    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), layout="constrained")
    alone = sum(batch == 1 for batch, _ in GRID)
    for name, impls, colour, style in SERIES:
        points = [(x, y) for x, y in enumerate(fractions(cases, impls)) if y is not None]
        for part in ([p for p in points if p[0] < alone], [p for p in points if p[0] >= alone]):
            if part:
                axes.plot(*zip(*part, strict=True), style, marker="o", markersize=4, color=colour,
                          label=name if part[0][0] < alone else None)  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axvline(alone - 0.5, color="#dddddd", linewidth=0.8)
    axes.set_xticks(range(len(GRID)), [f"{context}" if batch == 1 else f"{batch}×{context}" for batch, context in GRID])
    axes.set_xlabel("context of one sequence; sequences × context of a batch")
    axes.set_ylabel("share of the KV cache's read rate")
    axes.set_ylim(0, 1.05)
    axes.grid(axis="y", color="#eeeeee")
    axes.legend(loc="lower right", frameon=False)
    title = f"Decode attention, f16, {rows[0]['device']}: mean of {len(SHAPES)} shapes, or of those that run"
    axes.set_title(title, fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, metadata={"Software": None} if path.suffix == ".png" else None)
    pyplot.close(figure)
