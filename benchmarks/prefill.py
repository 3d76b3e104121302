"""Prefill attention: MultiHeadAttention beside torch's SDPA (flash, cuDNN) and FlashInfer, where installed.

    python -m benchmarks.prefill                       measure on a GPU, print, append rows
    python -m benchmarks.prefill --cases prompts chunk --seconds 60   some groups of cases, so long
    python -m benchmarks.prefill --tiles 4,2,64,4,1,2,2 …    ours on mma.sync, with tiles in place of the table's
    python -m benchmarks.prefill --report [--run ID]   the table of the last run, or of one run

Every implementation is timed as nodes of a CUDA graph over several sets of inputs, in rounds of another order each, and
checked against float32 on rows spread over the sequence. `ptxgen-sm_80` is the text for sm_80, on mma.sync, of prompts
alone; `ptxgen-sm_90` is its like over 8 bits, `ptxgen-widened` makes these 16 bits in memory first. Of keys and values
of 8 bits a peer has the values in 16. A batch is one launch of ours, and of torch's a launch a sequence; a peer that
knows no pages has the same keys in rows. No backend of SDPA takes a chunk's mask but flash: "sdpa-cudnn, no mask" lets
every token see all keys, which is as much work. FlashInfer compiles a module for every head_dim, for minutes: only
those of `--flashinfer` are asked for.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.cases.prefill import GROUPS, LENGTHS, SHAPES, Case, Inputs, cases, is_alone, sequences
from benchmarks.peers.prefill import Declined, Prepare, Ready, flashinfer, sdpa
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run, markdown
from benchmarks.report.sentence import in_a_sentence
from ptxgen.attention.prefill.loops import tiles
from ptxgen.generator import clear_cache, generate
from ptxgen.kernels import MultiHeadAttention
from ptxgen.targets import target as parse_target

ROUNDS = 6
FEWER_ROUNDS = 3  # of cases other than prompts alone
SPAN = 0.03  # seconds of a reading
READING = 2e-3  # seconds of a graph, about
EXPECTED = 500e12  # multiply-adds counted as two, in a second
WARM = 0.1  # seconds before a sustained reading


def target_of(name: str) -> str:
    """A target by name, or this GPU's."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return name or f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def ours(name: str = "", **more: Any) -> Prepare:
    """MultiHeadAttention on the same tensors, for a target by name or for this GPU; `more` are fields of it."""

    def prepare(inputs: Inputs) -> Ready:
        import torch

        from benchmarks.timing.gpu import Loaded
        from ptxgen.kernel import supports

        case, kind = inputs.case, inputs.case["dtype"]
        if kind == "f32" and "kv_dtype" in case:
            raise Declined
        shape = {x: case[x] for x in ("head_dim", "n_heads", "n_kv_heads")} | {
            "causal": case.get("causal", True),
            **more,
        }
        if "lengths" in case:
            return batch(inputs, target_of(name), {**shape, "q_dtype": kind, "kv_dtype": kind})
        [(tokens, keys)] = sequences(case)
        kv_kind = case.get("kv_dtype", kind)
        shape |= {"head_scales": kv_kind == "e4m3", "fp8": case.get("fp8", False)}
        if case.get("fp8"):
            shape["max_len"] = keys  # without one, values would be converted on the way
        spec = MultiHeadAttention(**shape, q_dtype=kind, kv_dtype=kv_kind, layout="heads")
        if not spec.widened:  # else as asked for
            fastest = spec.fastest(parse_target(target_of(name)), tokens, keys)
            spec = spec if fastest.widened else fastest
        if not supports(spec, target_of(name)):
            raise Declined
        loaded = Loaded(generate(spec, target_of(name)), n_tokens=tokens, n_keys=keys)
        lengths = {"q_len": tokens, "q_rows": tokens, "kv_len": keys, "kv_rows": keys}
        outs = [torch.full_like(q[0], math.nan) for [[q, _, _]] in inputs.sets]
        caches = [each for [each] in inputs.held] or [{"k": k, "v": v} for [[_, k, v]] in inputs.sets]
        calls = [
            loaded.bind(q=q, out=out, **lengths, **cache)
            for [[q, _, _]], out, cache in zip(inputs.sets, outs, caches, strict=True)
        ]

        def result() -> list[Any]:
            calls[0]()
            return [outs[0]]

        return Ready(calls, result, loaded.close)

    return prepare


def batch(inputs: Inputs, target: str, shape: dict[str, Any]) -> Ready:
    """Several sequences in one launch, over caches of rows or of pages in no order."""
    import torch

    from benchmarks.timing.gpu import Loaded

    lengths, page = inputs.case["lengths"], inputs.case.get("page_size", 0)
    whole = -(-max(lengths) // (page or 1)) * (page or 1)
    pages = len(lengths) * whole // page if page else 0
    spec = MultiHeadAttention(**shape, batched=True, max_len=whole, page_size=page)
    loaded = Loaded(generate(spec, target), n_tokens=sum(lengths), batch=len(lengths), pages=pages)
    bounds = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    given: dict[str, Any] = {
        "q_starts": torch.tensor(bounds, device="cuda", dtype=torch.int32),
        "kv_lens": torch.tensor(lengths, device="cuda", dtype=torch.int32),
        "n_sequences": len(lengths),
    }
    table = torch.randperm(max(pages, 1), device="cuda")
    if page:
        given["page_table"] = table.to(torch.int32).reshape(len(lengths), -1)

    def cache(rows: Sequence[Any]) -> Any:
        """`[sequences, heads, rows, head_dim]`, or the pages of it; NaN where there is no key."""
        _, heads, _, dim = rows[0].shape
        out = torch.full((len(rows), heads, whole, dim), math.nan, device="cuda", dtype=rows[0].dtype)
        for n, each in enumerate(rows):
            out[n, :, : each.shape[2]] = each[0]
        if not page:
            return out
        in_order = (
            out.reshape(len(rows), heads, -1, page, dim).transpose(1, 2).reshape(-1, heads, page, dim).contiguous()
        )
        return torch.empty_like(in_order).index_copy_(0, table, in_order)

    calls, outs = [], []
    for each in inputs.sets:
        q = torch.cat([q[0].transpose(0, 1) for q, _, _ in each]).contiguous()  # that of one keeps its strides
        outs.append(torch.full_like(q, math.nan))
        k, v = (cache([rows[x] for rows in each]) for x in (1, 2))
        calls.append(loaded.bind(q=q, k=k, v=v, out=outs[-1], **given))

    def result() -> list[Any]:
        calls[0]()
        return [outs[0][a:b].transpose(0, 1) for a, b in itertools.pairwise(bounds)]

    return Ready(calls, result, loaded.close)


def tiled(text: str) -> Prepare:
    """Ours on mma.sync with a tile in place of the table's: fields of a TensorTile with commas between, in its order;
    of those not given it has defaults, as of `ctas`, which is 1."""
    tile = tiles.TensorTile(*map(int, text.split(",")))

    def prepare(inputs: Inputs) -> Ready:
        if inputs.case["dtype"] == "f32":
            raise Declined
        original = tiles.tensor_tile
        tiles.tensor_tile = lambda *_, **__: tile  # type: ignore[assignment]
        clear_cache()
        try:
            return ours("sm_80")(inputs)
        finally:
            tiles.tensor_tile = original
            clear_cache()

    return prepare


def only(fits: Callable[[Case], bool], prepare: Prepare) -> Prepare:
    """An implementation of some cases."""

    def prepared(inputs: Inputs) -> Ready:
        if not fits(inputs.case):
            raise Declined
        return prepare(inputs)

    return prepared


IMPLEMENTATIONS: dict[str, Prepare] = {
    "ptxgen": ours(),
    "ptxgen-sm_80": only(lambda case: is_alone(case) and case["dtype"] != "f32", ours("sm_80")),
    "ptxgen-widened": only(lambda case: "kv_dtype" in case and not case.get("fp8"), ours(widened=True)),
    "ptxgen-sm_90": only(lambda case: "kv_dtype" in case, ours("sm_90")),
    "sdpa-flash": sdpa("FLASH_ATTENTION"),
    "sdpa-cudnn": sdpa("CUDNN_ATTENTION"),
    "sdpa-cudnn, no mask": sdpa("CUDNN_ATTENTION", masked=False),
    "flashinfer": flashinfer,
}


def captured(ready: Ready, inputs: Inputs) -> tuple[Any, int]:
    """A graph of calls over all sets in turn, about a millisecond of them, and how many there are."""
    import torch

    sets = len(ready.calls)
    count = sets * max(1, int(READING * EXPECTED / inputs.flops / sets))
    if inputs.flops > EXPECTED * READING:
        count = 1
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(count):
            ready.calls[n % sets]()
    return graph, count


def reading(graph: Any, count: int) -> float:
    """Microseconds of one call: the median over replays for some milliseconds."""
    import torch

    graph.replay()
    times: list[float] = []
    spent = 0.0
    while spent < SPAN * 1e3 or len(times) < 3:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
        spent += times[-1]
    found: float = statistics.median(times) * 1e3 / count
    return found


def sustained(graph: Any, count: int, seconds: float) -> float:
    """Microseconds of one call, of calls without a pause for so long, after others."""
    import torch

    replays = max(1, round(seconds * 1e6 / (reading(graph, count) * count)))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(round(replays * WARM / seconds)):
        graph.replay()
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    found: float = start.elapsed_time(end) * 1e3 / replays / count
    return found


def measure_case(run: Run, case: Case, implementations: Mapping[str, Prepare]) -> None:
    """All implementations in another order in every round, as the clock remembers what ran before."""
    inputs = Inputs(case)
    ready: dict[str, Ready] = {}
    errors: dict[str, float] = {}
    for impl, prepare in implementations.items():
        try:
            ready[impl] = prepare(inputs)
            errors[impl] = inputs.error(ready[impl].result())
        except Declined:
            pass
        except ImportError as missing:
            print(f"{impl}: {missing}, no row")
            ready.pop(impl, None)
        except Exception as refused:  # a peer that does not take the shape; ours must not fail
            if impl.startswith("ptxgen"):
                raise
            print(f"{impl} {case}: {str(refused)[:200]}, no row")
            ready.pop(impl, None)
    graphs = {impl: captured(each, inputs) for impl, each in ready.items()}
    times: dict[str, list[float]] = {impl: [] for impl in graphs}
    seconds = case.get("seconds")
    for number in range(1 if seconds else ROUNDS if is_alone(case) else FEWER_ROUNDS):
        for impl in random.Random(number).sample(list(graphs), len(graphs)):
            times[impl].append(sustained(*graphs[impl], seconds) if seconds else reading(*graphs[impl]))
    for impl, each in ready.items():
        us = statistics.median(times[impl])
        measures = {"us": us, "tflops": inputs.flops / us / 1e6}
        if each.comparable:
            measures["error"] = errors[impl]
        run.add(case, impl, **measures)
        print(case, impl, {name: float(f"{value:.4g}") for name, value in measures.items()}, flush=True)
        each.close()


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """The cases that are asked for, the most important first."""
    shapes = [tuple(map(int, text.split("/"))) for text in arguments.shapes]
    found = [case for group in arguments.cases for case in cases(group, arguments.dtype, arguments.lengths, shapes)]
    return [case for case in found if arguments.head_dim in (None, case["head_dim"])]


def measure_all(run: Run, arguments: argparse.Namespace) -> None:
    """Every implementation on every case, for `arguments.seconds`."""
    ends = time.monotonic() + arguments.seconds
    left = chosen(arguments)
    while left and time.monotonic() < ends:
        case = left.pop(0)
        implementations = {name: IMPLEMENTATIONS[name] for name in arguments.implementations}
        if case["head_dim"] not in arguments.flashinfer:
            implementations.pop("flashinfer", None)
        measure_case(run, case, implementations)
    for case in left:
        print(f"no time was left for {case}")


def measure_tiles(run: Run, arguments: argparse.Namespace) -> None:
    """Ours on mma.sync with each of the given tiles in place of the table's."""
    for case in chosen(arguments):
        measure_case(run, case, {f"ptxgen-sm_80 {text}": tiled(text) for text in arguments.tiles})


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table, and ours over each peer by geometric mean."""
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        by_case.setdefault(str(row["case"]), {})[row["impl"]] = row["us"]
    lines = [markdown(rows), ""]
    for impl in dict.fromkeys(row["impl"] for row in rows):
        ratios = [us[impl] / us["ptxgen"] for us in by_case.values() if impl in us and "ptxgen" in us]
        if ratios and impl != "ptxgen":
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            lines.append(f"{impl} / ptxgen: {mean:.3f} (geometric mean of {len(ratios)}), least {min(ratios):.3f}")
    return "\n".join(lines)


def main() -> None:
    names = tuple(IMPLEMENTATIONS)
    options = (
        ("--tiles", {"nargs": "+", "help": "only ours, with these tiles"}),
        ("--cases", {"nargs": "+", "choices": GROUPS, "default": GROUPS, "metavar": "GROUP"}),
        ("--head-dim", {"type": int, "choices": [d for *_, d in SHAPES]}),
        ("--shapes", {"nargs": "+", "default": (), "help": "32/8/96 …: of these heads and head_dim in place of all"}),
        ("--lengths", {"type": int, "nargs": "+", "default": LENGTHS, "help": "of the group `prompts`"}),
        ("--dtype", {"choices": ("bf16", "f16", "f32"), "default": "bf16"}),
        ("--implementations", {"nargs": "+", "choices": names, "default": names, "metavar": "IMPL"}),
        ("--flashinfer", {"type": int, "nargs": "*", "default": (128, 64), "metavar": "HEAD_DIM"}),
        ("--seconds", {"type": float, "default": math.inf, "help": "no case begins later"}),
    )

    def measure(run: Run, given: argparse.Namespace) -> None:
        (measure_tiles if given.tiles else measure_all)(run, given)

    command("prefill", __doc__, measure, *options, device=gpu, table=report, at_once=True)


if __name__ == "__main__":
    in_a_sentence(main)
