"""Writes docs/performance.md, the README's table, the figures of docs/engines.md and the chart from the rows: of decode
attention from the newest run of the whole grid, of the other benchmarks from their last.
`python -m benchmarks.performance`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import host_time
from benchmarks.cases.prefill import is_alone
from benchmarks.documents import decode as decode_document
from benchmarks.documents import engines as engines_document
from benchmarks.documents import model as model_document
from benchmarks.report.decode import mean, plot, table
from benchmarks.report.rows import RESULTS, load, runs
from benchmarks.report.selection import commit_of, newest_rows, rows_alone, rows_elsewhere, span
from benchmarks.report.sentence import in_a_sentence, show_help

HERE = Path(__file__).resolve().parent
INTRODUCTION = """# Performance

All figures but those of the last two sections are from NVIDIA H200s (sm_90a), each beside its peers in one run. The
raw rows lie in `benchmarks/results/`; this file is written from them by `python -m benchmarks.performance`. Measure
again with `python -m benchmarks.decode_attention` (also `prefill`, `prefill_counters`, `flash_decoding`,
`decode_shapes`, `counters`, `small_kernels`, `launch`, `host_attention`, `generation`, `decode_step`, `step_ops`,
`host_time`, `products`, `packed_products`, `prompt`, `start_up`).
"""
README = ("<!-- performance: written by python -m benchmarks.performance -->", "<!-- end of performance -->")


def by_case(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """case (as sorted JSON) → implementation → row."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(json.dumps(row["case"], sort_keys=True), {})[row["impl"]] = row
    return found


PREFILL = {
    "ptxgen": "ours, wgmma",
    "ptxgen-widened": "ours, widened",
    "ptxgen-sm_90": "ours, mma.sync of sm_90",
    "ptxgen-sm_80": "ours, mma.sync",
    "sdpa-flash": "FlashAttention 2 (torch)",
    "sdpa-cudnn": "cuDNN (torch)",
    "sdpa-cudnn, no mask": "cuDNN (torch), no mask",
    "flashinfer": "FlashInfer",
}
PEERS = ("sdpa-flash", "sdpa-cudnn", "flashinfer")
ALONE = {"n_heads", "n_kv_heads", "head_dim", "tokens", "dtype"}  # what the case of a causal prompt alone has


def is_prompt(row: Mapping[str, Any]) -> bool:
    """Whether a row is of a causal prompt alone, of the heads that all are measured on."""
    return is_alone(row["case"])


def prefill() -> Iterable[str]:
    """TFLOP/s by heads and length."""
    rows = load("prefill")
    cases = by_case(filter(is_prompt, rows))
    names = [name for name in PREFILL if all(name in impls for impls in cases.values())]
    lines = []
    for key, impls in cases.items():
        case = json.loads(key)
        heads = f"{case['n_heads']}/{case['n_kv_heads']}/{case['head_dim']}"
        work = 2 * case["n_heads"] * case["head_dim"] * case["tokens"] ** 2 / 1e6
        lines.append([heads, str(case["tokens"]), *(f"{work / impls[n]['us']:.0f}" for n in names)])
    yield (
        "## Prefill, bf16, causal, TFLOP/s\n\nFor sm_90a on wgmma, for sm_80 on `mma.sync`. Graph nodes over "
        "inputs beyond the L2 cache, every implementation in rounds of another order each, medians.\n"
    )
    yield table(["heads q/kv/dim", "tokens", *(PREFILL[name] for name in names)], lines)
    ratios = {name: [impls[name]["us"] / impls["ptxgen"]["us"] for impls in cases.values()] for name in names[1:]}
    said = (f"{PREFILL[name]} {mean(each):.2f}, least {min(each):.2f}" for name, each in ratios.items())
    yield f"Times ours on wgmma, geometric means: {'; '.join(said)}. {commit_of(rows)}\n"
    yield from other_prefill([row for row in rows if not is_prompt(row)])


def other_prefill(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """TFLOP/s of chunks, batches, pages and whatever else the run has, of those who can."""
    if not rows:
        return
    yield (
        "The same of other cases: `keys`: the tokens are the last of so many; `lengths` of a batch's sequences, in "
        "pages of `page_size`; `kv_dtype`: a cache of 8 bits, whose values a peer has in 16; `fp8`: queries become "
        "e4m3, too; `seconds` without a pause, where power is the limit.\n"
    )
    cases = by_case(rows)
    names = [name for name in PREFILL if any(name in impls for impls in cases.values())]
    lines = []
    for key, impls in cases.items():
        case = json.loads(key)
        heads = f"{case['n_heads']}/{case['n_kv_heads']}/{case['head_dim']}"
        more = ", ".join(f"{name} {case[name]}" for name in case if name not in ALONE)
        rates = (f"{impls[name]['tflops']:.0f}" if name in impls else "" for name in names)
        lines.append([heads, str(case["tokens"]), more, *rates])
    yield table(["heads q/kv/dim", "tokens", "", *(PREFILL[name] for name in names)], lines)


def prefill_counters() -> Iterator[str]:
    """What the hardware counts in prefill's main cases."""
    if "prefill_counters" not in {path.stem for path in RESULTS.glob("*.jsonl")}:
        return
    lines = []
    for row in (rows := load("prefill_counters")):
        heads = "/".join(str(row["case"][name]) for name in ("n_heads", "n_kv_heads", "head_dim"))
        shares = (f"{row[name]:.0f} %" for name in ("tensor_percent", "exponentials_percent"))
        lines.append([heads, str(row["case"]["tokens"]), f"{row['us']:g}", f"{row['GHz']:.2f}", *shares, row["stalls"]])
    yield (
        "## Prefill as ncu counts it\n\nShares of cycles in which tensor cores, and the units of exponentials, are "
        "busy; then what a warp waits for, of its cycles (those whose turn it is not, and the producer's, wait at "
        f"barriers and for copies). {commit_of(rows)}\n"
    )
    yield table(["heads q/kv/dim", "tokens", "µs", "GHz", "tensor cores", "exponentials", "waits"], lines)


def in_words(names: Sequence[str]) -> str:
    """Names in a sentence: A, B and C."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def standing() -> str:
    """How prefill stands beside its peers, in two sentences: attention alone, and prompts of whole models."""
    cases = [
        {name: row["us"] for name, row in impls.items()}
        for impls in by_case(filter(is_prompt, load("prefill"))).values()
    ]
    best = [min(case[peer] for peer in PEERS if peer in case) / case["ptxgen"] for case in cases]
    who = in_words([PREFILL[peer] for peer in PEERS if all(peer in case for case in cases)])
    ours = [*newest_rows("prompt"), *rows_alone("prompt")]
    theirs = [*rows_elsewhere("prompt", "llama.cpp", "ptxgen-fast"), *ours]
    peers = {row["case"]["model"]: row for row in theirs if _at_zero(row, "llama.cpp")}
    fast = {row["case"]["model"]: row for row in ours if _at_zero(row, "ptxgen-fast")}
    beside = [fast[name]["tokens_s"] / peers[name]["tokens_s"] for name in fast.keys() & peers.keys()]
    other = sorted(name for name in fast.keys() & peers.keys() if fast[name]["run"] != peers[name]["run"])
    names = ", ".join(other)
    runs_of = f" ({names} in different runs)" if other else ""
    return (
        f"Prefill's attention in bf16, on wgmma, is {mean(best):.2f} times as fast as the best of {who} (geometric "
        f"mean of {len(best)} cases; least {min(best):.2f}). "
        f"Prompts of 512 tokens run through whole four-bit models at {span(beside)} times "
        f"llama.cpp's rate with activations rounded to bf16{runs_of}.\n"
    )


def _at_zero(row: Mapping[str, Any], impl: str) -> bool:
    """Whether a prompt at depth 0 by an implementation, with weights that llama.cpp has, too."""
    return bool(row["impl"] == impl and row["case"]["depth"] == 0 and row["case"]["weights"] == "q4_k_m")


def two_launches() -> Iterable[str]:
    """FlashDecodingChunk and FlashDecodingReduce over IncrementalAttention."""
    cases = [{n: r["us"] for n, r in impls.items()} for impls in by_case(load("flash_decoding")).values()]
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
    yield f"{len(cases)} cases of 1 to 32 sequences, 512 to 131072 positions: geometric mean, largest.\n"
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
    yield "Eight KV heads, groups of 1 to 16, one sequence, f16: geometric mean over the groups, least."
    yield f"{commit_of(rows)}\n"
    yield table(["head_dim", *(f"{size} MiB" for size in sizes)], lines)


def small() -> Iterable[str]:
    """Kernels of a decode step besides attention, one row each."""
    rows = [r for r in load("small_kernels") if r["impl"] == "ptxgen" and r["case"].get("rows") == 1]
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
    for row in load("launch"):
        impls.setdefault(row["impl"], {})[row["case"]["arguments"]] = row
    lines = [[name, *(f"{c[n]['us']:.2f} ({c[n]['of_c']:.2f})" for n in counts)] for name, c in impls.items()]
    yield "## A launch from Python, microseconds (and times a launch from C)\n"
    yield table(["", *(f"{n} arguments" for n in counts)], lines)
    yield "## TinyLlama's shape, f32 cache of 4096 positions, host arrays in and out\n"
    for row in load("host_attention"):
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
        "Of a process, with compiled bytecode (`python -m benchmarks.start_up`): millions of instructions, counted by "
        f"valgrind, and milliseconds of CPU time, medians of {timed[0]['case']['rounds']} processes of each in turn on "
        "a machine with other work; their ratio is the median of neighbours' ratios. Times of the last line are of the "
        "texts once more alone, instructions of all of the process.\n"
    )
    yield table(["what", "before, 10⁶", "now, 10⁶", "ratio", "before, ms", "now, ms", "ratio"], lines)


def between(text: str, marks: tuple[str, str], inside: str) -> str:
    """The text with what stands between two marks replaced."""
    head, first, rest = text.partition(marks[0])
    _, second, tail = rest.partition(marks[1])
    if not first or not second:
        raise SystemExit(f"the marks {marks[0]} and {marks[1]} must be in the page")
    return f"{head}{first}\n{inside}{second}{tail}"


def document(rows: Sequence[Mapping[str, Any]]) -> str:
    """docs/performance.md, from the rows of a run of decode attention and the last runs of the others."""
    parts = [INTRODUCTION, *decode_document.grid(rows), *decode_document.others(rows), *decode_document.counters()]
    parts += [
        *two_launches(),
        *untuned(),
        *prefill(),
        *prefill_counters(),
        *small(),
        *launches(),
        *model_document.whole_models(),
        *model_document.one_launch(),
        *generation(),
        *starting(),
    ]
    return "\n".join(parts)


def readme(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the README says of speed."""
    parts = (decode_document.readme(rows), model_document.tokens(), standing(), engines_document.standing())
    return "\n".join(parts)


def main() -> None:
    """Write the documents, the README's table, and the chart where matplotlib is installed."""
    root, rows = HERE.parent, decode_document.newest()
    (root / "docs" / "performance.md").write_text(document(rows))
    page = root / "README.md"
    page.write_text(between(page.read_text(), README, readme(rows)))
    page = root / "docs" / "engines.md"
    page.write_text(between(page.read_text(), engines_document.MARKS, engines_document.engines()))
    try:
        plot(rows, root / "docs" / "images" / "decode_attention.png")
    except ImportError as missing:
        print(f"the chart is as it was: {missing} (pip install 'ptxgen[plot]')")


if __name__ == "__main__":
    show_help(__doc__)
    in_a_sentence(main)
