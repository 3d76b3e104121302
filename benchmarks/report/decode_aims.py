"""Where decode attention stands beside its aims, in sentences made of one run's rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from benchmarks.cases.decode import Case
from benchmarks.report.decode import Times, label, mean, over_floor, over_peers, ratios

Cases = Mapping[Case, Times]

LARGE = 134e6  # bytes of a cache that takes long enough to read that the fixed part of a launch counts little
OVER_PEERS, OVER_READ, LARGE_OVER_READ = 1.45, 1.15, 1.1


def aims(grid: Cases, every: Cases) -> Iterator[str]:
    """The aims and what misses them in the grid; the fixed part of a launch; programmatic launches and the sm_80 text
    in `every` case of the run."""
    peer = list(ratios(grid, over_peers("ptxgen")).values())
    if peer:
        yield (
            f"Aims: {OVER_PEERS} times the best peer as a geometric mean (here {mean(peer):.2f}), and no case below 1 "
            f"(here {sum(r < 1 for r in peer)}); ours ÷ read at most {OVER_READ}, and {LARGE_OVER_READ} from 134 MB on."
        )
    over = ratios(grid, over_floor("ptxgen"))
    small = {case: r for case, r in over.items() if case.bytes < LARGE and r > OVER_READ}
    large = {case: r for case, r in over.items() if case.bytes >= LARGE and r > LARGE_OVER_READ}
    yield f"Over {OVER_READ} below 134 MB: {_listed(small)}. Over {LARGE_OVER_READ} from there on: {_listed(large)}."
    fixed = [times["ptxgen"] - times["floor"] for case, times in grid.items() if case.bytes < LARGE]
    yield f"Below 134 MB ours takes {min(fixed):.1f} to {max(fixed):.1f} µs more than the read."
    chain = {
        case: times["ptxgen-programmatic"] / times["ptxgen"]
        for case, times in every.items()
        if times.get("ptxgen-programmatic", 0.0) > times.get("ptxgen", 0.0) > 0
    }
    yield f"Slower in a programmatic chain than by plain launches (times as long): {_listed(chain)}."
    old = [times["ptxgen-sm_80"] / times["ptxgen"] for times in grid.values() if "ptxgen-sm_80" in times]
    if old:
        yield f"Over the grid the sm_80 text takes {mean(old):.2f} times as long as sm_90's (at most {max(old):.2f})."
    yield ""


def _listed(found: Mapping[Case, float]) -> str:
    words: Iterable[str] = (f"{label(case)} ({ratio:.3f})" for case, ratio in found.items())
    return ", ".join(words) or "none"
