"""Decode attention, one layer: IncrementalAttention beside the read of its KV cache alone, torch's SDPA and FlashInfer.

    python -m benchmarks.decode_attention [--cases grid,types,…]     measure on a GPU, print, append rows
    python -m benchmarks.decode_attention --report [--run ID]        the table of the last run, or of one run
    … --json                                                         the rows instead of the table
    … --plot chart.png                                               and the chart (pip install 'ptxgen[plot]')

Every implementation is timed as graph nodes back to back over enough KV sets to defeat the L2, and checked against
float32. `ptxgen-programmatic` is the same chain launched programmatically: each kernel's query and newest position wait
for the kernel ahead, its older positions do not. `ptxgen-invariant` gives a sequence the same bytes in every batch.
`floor` reads as many bytes once. What a peer does not run, and why, is in the rows too.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

from benchmarks.cases.decode import LISTS, Case, Inputs, cases
from benchmarks.peers import flashinfer
from benchmarks.peers.decode import IMPLEMENTATIONS as OURS_AND_TORCH
from benchmarks.peers.decode import Refused, kernels, this_machine
from benchmarks.peers.read_floor import Floor
from benchmarks.report.decode import as_json, plot, report
from benchmarks.report.rows import Run, load
from benchmarks.report.schedule import in_time
from benchmarks.report.sentence import in_a_sentence
from benchmarks.timing.prepared import ahead

IMPLEMENTATIONS = {**OURS_AND_TORCH, **flashinfer.IMPLEMENTATIONS}
EXACT = 5e-3  # a relative error above it is shown
PLACE = r"^Error in function '\S+'|(?: at)? /\S+"  # of an error, in files of this machine: not for the rows
DISTURBED = 1.04  # floors before and after a case that differ by more say that it was not alone


def measure_all(run: Run, which: list[str], names: list[str], seconds: float) -> None:
    """Rows of every case of these lists, as far as the time goes."""
    ends = time.monotonic() + seconds
    wanted = list(dict.fromkeys(case for name in which for case in cases(name)))
    ahead(kernels(wanted, names, this_machine()), this_machine())
    kinds = [name.removeprefix("flashinfer-") for name in names if name in flashinfer.IMPLEMENTATIONS]
    for failed in flashinfer.prepare(wanted, kinds):
        print("not compiled:", failed, flush=True)
    print(f"{len(wanted)} cases; prepared, {ends - time.monotonic():.0f} s left", flush=True)
    floor = Floor()
    for case in in_time(wanted, ends):
        (least, most), rows = measure(floor, case, names)
        if most > DISTURBED * least:  # something else had the memory meanwhile: once more
            (least, most), rows = measure(floor, case, names)
        run.add(case.fields(), "floor", us=least, bytes=case.bytes)
        for name, measures in rows:
            run.add(case.fields(), name, **measures)
        shown = " ".join(_shown(name, measures) for name, measures in rows)
        print(case.fields(), f"floor {least:.2f}", shown, "" if most < DISTURBED * least else "DISTURBED", flush=True)


Measures = dict[str, Any]


def measure(floor: Floor, case: Case, names: list[str]) -> tuple[tuple[float, float], list[tuple[str, Measures]]]:
    """The floor before and after, the lesser first; and the measures of every implementation in between."""
    import torch

    readable = min(case.bytes, int(2.9e9))
    before = floor.us(readable)
    inputs = Inputs(case)
    rows: list[tuple[str, Measures]] = []
    for name in names:
        try:
            us, error = IMPLEMENTATIONS[name](inputs)
            rows.append((name, dict(us=us, bytes=case.bytes, error=error)))
        except (Refused, ValueError, RuntimeError, AssertionError) as refused:
            why = (str(refused).splitlines() or [type(refused).__name__])[0]
            rows.append((name, dict(why=re.sub(PLACE, "", why).strip())))
    after = floor.us(readable)
    del inputs
    torch.cuda.empty_cache()
    return (min(before, after), max(before, after)), rows


def _shown(name: str, measures: Measures) -> str:
    if "why" in measures:
        return f"({name})"
    error = measures.get("error", 0.0)
    return f"{name} {measures['us']:.2f}" + ("" if error < EXACT else f" ERROR {error:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="show a run, measure nothing")
    parser.add_argument("--run", help="the run to report (default: the last)")
    parser.add_argument("--cases", default=",".join(LISTS), help="names of case lists (default: %(default)s)")
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS), help="which to time")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no case after so long")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw shares of the floor by context")
    arguments = parser.parse_args()
    if unknown := set(arguments.implementations.split(",")) - IMPLEMENTATIONS.keys():
        parser.error(f"--implementations: {', '.join(sorted(unknown))}: there are {', '.join(IMPLEMENTATIONS)}")
    if arguments.report:
        rows = load("decode_attention", arguments.run)
    else:
        import torch

        with Run("decode_attention", torch.cuda.get_device_name(), at_once=True) as run:
            measure_all(run, arguments.cases.split(","), arguments.implementations.split(","), arguments.seconds)
        rows = run.rows
    print(as_json(rows) if arguments.json else report(rows))
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    in_a_sentence(main)
