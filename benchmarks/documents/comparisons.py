"""What is compared with peers, a line each, made of the rows that docs/performance.md shows; `summary.py` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import e4m3_products
from benchmarks.cases.decode import LISTS
from benchmarks.cases.prefill import is_alone
from benchmarks.documents import decode as decode_document
from benchmarks.documents import engines as engines_document
from benchmarks.documents import model as model_document
from benchmarks.documents import prefill as prefill_document
from benchmarks.report.decode import by_case, case_of, label, over_peers, ratios
from benchmarks.report.selection import (
    newest_of_models,
    newest_rows,
    newest_tokens,
    rows_alone,
    rows_elsewhere,
    rows_measured,
)
from benchmarks.transformers_attention import ratios as rates_beside

BF16, EXACT, ROUNDED = "bf16", "exact", "rounded to bf16"
MANY = ((8, 64), (128, 4096))  # tokens of a product, from and to

Found = tuple[str, float, Mapping[str, Any]]  # a case in words, best peer ÷ ours, our row


@dataclass(frozen=True)
class Line:
    """One comparison: what, in which precision, beside whom; the best peer's time ÷ ours by case; the largest relative
    error of ours (0: these rows have none); the commits of our rows. `short`: it stands in the short table, too."""

    what: str
    precision: str
    beside: str
    times: Mapping[str, float]
    commits: Sequence[str]
    error: float = 0.0
    short: bool = False

    @property
    def behind(self) -> dict[str, float]:
        """The cases in which a peer takes less time, the worst first."""
        found = {case: ratio for case, ratio in self.times.items() if ratio < 1}
        return dict(sorted(found.items(), key=lambda item: item[1]))


def line(what: str, precision: str, beside: str, found: Iterable[Found], short: bool = False) -> Iterator[Line]:
    """A line of these cases; none without cases."""
    every = list(found)
    if every:
        commits = dict.fromkeys(str(row["commit"]) + row.get("apart", "") for _, _, row in every)
        error = max(row.get("error", 0.0) for _, _, row in every)
        times = {case: ratio for case, ratio, _ in every}
        yield Line(what, precision, beside, times, list(commits), error, short)


def lines(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """All comparisons, given the rows of the decode attention run that the document is of."""
    return [*decode_attention(rows), *prefill(), *products(), *products_in_e4m3(), *steps(), *prompts(), *engines()]


def decode_attention(rows: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """The grid of this run, of the last run with FlashInfer where this has none, and the cases of all other lists."""
    grid = decode_document.of_grid(rows)
    yield from line("decode attention", "f16", _peers(grid), _attended(rows, grid), short=True)
    if "FlashInfer" not in _peers(grid):
        for run in reversed(decode_document.whole_grids().values()):
            cases = decode_document.of_grid(run)
            if "FlashInfer" in _peers(cases):
                yield from line("the same, an earlier run", "f16", _peers(cases), _attended(run, cases))
                break
    others: dict[str, Found] = {}
    for name in ("types", *decode_document.SECTIONS.values()):
        fullest = decode_document.fullest(name, rows)
        wanted = {case: times for case, times in by_case(fullest).items() if case in LISTS[name] and case not in grid}
        others |= {found[0]: found for found in _attended(fullest, wanted)}
    what = "decode attention: other caches, batches, pages, heads"
    yield from line(what, "as the cache", "cuDNN, FlashAttention 2, FlashInfer", others.values())


def _peers(cases: decode_document.Cases) -> str:
    return ", ".join(decode_document.peers_in(cases))


def _attended(rows: Sequence[Mapping[str, Any]], cases: decode_document.Cases) -> Iterator[Found]:
    mine = {case_of(row["case"]): row for row in rows if row["impl"] == "ptxgen"}
    for case, ratio in ratios(cases, over_peers("ptxgen")).items():
        yield label(case), ratio, mine[case]


def prefill() -> Iterator[Line]:
    """Causal prompts beside all peers; the other cases with caches of 16 bits, and with 8, whose values peers have in
    16. Queries in e4m3 are another precision than the peers': they are in the section alone."""
    alone = (impls for impls in prefill_document.newest(peers=3) if is_alone(impls["ptxgen"]["case"]))
    beside = "cuDNN, FlashAttention 2, FlashInfer"
    yield from line("prefill attention, causal prompts", BF16, beside, _prefilled(alone), short=True)
    others = [impls for impls in prefill_document.newest() if not is_alone(impls["ptxgen"]["case"])]
    of_16 = (impls for impls in others if "kv_dtype" not in impls["ptxgen"]["case"])
    what = "prefill attention: chunks, batches, pages, no mask, head_dim 256, sustained"
    yield from line(what, BF16, beside, _prefilled(of_16))
    of_8 = (impls for impls in others if {"kv_dtype", "fp8"} & impls["ptxgen"]["case"].keys() == {"kv_dtype"})
    what = "prefill attention, caches of 8 bits (peers: the same values in 16)"
    yield from line(what, BF16, beside, _prefilled(of_8))


def _prefilled(measured: Iterable[prefill_document.Impls]) -> Iterator[Found]:
    """Ours is the faster of converting a cache on the way and widening it, between which `fastest` chooses."""
    for impls in measured:
        case = impls["ptxgen"]["case"]
        ours = min((impls[name] for name in ("ptxgen", "ptxgen-widened") if name in impls), key=lambda row: row["us"])
        more = (f"{name} {value}" for name, value in case.items() if name not in prefill_document.ALONE)
        heads = "/".join(str(case[name]) for name in ("n_heads", "n_kv_heads", "head_dim"))
        words = " ".join((heads, f"{case['tokens']} tokens", *more))
        beside = min((impls[peer] for peer in prefill_document.PEERS if peer in impls), key=lambda row: row["us"])
        yield words, beside["us"] / ours["us"], {**ours, "apart": _apart(beside, ours)}


def products() -> Iterator[Line]:
    """Products in bf16 beside cuBLAS: of one token, exact; of more, rounded by ranges of tokens, and exact."""
    one = rows_measured("products", without=("pack", e4m3_products.PACK), tokens=8)
    yield from line("products of one token", EXACT, "cuBLAS, bf16", _multiplied(one, (1, 1), "ptxgen"), short=True)
    many = newest_tokens("products", "pack")
    for least, most in MANY:
        rounded = _multiplied(many, (least, most), "programmatic", "ptxgen")
        yield from line(f"products of {least} to {most} tokens", ROUNDED, "cuBLAS, bf16", rounded, short=True)
    least, most = MANY[0][0], MANY[-1][1]
    exact = _multiplied(many, (least, most), "exact")
    yield from line(f"products of {least} to {most} tokens", EXACT, "cuBLAS, bf16", exact, short=True)


def products_in_e4m3() -> Iterator[Line]:
    """Products of weights and tokens in e4m3 beside cuBLAS with scales of the same kind."""
    rows = newest_tokens("products", e4m3_products.PACK)
    for name, peer, said in (("e4m3_channel", "cublas", "rows"), ("e4m3_block", "cublas-block", "blocks")):
        for tokens in ((8, 128), (512, 4096)):
            found = _multiplied(rows, tokens, "ptxgen", peer=peer, weights=name)
            what = f"products of {tokens[0]} to {tokens[1]} tokens, scales of {said}"
            yield from line(what, "e4m3", f"cuBLAS, scales of {said}", found)


def _multiplied(
    rows: Iterable[Mapping[str, Any]],
    tokens: tuple[int, int],
    *ours: str,
    peer: str = "cublas",
    weights: str = "bf16",
) -> Iterator[Found]:
    """Products of `tokens[0]` to `tokens[1]` tokens: ours is the first of these implementations that was measured."""
    found: dict[tuple[int, int, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        case = row["case"]
        if case["weights"] == weights and tokens[0] <= case["m"] <= tokens[1]:
            found.setdefault((case["m"], case["n"], case["k"]), {})[row["impl"]] = row
    for (m, n, k), impls in sorted(found.items()):
        mine = next((impls[name] for name in ours if name in impls), None)
        if mine and peer in impls:
            said = f"{n}×{k}" + (f" with {m} tokens" if m > 1 else "")
            yield said, impls[peer]["us"] / mine["us"], mine


STEPS = (
    ("llama.cpp", "q4_k_m", (1,), "ptxgen", "a token of a whole model, Q4_K_M", EXACT),
    ("llama.cpp", "q4_k_m", (8, 32), "ptxgen", "a step of 8 and 32 sequences, Q4_K_M", EXACT),
    ("llama.cpp", "q4_k_m", (8, 32), "ptxgen-fast", "a step of 8 and 32 sequences, Q4_K_M", ROUNDED),
    ("transformers-compiled", "bf16", (1,), "ptxgen", "a token of a whole model, bf16", EXACT),
    ("transformers-compiled", "bf16", (8, 32), "ptxgen", "a step of 8 and 32 sequences, bf16", EXACT),
    ("transformers-compiled", "bf16", (8, 32), "ptxgen-fast", "a step of 8 and 32 sequences, bf16", ROUNDED),
)
PEERS = {"llama.cpp": "llama.cpp, rounded to 8 bits", "transformers-compiled": "transformers, compiled, bf16"}


def steps() -> Iterator[Line]:
    """Decode steps of whole models beside llama.cpp and transformers."""
    for peer, weights, batches, ours, what, precision in STEPS:
        rows = [*newest_rows("decode_step"), *rows_elsewhere("decode_step", peer, ours)]
        chosen = (row for row in rows if row["case"]["weights"] == weights and row["case"]["batch"] in batches)
        yield from line(what, precision, PEERS[peer], _stepped(chosen, ours, (peer,)), short=ours == "ptxgen")


def _stepped(rows: Iterable[Mapping[str, Any]], ours: str, peers: Sequence[str]) -> Iterator[Found]:
    """Steps or prompts by model, size and depth; our row says so where the peer is of another run."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        case = row["case"]
        size = f"{case['tokens']} tokens" if "tokens" in case else f"batch {case['batch']}"
        where = f"{case['model']} {size} at depth {case['depth']}"
        found.setdefault(where, {})[row["impl"]] = row
    for where, impls in found.items():
        beside = min((impls[peer] for peer in peers if peer in impls), key=lambda row: row["us"], default=None)
        if ours in impls and beside:
            mine = impls[ours]
            yield where, beside["us"] / mine["us"], {**mine, "apart": _apart(beside, mine)}


def _apart(beside: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """The commit of a peer's row that is of another run than ours."""
    return "" if beside["run"] == mine["run"] else f" ({beside['impl']}: {beside['commit']})"


def prompts() -> Iterator[Line]:
    """Prompts of whole models: of 512 tokens beside llama.cpp, longer ones in bf16 beside transformers."""
    for ours, precision in (("ptxgen-fast", ROUNDED), ("ptxgen", EXACT)):
        rows = [*newest_rows("prompt"), *rows_elsewhere("prompt", "llama.cpp", ours), *rows_alone("prompt")]
        chosen = (row for row in rows if row["case"]["weights"] == "q4_k_m")
        found = _stepped(chosen, ours, ("llama.cpp",))
        yield from line("a prompt of 512 tokens, Q4_K_M", precision, PEERS["llama.cpp"], found, short=True)
    first = newest_of_models("prompt", model_document.FIRST_TOKEN[0])
    found = _stepped(first, "ptxgen-fast", model_document.FIRST_TOKEN)
    what = "a prompt of 512 to 32768 tokens, bf16"
    yield from line(what, ROUNDED, "transformers with cuDNN's attention", found, short=True)


def engines() -> Iterator[Line]:
    """Models of transformers with our attention in place of the best of its own."""
    rows = engines_document.newest()
    found = rates_beside(rows)
    for kind, said in engines_document.KINDS.items():
        mine = {tuple(row["case"].values()): row for row in rows if row["impl"] == "ptxgen"}
        of = [(f"{case[2]} × {case[1]}", ratio, mine[case]) for case, ratio in found.items() if case[0] == kind]
        what = f"transformers with our attention: {said}"
        yield from line(what, BF16, "its `sdpa`, FlashAttention 2", of, short=kind == "graph")
