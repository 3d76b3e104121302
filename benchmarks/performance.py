"""Writes docs/performance.md, the README's table and the chart from the rows: of decode attention from the newest
run of the whole grid, of the other benchmarks from their last. `python -m benchmarks.performance`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import decode_step, host_time, packed_products, products, prompt, step_ops
from benchmarks.cases.prefill import SHAPES
from benchmarks.report import decode_document
from benchmarks.report.decode import mean, plot, table
from benchmarks.report.rows import RESULTS, load, runs
from benchmarks.report.sentence import in_a_sentence

HERE = Path(__file__).resolve().parent
INTRODUCTION = """# Performance

All figures but those of the last two sections are from NVIDIA H200s (sm_90a), each beside its peers in one run. The
raw rows lie in `benchmarks/results/`; this file is written from them by `python -m benchmarks.performance`. Measure
again with `python -m benchmarks.decode_attention` (also `prefill`, `flash_decoding`, `decode_shapes`, `counters`,
`small_kernels`, `launch`, `host_attention`, `generation`, `decode_step`, `step_ops`, `host_time`, `products`,
`packed_products`, `prompt`, `start_up`).
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
    "ptxgen-unmeasured": "ours, plans that nothing chooses",
    "ptxgen-sm_80": "ours, mma.sync",
    "sdpa-flash": "FlashAttention 2 (torch)",
    "sdpa-cudnn": "cuDNN (torch)",
    "sdpa-cudnn, no mask": "cuDNN (torch), no mask",
    "flashinfer": "FlashInfer",
}
ALONE = {"n_heads", "n_kv_heads", "head_dim", "tokens", "dtype"}  # what the case of a causal prompt alone has


def is_prompt(row: Mapping[str, Any]) -> bool:
    """Whether a row is of a causal prompt alone, of the heads that all are measured on."""
    return row["case"].keys() == ALONE and row["case"]["head_dim"] in {dim for *_, dim in SHAPES}


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
    yield f"Times ours on wgmma, geometric means: {'; '.join(said)}. {_commit(rows)}\n"
    yield from other_prefill([row for row in rows if not is_prompt(row)])


def other_prefill(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """TFLOP/s of chunks, batches, pages and whatever else the run has, of those who can."""
    if not rows:
        return
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


def steps() -> str:
    """A token of whole models beside llama.cpp in one run: a table of the empty cache, then a sentence on batches."""
    cases: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in _newest("decode_step"):
        case = row["case"]
        if case["weights"] == "q4_k_m":
            cases.setdefault((case["model"], case["batch"], case["depth"]), {})[row["impl"]] = row["us"]
    both = {key: us for key, us in cases.items() if {"ptxgen", "llama.cpp"} <= us.keys()}
    lines = [
        [model, f"**{us['ptxgen']:.0f}**", f"{us['llama.cpp']:.0f}", f"{us['llama.cpp'] / us['ptxgen']:.2f}",
         f"{us['floor']:.0f}"]
        for (model, batch, depth), us in both.items() if (batch, depth) == (1, 0)
    ]  # fmt: skip
    spans = []
    for batch in sorted({batch for _, batch, _ in both}):
        ratios = [us["llama.cpp"] / us["ptxgen"] for key, us in both.items() if key[1] == batch]
        spans.append(f"{'one sequence' if batch == 1 else f'{batch} sequences'} {_span(ratios)}")
    return (
        "A token of a whole model in four bits (Q4_K_M), activations as exact as f32: µs a step from an empty cache, "
        f"beside llama.cpp in one run:\n\n{table(['model', 'ptxgen', 'llama.cpp', 'times', 'read'], lines)}\n"
        f"Over all depths, times llama.cpp: {'; '.join(spans)}. `read`: reading the weights, no more.\n"
    )


def _span(ratios: Sequence[float]) -> str:
    """The least and the largest of ratios."""
    least, most = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    return least if least == most else f"{least} to {most}"


def standing() -> str:
    """How prefill stands beside its peers, in two sentences: attention alone, and prompts of whole models."""
    cases = [
        {name: row["us"] for name, row in impls.items()}
        for impls in by_case(filter(is_prompt, load("prefill"))).values()
    ]
    flash, cudnn = ([case[peer] / case["ptxgen"] for case in cases] for peer in ("sdpa-flash", "sdpa-cudnn"))
    ours = [*_newest("prompt"), *_alone("prompt")]
    theirs = [*_elsewhere("prompt", "llama.cpp", "ptxgen-fast"), *ours]
    peers = {row["case"]["model"]: row for row in theirs if _at_zero(row, "llama.cpp")}
    fast = {row["case"]["model"]: row for row in ours if _at_zero(row, "ptxgen-fast")}
    beside = [fast[name]["tokens_s"] / peers[name]["tokens_s"] for name in fast.keys() & peers.keys()]
    other = sorted(name for name in fast.keys() & peers.keys() if fast[name]["run"] != peers[name]["run"])
    names = ", ".join(other)
    runs_of = f" ({names} in different runs)" if other else ""
    return (
        f"Prefill's attention in bf16, on wgmma, is {mean(flash):.2f} times as fast as FlashAttention 2 and "
        f"{mean(cudnn):.2f} times as fast as cuDNN (geometric means; least {min(flash):.2f} and {min(cudnn):.2f}). "
        f"Prompts of 512 tokens run through whole four-bit models at {_span(beside)} times "
        f"llama.cpp's rate with activations rounded to bf16{runs_of}.\n"
    )


def _at_zero(row: Mapping[str, Any], impl: str) -> bool:
    """Whether a prompt at depth 0 by an implementation, with weights that llama.cpp has, too."""
    return bool(row["impl"] == impl and row["case"]["depth"] == 0 and row["case"]["weights"] == "q4_k_m")


def _commit(rows: list[dict[str, Any]]) -> str:
    return f"Commit {rows[0]['commit']}."


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
    yield f"{_commit(rows)}\n"
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
            f"what the parts are. {_commit(token)}\n"
        )
        yield host_time.table(token) + "\n"


def whole_models() -> Iterable[str]:
    """Decode steps and prompts of whole models, and their products alone."""
    steps, prompts = _newest("decode_step"), _newest("prompt")
    alone, many = _measured("products", without="pack"), _measured("products", "pack")
    yield "## Whole models: µs of a decode step\n"
    yield (
        "Random weights of the models' shapes, an f16 cache. `host`: what `forward_to_token` takes beyond the device; "
        "other processes used the host's CPUs meanwhile. `of the read`: read of the same bytes ÷ ours. Products are "
        "exact in f32, those of `ptxgen-fast` rounded to bf16; `ptxgen-persistent` is one launch. "
        f"{_commits(steps)}\n"
    )
    yield decode_step.table(steps) + "\n"
    yield from _since("decode_step", "µs")
    yield from _of_another_run("decode_step", "llama.cpp", "ptxgen")
    yield from _never_reached("decode_step")
    yield from where_the_time_goes()
    yield "## Prompts of 512 tokens, tokens/s\n"
    yield (
        "`ptxgen`: activations as exact as f32; `ptxgen-fast`: rounded to bf16 before each product, as llama.cpp "
        f"rounds them to 8 bits. {_commits(prompts)}\n"
    )
    yield prompt.table(prompts) + "\n"
    yield from _since("prompt", "tokens/s")
    yield from _of_another_run("prompt", "llama.cpp", "ptxgen-fast")
    yield "## Products alone: µs as graph nodes, weights beyond the L2\n"
    yield (
        "`programmatic`: the chain launched programmatically; `fma`: without tensor cores; `cublas`: bf16. `error`: "
        f"relative, against float64. {_commit(alone)}\n"
    )
    yield products.table(alone) + "\n"
    yield from one_token(alone)
    yield "## Products of many tokens: µs as graph nodes, weights beyond the L2\n"
    yield (
        "`ptxgen`: PackedGemm, precision `fast`; `programmatic`: the same launched programmatically; `exact`: the "
        "other precision; `pack`: PackTokens, once for all products of the same tokens; `cublas`: bf16 in and out. "
        "`error`: of ours, relative, against float64. Geometric means of cuBLAS ÷ ours: "
        f"{packed_products.ratios(many)}.\n"
    )
    yield packed_products.table(many) + "\n"


def one_launch() -> Iterable[str]:
    """Decode steps in one launch beside their graphs."""
    tried = [row for row in load("persistent_step") if "us" in row]
    models = {row["case"]["model"] for row in tried}
    steps = [row for row in _measured("decode_step", "ptxgen-persistent") if row["case"]["model"] not in models]
    found: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for row in [*tried, *steps]:
        case = row["case"]
        if row["impl"] in LAUNCHES and (case.get("weights", "bf16"), case.get("batch", 1)) == ("bf16", 1):
            key = (case["model"], row["commit"], LAUNCHES[row["impl"]], case.get("fields", ""))
            found.setdefault(key, {})[case["depth"]] = row["us"]
    found = {key: us for key, us in found.items() if (*key[:2], "one launch", "") in found}
    depths = sorted({depth for us in found.values() for depth in us})
    yield "## A step in one launch: µs beside the graph, bf16\n"
    yield (
        "`Model(…, persistent=True)`, one sequence. Fields are those of `PersistentStep` that differ from its own; of "
        f"each model it takes the last ones. {_ahead(found)}\n"
    )
    lines = [[key[0], key[2], key[3], *(f"{us[d]:.0f}" if d in us else "" for d in depths), key[1]]
             for key, us in found.items()]  # fmt: skip
    yield table(["model", "", "fields", *map(str, depths), "commit"], lines)


LAUNCHES = {"ptxgen": "graph", "ptxgen-persistent": "one launch"}


def _ahead(found: Mapping[tuple[str, str, str, str], Mapping[int, float]]) -> str:
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
    rows = load("decode_step_ops")
    yield "## Where the time of a token goes\n"
    yield (
        "`in the step`: what a launch adds to the graph, from graphs that end with it, so that launches overlap as "
        "they do; `alone`: in a graph of all its like and nothing else, where weights of less than 60 MB may come from "
        "the L2 cache; `read`: its bytes at the rate of reading 2 GB. By what `alone` is less, a launch waits for the "
        f"one before: the gaps. {_commit(rows)}\n"
    )
    yield (
        "What is far from the read is small: a launch of less than 10 MB is latency, and five of them a layer follow "
        "one another. Tried there: other geometries of products (the table of products of one token), other plans of "
        "attention (`ptxgen tune`), and one launch for the whole step, which wins 0.6 to 2 % at depth 0 of two models "
        "and loses elsewhere (`ptxgen-persistent` above).\n"
    )
    yield "![The launches of one token](images/decode_step.png)\n"
    yield step_ops.table(rows) + "\n"


AIMS = {"q4_k": 0.75, "q6_k": 0.80, "int4_g128": 0.85, "q8_0": 0.88, "e4m3_block": 0.88, "bf16": 0.92}
PLAIN_FROM = 64e6  # bytes of bf16 from which the aim counts


def one_token(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Products of one token against what is wanted of them, with the rows of the tuning table that a search found."""
    one = [row for row in rows if row["case"]["m"] == 1]
    floors = {json.dumps(row["case"]): row["us"] for row in one if row["impl"] == "floor"}
    tuned = {
        json.dumps(row["case"]): row for row in _alone("products") if "geometry" in row and row["impl"] == "ptxgen"
    }
    lines = []
    for row in one:
        case, key = row["case"], json.dumps(row["case"])
        aim = AIMS.get(case["weights"])
        if row["impl"] != "ptxgen" or aim is None or (case["weights"] == "bf16" and row["bytes"] < PLAIN_FROM):
            continue
        best = tuned.get(key, row)
        share = floors[key] / best["us"]
        way = best.get("geometry", "")
        told = "" if round(share, 2) >= aim else "short"
        name, size = f"{case['n']}×{case['k']}", f"{row['bytes'] / 1e6:.1f}"
        lines.append([case["weights"], name, size, f"{row['us']:.2f}", f"{best['us']:.2f}" if way else "", way,
                      f"{share:.2f}", f"{aim:.2f}", told])  # fmt: skip
    yield "## Products of one token: share of the read, and what is wanted\n"
    yield (
        "Plain graph nodes. `tuned`: with the row of the tuning table that a search has found since, and its geometry: "
        "warps of a CTA, tiles on their way, CTAs. 1536×8960 has 96 records of 16 rows for 132 multiprocessors, and "
        "none of seven geometries is better there by 3 %.\n"
    )
    heads = ["weights", "N × K", "MB", "µs", "tuned, µs", "geometry", "of the read", "wanted", ""]
    yield table(heads, sorted(lines, key=lambda line: (line[0], float(line[2]))))


def _of_another_run(bench: str, peer: str, ours: str) -> Iterable[str]:
    """A peer that the newest run of a model had no time for, from the last run that had, beside ours."""
    other = _elsewhere(bench, peer, ours)
    if not other:
        return
    mine = {json.dumps(row["case"]): row["tokens_s"] for row in _newest(bench) if row["impl"] == ours}
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


def _measured(bench: str, impl: str = "", without: str = "") -> list[dict[str, Any]]:
    """The rows of the last run that have a time: what was not reached is in the rows alone. `impl`: of the last run
    that has rows of it; `without`: that has none."""
    whole = [rows for rows in runs(bench).values() if not rows[-1].get("partial")]
    of = [({row["impl"] for row in rows if "us" in row}, rows) for rows in whole]
    fitting = (rows for names, rows in reversed(of) if (not impl or impl in names) and without not in names)
    chosen = next(fitting, None)
    if chosen is None:
        raise SystemExit(
            f"{bench}: no run with rows of {impl or 'anything'}{f', without {without}' if without else ''}"
        )
    return [row for row in chosen if "us" in row]


def _newest(bench: str) -> list[dict[str, Any]]:
    """Of every model in every weights the timed rows of the last whole run that has it."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for rows in runs(bench).values():
        if rows[-1].get("partial"):
            continue
        timed = [row for row in rows if "us" in row]
        for key in {_model(row) for row in timed if row["impl"] == "ptxgen"}:
            found[key] = [row for row in timed if _model(row) == key]
    return [row for key in sorted(found) for row in found[key]]


def _model(row: Mapping[str, Any]) -> tuple[str, str]:
    """A row's model and weights."""
    return row["case"]["model"], row["case"]["weights"]


def _elsewhere(bench: str, peer: str, ours: str) -> list[dict[str, Any]]:
    """A peer's last rows of the cases that our newest rows have without it."""
    newest = _newest(bench)
    beside = {json.dumps(row["case"]) for row in newest if row["impl"] == peer}
    wanted = {json.dumps(row["case"]) for row in newest if row["impl"] == ours} - beside
    every = [row for rows in runs(bench).values() for row in rows if "us" in row and row["impl"] == peer]
    return list({key: row for row in every if (key := json.dumps(row["case"])) in wanted}.values())


def _commits(rows: Iterable[Mapping[str, Any]]) -> str:
    """Which models' rows are of which commit, in a sentence."""
    found: dict[str, list[str]] = {}
    for row in rows:
        names = found.setdefault(row["commit"], [])
        if (name := " ".join(_model(row))) not in names:
            names.append(name)
    if len(found) == 1:
        return f"Commit {next(iter(found))}."
    said = [", ".join(names) + f": {commit}" for commit, names in found.items()]
    return f"Commits: {'; '.join(said)}."


def _alone(bench: str) -> list[dict[str, Any]]:
    """The last row of every case and implementation in runs since the last whole one: ours, without peers."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for rows in runs(bench).values():
        if rows[-1].get("partial"):
            found |= {(json.dumps(row["case"]), row["impl"]): row for row in rows}
        else:
            found.clear()
    return list(found.values())


def _since(bench: str, unit: str) -> Iterable[str]:
    """A table of those rows."""
    rows = _alone(bench)
    if not rows:
        return
    lines = [[*map(str, row["case"].values()), row["impl"], _figure(row, unit), row["commit"]] for row in rows]
    yield "Measured since, without peers in the same run:\n"
    yield table([*rows[0]["case"], "", unit, "commit"], sorted(lines))


def _figure(row: Mapping[str, Any], unit: str) -> str:
    return f"{row['us']:.0f}" if unit == "µs" else f"{row['tokens_s']:.0f}"


def generation() -> Iterable[str]:
    """What the text of a kernel costs, on the host."""
    rows = load("generation")
    lines = [
        [row["case"]["what"], row["impl"], f"{row['us'] / 1000:.3g}" if "us" in row else "–", row.get("why", "")]
        for row in rows
    ]
    yield f"## Generating a kernel, milliseconds on {rows[0]['device']}\n"
    yield table(["what", "by", "ms", ""], lines)


def starting() -> Iterable[str]:
    """What imports and first texts cost beside an earlier commit: CPU time, and instructions."""
    every = [run for run in runs("start_up").values() if not run[-1].get("partial")]
    timed, counted = (next(run for run in reversed(every) if name in run[0]) for name in ("us", "instructions"))
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
        raise SystemExit(f"README.md: the marks {marks[0]} and {marks[1]} must be in it")
    return f"{head}{first}\n{inside}{second}{tail}"


def document(rows: Sequence[Mapping[str, Any]]) -> str:
    """docs/performance.md, from the rows of a run of decode attention and the last runs of the others."""
    parts = [INTRODUCTION, *decode_document.grid(rows), *decode_document.others(rows), *decode_document.counters()]
    parts += [
        *two_launches(),
        *untuned(),
        *prefill(),
        *small(),
        *launches(),
        *whole_models(),
        *one_launch(),
        *generation(),
        *starting(),
    ]
    return "\n".join(parts)


def readme(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the README says of speed."""
    return f"{decode_document.readme(rows)}\n{steps()}\n{standing()}"


def main() -> None:
    """Write the document, the README's table, and the chart where matplotlib is installed."""
    root, rows = HERE.parent, decode_document.newest()
    (root / "docs" / "performance.md").write_text(document(rows))
    page = root / "README.md"
    page.write_text(between(page.read_text(), README, readme(rows)))
    try:
        plot(rows, root / "docs" / "images" / "decode_attention.png")
    except ImportError as missing:
        print(f"the chart is as it was: {missing} (pip install 'ptxgen[plot]')")


if __name__ == "__main__":
    in_a_sentence(main)
