"""What docs/performance.md and the README say of whole models: decode steps, prompts, and the products of both."""

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
    span,
)


def tokens() -> str:
    """A token of whole models beside llama.cpp: a table of the empty cache, then a sentence on batches."""
    cases: dict[tuple[str, int, int], dict[str, float]] = {}
    newest, elsewhere = newest_rows("decode_step"), rows_elsewhere("decode_step", "llama.cpp", "ptxgen")
    for row in [*newest, *elsewhere]:
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
        ratios, rounded = (
            [us["llama.cpp"] / us[impl] for key, us in both.items() if key[1] == batch and impl in us]
            for impl in ("ptxgen", "ptxgen-fast")
        )
        fast = f" ({span(rounded)} with activations rounded to bf16)" if rounded else ""
        spans.append(f"{'one sequence' if batch == 1 else f'{batch} sequences'} {span(ratios)}{fast}")
    apart = sorted({row["case"]["model"] for row in elsewhere})
    together = "in one run" + (f" ({', '.join(apart)}: in different runs)" if apart else "")
    if {model for model, *_ in both} <= set(apart):
        together = "in an earlier run"
    return (
        "A token of a whole model in four bits (Q4_K_M), activations as exact as f32: µs a step from an empty cache, "
        f"beside llama.cpp {together}:\n\n{table(['model', 'ptxgen', 'llama.cpp', 'times', 'read'], lines)}\n"
        f"Over all depths, times llama.cpp: {'; '.join(spans)}. `read`: reading the weights, no more. "
        f"{commits_of(row for row in newest if row['case']['weights'] == 'q4_k_m')}\n"
    )


def whole_models() -> Iterable[str]:
    """Decode steps and prompts of whole models, and their products alone."""
    steps, prompts = newest_rows("decode_step"), newest_rows("prompt")
    alone, many = rows_measured("products", without=("pack", e4m3_products.PACK)), newest_tokens("products", "pack")
    yield from _part(
        "Whole models: µs of a decode step",
        "Random weights of the models' shapes, an f16 cache. `host`: what `forward_to_token` takes beyond the device; "
        "other processes used the host's CPUs meanwhile. `of the read`: read of the same bytes ÷ ours. Products are "
        "exact in f32, those of `ptxgen-fast` rounded to bf16; `ptxgen-persistent` is one launch. "
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
    yield from one_token(alone)
    yield from _part(
        "Products of many tokens: µs as graph nodes, weights beyond the L2",
        "`ptxgen`: PackedGemm, precision `fast`; `programmatic`: the same launched programmatically; `exact`: the "
        "other precision; `pack`: PackTokens, once for all products of the same tokens; `cublas`: bf16 in and out. "
        "`error`: of ours, relative, against float64. Geometric means of cuBLAS ÷ ours: "
        f"{packed_products.ratios(many)}. {runs_of_tokens(many)}",
        packed_products.table(many),
    )
    in_bytes = newest_tokens("products", e4m3_products.PACK)
    yield "## Products of many tokens in e4m3: µs as graph nodes, weights beyond the L2\n"
    yield (
        "Tokens and weights in e4m3, results in bf16; no time counts the rounding of tokens, which is `pack-e4m3`. "
        "`ptxgen`: launched programmatically; tensor cores add up all products, of blocks those of 128 columns; "
        "`promoted`: f32 adds up the sums of every 128 columns; `row-scales`: of blocks of weights, scales of rows "
        "of tokens, not of 128 columns. `cublas`: `torch._scaled_mm`, scales of rows; "
        "`cublas-fast`: the same with `use_fast_accum=True`; `cublas-block`: `scaled_mm`, scales of 1 × 128 and "
        "128 × 128. `error`: relative, against float64 of tokens before they were rounded; `of sums`: after, with what "
        f"rounding to bf16 leaves. Geometric means of cuBLAS ÷ ours: {e4m3_products.ratios(in_bytes)}. "
        f"{runs_of_tokens(in_bytes)}\n"
    )
    yield e4m3_products.table(in_bytes) + "\n"


def _part(title: str, about: str, table: str) -> Iterator[str]:
    """A heading, what its table is of, and the table."""
    yield f"## {title}\n"
    yield f"{about}\n"
    yield f"{table}\n"


def first_tokens() -> Iterable[str]:
    """The time to the first token of prompts in bf16 beside transformers: of each model's newest run that has both."""
    peers = ("transformers-cudnn", "transformers-cudnn, graph")
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
        f"`Model(…, persistent=True)`, one sequence. {_ahead(newest)} {commit_of(steps)} Other lines are of what was "
        "tried: fields of `PersistentStep`, of which each model takes the last ones, and none, as it was then. "
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
        "`in the step`: what a launch adds to the graph, from graphs that end with it, so that launches overlap as "
        "they do; `alone`: in a graph of all its like and nothing else, where weights of less than 60 MB may come from "
        "the L2 cache; `read`: its bytes at the rate of reading 2 GB. By what `alone` is less, a launch waits for the "
        "one before: the gaps.\n"
    )
    yield (
        "What is far from the read is small: a launch of less than 10 MB is latency, and five of them a layer follow "
        "one another. Tried there: other geometries of products (the table of products of one token), other plans of "
        "attention (`ptxgen tune`), and one launch for the whole step, which is ahead of two models alone, near an "
        "empty cache (below).\n"
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
    """Products of one token, launched plainly and programmatically, against what is wanted of them."""
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
    yield "## Products of one token: share of the read, and what is wanted\n"
    yield (
        "Graph nodes, launched plainly and programmatically, as every step of a model launches them; the read is "
        "launched plainly. A case is short where neither reaches what is wanted. 1536×8960 has 96 records of 16 rows "
        f"for 132 multiprocessors. {commit_of(rows)}\n"
    )
    heads = ["weights", "N × K", "MB", "plain, µs", "programmatic, µs", "read, µs", "of the read, plain",
             "programmatic", "wanted", ""]  # fmt: skip
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


FEW_TOKENS = """The figures from here to the next heading were read off while kernels were made: single measurements on
an H200, of which there are no rows in `benchmarks/results`.

What was tried for 8, 16 and 32 tokens, µs of llama-3-8b's gate and up in Q4_K (the read: 17.1):

- Sums of three digits one on the other in s32, and an f32 scale a span: 18.3 for 8 tokens. Integer scales, and one
  conversion a tile: 17.3. Both 31 for 16: eight more tokens cost 100 cycles a tile and multiprocessor either way, and
  products of 16 columns (Q6_K) 1.6 times as much.
- 32 tokens in one CTA, with k in clusters of four: 68; twice 16, which reads the weights twice: 61; four times 8: 67.
  Where such a product is one turn of CTAs (4096×4096), 32 in one CTA are faster: 14.5, 15.9 and 17.
- One CTA for all of k, where its tokens fit, is 1.5 to 3.3 ahead of two that share it; but with as many units of tokens
  as tiles to multiply (2048×5632, 8 tokens) two take 5.2 where one takes 8.7.
- Clusters of 3, 5 and 7 CTAs wait for room: 45 where clusters of two take 21.
- Integers on wgmma (`by_row`), 8, 16 and 32 tokens, exact: 22.6, 28.0, 33.4; as bytes, 18.7, 33.6, 64.5. So what does
  not depend on tokens takes 17 of them, 180 cycles for 16 rows by 256 columns, of which instructions are 105 by
  their number. Converting the next block of rows while a block's last products run changed nothing (33.7); CTAs of 256
  rows took 40.4 (one round of their tiles leaves 20 multiprocessors idle), CTAs that share tokens 36.8.
- In units of rows, rounded once (`fast`): 27.5 for 32 tokens; in bf16 36.1, of which weights' conversion is the most.

What held 32 tokens back was the ring: beside 32 KB of tokens a stage, two CTAs a multiprocessor had two stages each.
One CTA with four or five, exact (`fast`): 4096×14336 in Q4_K 20.2 instead of 31.1 (17.8, 24.4), in Q6_K 29.6 instead of
41.8 (21.5, 27.2), 4096×4096 9.3 instead of 11.9; llama-3-8b's step of 32 sequences at depth 4096 7165 instead of 7710
in one measurement (7242 in the rows, 7912 in those before), at 512 3787 instead of 4453. Beside that:

- Gate and up in tiles of 256 rows, a block of 64 for each of four warpgroups, k shared out evenly: 7136, in tiles that
  have all of k 7157, of 128 rows by two CTAs a multiprocessor 7243; two warpgroups with two blocks each 7112.
- Nibbles as multiples of the smallest f16 number, by a mask and one product: 33.2 instead of 34.1 for 32 tokens, 20.3
  instead of 22.4 for 8. Without conversions gate and up take 29.2, without their products 29.9, without tokens' copies
  32.6, without either of the first 27.9 and 25.9; one, two and four warpgroups, one to four chunks a part and two to
  four stages are within 10 %. An ncu profile shows no unit busier than the tensor cores, 47 %.
- Clusters of four that are more than 30, and of eight more than 14, come in two rounds: 36 where clusters of two take
  21 (4096×14336).
- Four warpgroups pass registers on within what the CTA was launched with: 96 of each, so 112 beside 32, not 120.
- The head (128256×4096, Q6_K): 193 in tiles of 192 rows whose k is shared out evenly, 227 before; `fast` 124.
- bf16, 8 sequences at depth 512 (4202): 16 or 8 warps a CTA for gate and up, or for all products, 4203 to 4205; the
  last product launched programmatically 4191.

In batches of llama-3-8b at depth 4096 attention launched programmatically took 152 µs of the step where it takes 124
alone. When the append ahead of it waits for the products' end, steps of 32, 16 and 8 sequences take 7286, 5024 and 3079
instead of 8120, 5475 and 3287; at depth 512 they differ by 2 % and less. With fewer keys a position steps were longer:
8 sequences at depth 512 of TinyLlama 1.1B 781 instead of 732, of Qwen2.5 1.5B 1165 instead of 1086 (mbarriers of
DigitGemm that one thread makes are in that, too). So these two are launched as before since 5f60d4347848, whose rows
are of the other way.

Exact batches in bf16 of llama-3-8b, 8 sequences at depth 512: q, k and v in one product, and the last product of a
layer not launched programmatically (36.9 µs so, 28.9 else), 4242 instead of 4584. In `fast` two CTAs that share k of
gate and up take 57.0 where one takes 61.6. Twice transformers' speed would be 3980: 0.84 of the read.

The same step on PackedGemm, `fast` (4154 to 4213 from run to run; its read 3404), and what was tried there, µs of the
step:

- Launches left out, the rest as it is (4213): packing for q, k and v 4188, for the product after attention 4222, for
  gate and up 4158, the append 4160, attention 3978. What stands between products is hidden by weights that are asked
  for before the wait; fusing all of it gains 3 % at most. Products alone, one after the other, take 56.6, 28.5, 13.9
  and 10.8 where those of one token take 53.2, 27.9, 13.0 and 9.0.
- Rings that leave room for a CTA of the next launch, the append launched programmatically (4149 with 11 of 12 stages
  after attention): 8, 6 and 4 of 12 stages after attention 4136, 4119 and 4197, 9, 6 and 4 of 12 for `down_proj` 4116,
  4332 and 4274, 2 of 3 for gate and up 4298 (4074 with 3), 5, 4 and 3 of 6 for q, k and v 4065, 4065 and 4164 (4074
  with 6). At depth 4096 that step takes 5134 instead of 4961; without the append's part of it fewer stages gain nothing
  (4150 to 4164, plain 4154).
- Attention that begins beside a product has the L1 cache that the product's ring leaves, 28 KB. With 58 % of it for
  shared memory (`PREFERRED_SHARED_MEMORY_CARVEOUT` of attention), 6 stages after it, 9 for `down_proj` and the append
  launched programmatically, the step takes 4116 instead of 4205 at depth 512, 4942 instead of 5035 at 4096. One
  measurement; launches cannot ask for that yet. Without the append's part 4211 to 4218; all launches with as much
  shared memory as there is 4241 instead of 4211, all but attention 4215; with 32 sequences 4997 and 5020 instead of
  4960.
- k shared out evenly, in tiles of 64 or 128 rows: for gate and up 4161 to 4229, for q, k and v 4197 to 4277, for
  `down_proj` 4172, after attention 4177 (each beside 4119 to 4213), for the head 4117 to 4124 (4117 without); clusters
  of four for q, k and v 4200, gate and up by one CTA for all of k 4188, in tiles of 256 rows 4241.
- A tile of k a stage instead of two: after attention 4164 instead of 4205, elsewhere 4197 to 4224. Of 32 sequences,
  where gate and up then have five stages instead of two in each of two CTAs, 4871 instead of 4960 at depth 512, 8318
  instead of 8396 at 4096: there it is so now; q, k, v and `down_proj` 4994.
- Exact on PackedGemm 4444 to 4491 where Gemm takes 4263.

64 tokens launched plainly, in bf16, are behind cuBLAS in small shapes whatever the tile (rows, CTAs that share k):
2048×2048 7.65 (128 rows, 4) and 7.94 (64, 2) beside 6.72, 3072×2048 7.61 beside 6.94, 4096×4096 12.52 beside 11.91,
16384×2048 20.3 beside 19.8; launched programmatically 5.31, 6.50, 11.17 and 18.09. 6144×4096 16.69 beside 16.93,
28672×4096 62.3 beside 62.8, 2048×8192 13.40 beside 14.50, 4096×14336 32.3 beside 36.4.

In the step of one sequence at depth 4096 (1587), other plans of attention (clusters of 1, 4 and 8, 264 CTAs, four
warps) are 0.3 to 6 % slower, 12 warps for gate and up 1.3 %, other CTAs for the products after attention 0.4 to 5 %.
"""


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
    if rows:
        yield FEW_TOKENS


def _figure(row: Mapping[str, Any], unit: str) -> str:
    return f"{row['us']:.0f}" if unit == "µs" else f"{row['tokens_s']:.0f}"
