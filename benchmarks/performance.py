"""Writes docs/performance.md, the README's table, the figures of docs/engines.md and the chart from the rows: of decode
attention from the newest run of the whole grid, of the other benchmarks from their last.
`python -m benchmarks.performance`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import host_time
from benchmarks.documents import decode as decode_document
from benchmarks.documents import engines as engines_document
from benchmarks.documents import model as model_document
from benchmarks.documents import prefill as prefill_document
from benchmarks.documents import summary as summary_document
from benchmarks.report.decode import mean, plot, table
from benchmarks.report.rows import RESULTS, load, runs
from benchmarks.report.selection import commit_of
from benchmarks.report.sentence import in_a_sentence, show_help

HERE = Path(__file__).resolve().parent
INTRODUCTION = """# Performance

How fast ptxgen's kernels and whole models are beside other libraries on NVIDIA H200s. The summary says where ours is
ahead, where a peer is, and how exact ours is; the sections after it have every measurement.
"""
SECTIONS = """## Sections

All figures but those of the last two sections are from NVIDIA H200s (sm_90a), each beside its peers in one run. The
raw rows lie in `benchmarks/results/`; this file is written from them by `python -m benchmarks.performance`. Measure
again with `python -m benchmarks.decode_attention` (also `prefill`, `prefill_counters`, `flash_decoding`,
`decode_shapes`, `counters`, `small_kernels`, `launch`, `host_attention`, `generation`, `decode_step`, `step_ops`,
`host_time`, `products`, `packed_products`, `e4m3_products`, `prompt`, `persistent_step`, `start_up`). `ptxgen golden
diff --against COMMIT` shows which kernels have changed since a row was measured.
"""
README = ("<!-- performance: written by python -m benchmarks.performance -->", "<!-- end of performance -->")


def by_case(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """case (as sorted JSON) → implementation → row."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(json.dumps(row["case"], sort_keys=True), {})[row["impl"]] = row
    return found


def two_launches() -> Iterable[str]:
    """FlashDecodingChunk and FlashDecodingReduce over IncrementalAttention."""
    rows = load("flash_decoding")
    cases = [{n: r["us"] for n, r in impls.items()} for impls in by_case(rows).values()]
    names = {
        "max_chunks=64": "max_chunks=64, the default",
        "fitted": "room for the chunks that are launched, as Executor does",
        "programmatic": "max_chunks=64, launched programmatically",
    }
    singles = ("one launch", "one launch, no batch")
    lines = []
    for name, text in names.items():
        ratios = [[case[name] / case[single] for case in cases if single in case] for single in singles]
        lines.append([text, *(f"{mean(r):.2f}, {max(r):.2f}" for r in ratios)])
    yield "## Decode attention in two launches, f16: times as long as in one\n"
    yield (
        "`FlashDecodingChunk` and `FlashDecodingReduce` in place of `IncrementalAttention`, which takes one launch. "
        f"{len(cases)} cases of 1 to 32 sequences, 512 to 131072 positions: geometric mean, largest. "
        f"{commit_of(rows)}\n"
    )
    yield table(["", "the one launch for a batch", "for one sequence, without batches"], lines)


def untuned() -> Iterable[str]:
    """Head dims and groups that no table names, over the nearest tuned shape."""
    found: dict[int, dict[int, list[float]]] = {}
    rows = load("decode_shapes")
    for row in rows:
        size = round(row["bytes"] / 2**20)
        found.setdefault(row["case"]["head_dim"], {}).setdefault(size, []).append(row["ratio"])
    sizes = sorted(next(iter(found.values())))
    lines = [[str(dim), *(f"{mean(r[s]):.2f}, {min(r[s]):.2f}" for s in sizes)] for dim, r in sorted(found.items())]
    yield "## Head dims and groups without a row in the tuning table: share of the nearest tuned rate\n"
    yield (
        "How much of the read rate of the nearest shape with a row is left without one, by the size of the cache. "
        "Eight KV heads, groups of 1 to 16, one sequence, f16: geometric mean over the groups, least."
    )
    yield f"{commit_of(rows)}\n"
    yield table(["head_dim", *(f"{size} MiB" for size in sizes)], lines)


def small() -> Iterable[str]:
    """Kernels of a decode step besides attention, one row each."""
    rows = [r for r in load("small_kernels") if r["impl"] == "ptxgen" and r["case"].get("rows") == 1]
    rope = [r["us"] for r in rows if r["case"]["kernel"].startswith("rope_kv_append")]
    yield "## Other kernels of a decode step, as graph nodes\n"
    yield f"{commit_of(rows)}\n"
    yield f"- RopeKvAppend, one token, {len(rope)} specs: {min(rope):.2f} to {max(rope):.2f} µs"
    for row in rows:
        if row["case"]["kernel"] in ("arg_max n128256", "arg_max n128256_f16"):
            yield f"- {row['case']['kernel']}: {row['us']:.2f} µs"
    yield ""


def launches() -> Iterable[str]:
    """A launch from Python, and a whole step from host arrays."""
    counts = (2, 5, 20, 40)
    impls: dict[str, dict[int, dict[str, Any]]] = {}
    launched, whole = load("launch"), load("host_attention")
    for row in launched:
        impls.setdefault(row["impl"], {})[row["case"]["arguments"]] = row
    lines = [[name, *(f"{c[n]['us']:.2f} ({c[n]['of_c']:.2f})" for n in counts)] for name, c in impls.items()]
    yield "## A launch from Python, microseconds (and times a launch from C)\n"
    yield f"{commit_of(launched)}\n"
    yield table(["", *(f"{n} arguments" for n in counts)], lines)
    yield "## TinyLlama's shape, f32 cache of 4096 positions, host arrays in and out\n"
    yield f"{commit_of(whole)}\n"
    for row in whole:
        if row["case"].get("kv_dtype") == "f32":
            yield f"- {row['impl']}: {row['us']:.1f} µs"
    yield ""
    if (RESULTS / "host_time.jsonl").exists():
        yield "## A token of the shipped model: what the host adds, microseconds\n"
        token = load("host_time")
        yield (
            f"One run, of a step of {token[0]['case']['launches']} launches; `python -m benchmarks.host_time` says "
            f"what the parts are. {commit_of(token)}\n"
        )
        yield host_time.table(token) + "\n"


def generation() -> Iterable[str]:
    """What the text of a kernel costs, on the host."""
    rows = load("generation")
    lines = [
        [row["case"]["what"], row["impl"], f"{row['us'] / 1000:.3g}" if "us" in row else "–", row.get("why", "")]
        for row in rows
    ]
    yield f"## Generating a kernel, milliseconds on {rows[0]['device']}\n"
    yield (
        "From a spec to its PTX text, without assembling. `cold`: in a process that has generated other kernels, but "
        f"not this one; `process`: a new process. {commit_of(rows)}\n"
    )
    yield table(["what", "by", "ms", ""], lines)


def _last_with(name: str, every: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The last run whose rows have this measure; `KeyError` where none has."""
    found = [run for run in every if name in run[0]]
    if not found:
        raise KeyError(name)
    return found[-1]


def starting() -> Iterable[str]:
    """What imports and first texts cost beside an earlier commit: CPU time, and instructions."""
    every = [run for run in runs("start_up").values() if not run[-1].get("partial")]
    timed, counted = (_last_with(name, every) for name in ("us", "instructions"))
    times, lines = {row["impl"] + row["case"]["what"]: row for row in timed}, []
    for row, now in zip(counted[::2], counted[1::2], strict=True):
        what = row["case"]["what"]
        before, after = times["before" + what], times["ptxgen" + what]
        milliseconds = (f"{each['us'] / 1000:.1f}" for each in (before, after))
        counts = (f"{each['instructions'] / 1e6:.0f}" for each in (row, now))
        ratio = now["instructions"] / row["instructions"]
        lines.append([what, *counts, f"{ratio:.3f}", *milliseconds, f"{after['ratio']:.2f}"])
    yield (
        f"## Imports and first texts beside commit {counted[0]['of']}\n\n"
        "What a process takes, with compiled bytecode (`python -m benchmarks.start_up`): millions of instructions, "
        f"counted by valgrind, and milliseconds of CPU time. Times are medians of {timed[0]['case']['rounds']} "
        "processes of each, in turn, on a machine with other work; their ratio is the median of neighbours' ratios. "
        "In the last line the time is that of generating the texts once more, the instructions are those of the whole "
        "process. "
        f"Instructions: {_of(counted)}; times: {_of(timed)}.\n"
    )
    yield table(["what", "before, 10⁶", "now, 10⁶", "ratio", "before, ms", "now, ms", "ratio"], lines)


def _of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Run and commit within a sentence."""
    said = commit_of(rows)
    return said[0].lower() + said[1:-1]


def between(text: str, marks: tuple[str, str], inside: str) -> str:
    """The text with what stands between two marks replaced."""
    head, first, rest = text.partition(marks[0])
    _, second, tail = rest.partition(marks[1])
    if not first or not second:
        raise SystemExit(f"the marks {marks[0]} and {marks[1]} must be in the page")
    return f"{head}{first}\n{inside}{second}{tail}"


def document(rows: Sequence[Mapping[str, Any]]) -> str:
    """docs/performance.md, from the rows of a run of decode attention and the last runs of the others."""
    parts = [
        *decode_document.grid(rows),
        *decode_document.others(rows),
        *decode_document.counters(),
        *two_launches(),
        *untuned(),
        *prefill_document.prefill(),
        *prefill_document.counters(),
        *small(),
        *launches(),
        *model_document.whole_models(),
        *model_document.one_launch(),
        *generation(),
        *starting(),
    ]
    return "\n".join([INTRODUCTION, *summary_document.summary(rows), SECTIONS, contents(parts), *parts])


def contents(parts: Iterable[str]) -> str:
    """Links to the sections of these texts, each in a line."""
    titles = re.findall(r"^## (.*)$", "\n".join(parts), flags=re.M)
    return "".join(f"- [{title}](#{anchor(title)})\n" for title in titles)


def anchor(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def main() -> None:
    """Write the documents, the README's table, and the chart where matplotlib is installed."""
    root, rows = HERE.parent, decode_document.newest()
    (root / "docs" / "performance.md").write_text(document(rows))
    page = root / "README.md"
    page.write_text(between(page.read_text(), README, summary_document.readme(rows)))
    page = root / "docs" / "engines.md"
    page.write_text(between(page.read_text(), engines_document.MARKS, engines_document.engines()))
    try:
        plot(rows, root / "docs" / "images" / "decode_attention.png")
    except ImportError as missing:
        print(f"the chart is as it was: {missing} (pip install 'ptxgen[plot]')")


if __name__ == "__main__":
    show_help(__doc__)
    in_a_sentence(main)
