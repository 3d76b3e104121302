"""What docs/performance.md says of whole models: decode steps, prompts, and the products of both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import decode_step, e4m3_products, packed_products, products, prompt, step_ops
from benchmarks.report.decode import table
from benchmarks.report.rows import runs
from benchmarks.report.selection import (
    commit_of,
    commits_of,
    newest_of_models,
    newest_rows,
    newest_tokens,
    rows_alone,
    rows_elsewhere,
    rows_measured,
    runs_of_tokens,
)


def whole_models() -> Iterable[str]:
    """Decode steps and prompts of whole models, and their products alone."""
    steps, prompts = newest_rows("decode_step"), newest_rows("prompt")
    packed = ("pack", e4m3_products.PACK)
    alone = rows_measured("products", without=packed, tokens=8)
    one = rows_measured("products", "programmatic", without=packed, tokens=1)
    many = newest_tokens("products", "pack")
    yield from _part(
        "Whole models: µs of a decode step",
        "Models have random weights in the shapes of real ones, and an f16 cache.\n\n"
        "- `ptxgen`: products are as exact as f32; `ptxgen-fast`: activations are rounded to bf16; "
        "`ptxgen-persistent`: the step is one launch.\n"
        "- `floor`: only reading the same bytes; `of the read`: that time ÷ ours.\n"
        "- `host`: what `forward_to_token` takes beyond the device, while other processes used the host's CPUs.\n"
        "- `times a peer`: the fastest peer ÷ `ptxgen`.\n\n"
        f"{commits_of(steps)}",
        decode_step.table(steps),
    )
    yield from _since("decode_step", "µs")
    yield from _of_another_run("decode_step", "llama.cpp", "ptxgen")
    yield from _never_reached("decode_step")
    yield from where_the_time_goes()
    yield from _part(
        "Prompts of 512 tokens, tokens/s",
        "`ptxgen`: activations as exact as f32; `ptxgen-fast`: rounded to bf16 before each product, as llama.cpp "
        "rounds them to 8 bits; `ptxgen-e4m3`: before products with weights in e4m3 to e4m3, too. "
        f"{commits_of(prompts)}",
        prompt.table(prompts),
    )
    yield from _since("prompt", "tokens/s")
    yield from _of_another_run("prompt", "llama.cpp", "ptxgen-fast")
    yield from first_tokens()
    yield from _part(
        "Products alone: µs as graph nodes, weights beyond the L2",
        "`programmatic`: the chain launched programmatically; `fma`: without tensor cores; `cublas`: bf16. `error`: "
        f"relative, against float64. {commit_of(alone)}",
        products.table(alone),
    )
    yield from _products_since(alone[0]["run"])
    yield from one_token(one)
    yield from _part(
        "Products of many tokens: µs as graph nodes, weights beyond the L2",
        f"Geometric means of cuBLAS ÷ ours: {packed_products.ratios(many)}. {runs_of_tokens(many)}\n\n"
        "- `ptxgen`: PackedGemm, precision `fast`; `programmatic`: the same launched programmatically; `exact`: the "
        "other precision.\n"
        "- `pack`: PackTokens, once for all products of the same tokens.\n"
        "- `cublas`: bf16 in and out; `floor`: only reading the weights.\n"
        "- `tile`: tokens × rows × CTAs that share k × CTAs that share tokens, 0 where a table decides; `by memory`: "
        "those that share k are no cluster; `last N`: the last N tiles are small ones of one warpgroup; `last turn by "
        "N`: N CTAs share k of each tile of the last turn.\n"
        "- `error`: of ours, relative, against float64.",
        packed_products.table(many),
    )
    in_bytes = newest_tokens("products", e4m3_products.PACK)
    yield "## Products of many tokens in e4m3: µs as graph nodes, weights beyond the L2\n"
    yield (
        "Tokens and weights are in e4m3, results in bf16. Rounding the tokens is not part of any time; it is "
        "`pack-e4m3`.\n\n"
        "- `ptxgen`: launched programmatically; the tensor cores' accumulators have the whole sum, with scales of "
        "blocks those of 128 columns.\n"
        "- `promoted`: the sums of every 128 columns are added up in f32.\n"
        "- `row-scales`: weights have scales of blocks; tokens have one scale a row, not one for 128 columns.\n"
        "- `cublas`: `torch._scaled_mm`, scales of rows; `cublas-fast`: the same with `use_fast_accum=True`; "
        "`cublas-block`: `scaled_mm`, scales of 1 × 128 and 128 × 128.\n"
        "- `error`: relative, against float64 of the tokens before they were rounded; `of sums`: of the rounded "
        "tokens, so that it is the error of sums and of results in bf16.\n\n"
        f"Geometric means of cuBLAS ÷ ours: {e4m3_products.ratios(in_bytes)}. "
        f"{runs_of_tokens(in_bytes)}\n"
    )
    yield e4m3_products.table(in_bytes) + "\n"


def _part(title: str, about: str, table: str) -> Iterator[str]:
    """A heading, what its table is of, and the table."""
    yield f"## {title}\n"
    yield f"{about}\n"
    yield f"{table}\n"


FIRST_TOKEN = ("transformers-cudnn", "transformers-cudnn, graph")  # peers


def first_tokens() -> Iterable[str]:
    """The time to the first token of prompts in bf16 beside transformers: of each model's newest run that has both."""
    peers = FIRST_TOKEN
    rows = newest_of_models("prompt", peers[0])
    cases: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        cases.setdefault((row["case"]["model"], row["case"]["tokens"]), {})[row["impl"]] = row["us"] / 1e3
    lines = []
    for (model, count), ms in cases.items():
        times = min(ms[peer] for peer in peers if peer in ms) / ms["ptxgen-fast"]
        cells = [f"{ms[impl]:.{1 if ms[impl] < 100 else 0}f}" if impl in ms else "" for impl in ("ptxgen-fast", *peers)]
        lines.append([model, str(count), *cells, f"{times:.2f}"])
    yield from _part(
        "The first token of a prompt in bf16: ms beside transformers with cuDNN's attention",
        f"`graph`: the same call replayed from a CUDA graph. `times`: the faster of both ÷ ours. {commits_of(rows)}",
        table(["model", "tokens", "ptxgen-fast", *peers, "times"], lines),
    )


def one_launch() -> Iterable[str]:
    """Decode steps in one launch beside their graphs: of the newest run, and what was tried."""
    steps, tried = rows_measured("decode_step", "ptxgen-persistent"), rows_measured("persistent_step")
    newest, others = _by_way(steps), _by_way(tried)
    found = {**newest, **others}
    depths = sorted({depth for us in found.values() for depth in us})
    yield "## A step in one launch: µs beside the graph, bf16\n"
    yield (
        f"`Model(…, persistent=True)`, one sequence. {_ahead(newest)} {commit_of(steps)} Lines with fields are what "
        "was tried then: `PersistentStep` with these fields, of which each model takes the last ones, and without any. "
        f"{commit_of(tried)}\n"
    )
    lines = [[key[0], key[2], key[3], *(f"{us[d]:.0f}" if d in us else "" for d in depths), key[1]]
             for key, us in found.items()]  # fmt: skip
    yield table(["model", "", "fields", *map(str, depths), "commit"], lines)


Ways = dict[tuple[str, str, str, str], dict[int, float]]  # µs by depth; by model, commit, launches and fields


def _by_way(rows: Sequence[Mapping[str, Any]]) -> Ways:
    """Times of one sequence in bf16 of the models that one launch was measured for."""
    found: Ways = {}
    for row in rows:
        case = row["case"]
        if row["impl"] in LAUNCHES and (case.get("weights", "bf16"), case.get("batch", 1)) == ("bf16", 1):
            key = (case["model"], row["commit"], LAUNCHES[row["impl"]], case.get("fields", ""))
            found.setdefault(key, {})[case["depth"]] = row["us"]
    return {key: us for key, us in found.items() if (*key[:2], "one launch", "") in found}


LAUNCHES = {"ptxgen": "graph", "ptxgen-persistent": "one launch"}


def _ahead(found: Ways) -> str:
    """Where one launch takes less time than the graph, in a sentence a model."""
    said = []
    for model, commit in dict.fromkeys(key[:2] for key in found):
        mine = [us for key, us in found.items() if key[:3] == (model, commit, "one launch")][-1]
        graph = found[model, commit, "graph", ""]
        times = ", ".join(f"{mine[depth] / graph[depth]:.2f} at {depth}" for depth in sorted(mine))
        said.append(f"{model}: {times}.")
    return f"One launch ÷ graph at these depths: {' '.join(said)}"


def where_the_time_goes() -> Iterable[str]:
    """A step's ops, and the picture of one token."""
    newest = newest_ops()
    yield "## Where the time of a token goes\n"
    yield (
        "- `in the step`: what a launch adds to the step's graph. It is the difference of two graphs, of which one "
        "ends with the launch and the other before it, so that launches overlap as they do in the step. Of a kernel "
        "that is launched often the first six launches are measured, and the others count as their mean.\n"
        "- `alone`: the time in a graph of only such launches, where weights of less than 60 MB may come from the L2 "
        "cache. If it is less than `in the step`, the launch waits for the one before it.\n"
        "- `read`: its bytes at the rate of reading 2 GB.\n"
    )
    yield (
        "Small launches take much longer than the read: with less than 10 MB a launch is mostly latency, and five of "
        "them follow one another in each layer. Three things were tried against that: other geometries of products "
        "(the table of products of one token), other plans of attention (`ptxgen tune`), and one launch for the whole "
        "step (below).\n"
    )
    yield "![The launches of one token](images/decode_step.png)\n"
    for rows in newest:
        yield f"{commit_of(rows)}\n"
        yield step_ops.table(rows) + "\n"


def newest_ops() -> list[list[dict[str, Any]]]:
    """Of every run the read, and the ops of the steps that no later run has."""
    found, seen = [], set()
    for rows in reversed(runs("decode_step_ops").values()):
        whole = [] if rows[-1].get("partial") else rows
        fresh = {key for key in step_ops.steps_of(whole) if key not in seen}
        seen |= fresh
        kept = [row for row in whole if row["case"]["op"] == "read" or step_ops.key_of(row) in fresh]
        if fresh:
            found.append(kept)
    return found


AIMS = {"q4_k": 0.75, "q6_k": 0.80, "int4_g128": 0.85, "q8_0": 0.88, "e4m3_block": 0.88, "bf16": 0.92}


PLAIN_FROM = 64e6  # bytes of bf16 from which the aim counts


def one_token(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Products of one token, launched plainly and programmatically, beside their aims."""
    us: dict[str, dict[str, float]] = {}
    for row in rows:
        us.setdefault(json.dumps(row["case"]), {})[row["impl"]] = row["us"]
    lines = []
    for row in rows:
        case, found = row["case"], us[json.dumps(row["case"])]
        aim = AIMS.get(case["weights"])
        if case["m"] != 1 or row["impl"] != "ptxgen" or aim is None:
            continue
        if case["weights"] == "bf16" and row["bytes"] < PLAIN_FROM:
            continue
        ours = [found.get(impl) for impl in ("ptxgen", "programmatic")]
        shares = [found["floor"] / each if each else 0.0 for each in ours]
        name, size = f"{case['n']}×{case['k']}", f"{row['bytes'] / 1e6:.1f}"
        cells = [f"{each:.2f}" if each else "" for each in (*ours, found["floor"], *shares)]
        told = "" if round(max(shares), 2) >= aim else "short"
        lines.append([case["weights"], name, size, *cells, f"{aim:.2f}", told])
    yield "## Products of one token: share of the read rate, and aims\n"
    yield (
        "A product of one token is bound by the read of its weights. The shares are the time of that read ÷ ours, "
        "above 1 where programmatic launches overlap. Calls are nodes of a CUDA graph, launched plainly, and "
        "programmatically as every step of a model launches them; the read is launched plainly. A case is `short` if "
        "neither of the two reaches the aim. 1536×8960 has 96 records of 16 rows for 132 multiprocessors. "
        f"{commit_of(rows)}\n"
    )
    heads = ["weights", "N × K", "MB", "plain, µs", "programmatic, µs", "read, µs", "of the read, plain",
             "programmatic", "aim", ""]  # fmt: skip
    yield table(heads, sorted(lines, key=lambda line: (line[0], float(line[2]))))


def _of_another_run(bench: str, peer: str, ours: str) -> Iterable[str]:
    """A peer that the newest run of a model had no time for, from the last run that had, beside ours."""
    other = rows_elsewhere(bench, peer, ours)
    if not other:
        return
    mine = {json.dumps(row["case"]): row["tokens_s"] for row in newest_rows(bench) if row["impl"] == ours}
    lines = []
    for row in other:
        rate = mine[json.dumps(row["case"])]
        figures = (f"{row['tokens_s']:.0f}", f"{rate:.0f}", f"{rate / row['tokens_s']:.2f}", row["commit"])
        lines.append([*map(str, row["case"].values()), *figures])
    yield f"{peer} in another run, that of the commit named; tokens/s, beside those of the table above:\n"
    yield table([*other[0]["case"], peer, ours, "times", "commit"], lines)


def _never_reached(bench: str) -> Iterable[str]:
    """The peers that no run had time for, by batch, with what the last run said."""
    whole = [row for rows in runs(bench).values() for row in rows]
    timed = {(row["impl"], row["case"]["batch"]) for row in whole if "us" in row}
    peers = (row for row in whole if "why" in row and not row["impl"].startswith("ptxgen"))
    missing = {(row["impl"], row["case"]["batch"]): row["why"] for row in peers}
    lines = [f"- {impl}, batch {batch}: {why}" for (impl, batch), why in missing.items() if (impl, batch) not in timed]
    if lines:
        yield "Peers that no run has measured, and why:\n"
        yield from lines
        yield ""


def _since(bench: str, unit: str) -> Iterable[str]:
    """A table of those rows."""
    rows = rows_alone(bench)
    if not rows:
        return
    lines = [[*map(str, row["case"].values()), row["impl"], _figure(row, unit), row["commit"]] for row in rows]
    yield "Measured since, in other runs:\n"
    yield table([*rows[0]["case"], "", unit, "commit"], sorted(lines))


PACKED = {
    "ptxgen": "with DigitGemm; `pack`: PackDigits",
    "ptxgen-by-row": "as integers on wgmma, launched programmatically (28672×4096 gated); `pack`: PackTokens",
    "ptxgen-by-row-fast": "the same with tokens rounded once",
}


def _products_since(run: str) -> Iterable[str]:
    """Rows of a few tokens as bytes, which that run does not have."""
    rows = [row for row in rows_alone("products", run) if "pack_us" in row]
    for impl, what in PACKED.items():
        mine = [row for row in rows if row["impl"] == impl]
        if mine:
            commits = ", ".join(dict.fromkeys(row["commit"] for row in mine))
            lines = [
                [*map(str, row["case"].values()), f"{row['us']:.2f}", f"{row['pack_us']:.2f}", f"{row['error']:.1e}"]
                for row in mine
            ]
            heads = ["tokens", "N", "K", "weights", "ptxgen, µs", "pack, µs", "error"]
            yield f"Q4_K and Q6_K by several tokens since, {what}. Commit {commits}.\n"
            yield table(heads, lines) + "\n"


def _figure(row: Mapping[str, Any], unit: str) -> str:
    return f"{row['us']:.0f}" if unit == "µs" else f"{row['tokens_s']:.0f}"
