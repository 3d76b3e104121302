"""Every golden of every kernel type, for each of its targets, in check mode: no finding, and what its reference says.

Outputs and workspaces hold NaN (or what no result has) before each launch, and whatever lies past a length too (R-d2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.dtypes import dtype
from ptxgen.examples import poison
from ptxgen.golden import Case, Goldens
from ptxgen.kernel import KernelType, kernel_types
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.trial import trial

CASES = {case.file: case for case in Goldens(Path(__file__).resolve().parent.parent / "golden_ptx").cases()}
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def checked() -> CpuDevice:
    return CpuDevice(mode="check")


def test_every_kernel_type_has_goldens_on_each_of_its_targets() -> None:
    there = {(case.spec.kernel_name, case.target.name) for case in CASES.values()}
    assert there == {(name, where) for name, cls in kernel_types().items() for where in cls.golden_targets}


@pytest.mark.parametrize("file", CASES)
def test_golden_runs_without_a_finding_and_matches_its_reference_twice(file: str, checked: CpuDevice) -> None:
    case = CASES[file]
    trial(case.spec, checked, target=case.target, seed=7).require()


# what lies past a length ------------------------------------------------------------------------------------------
def _caches(spec: KernelType, a: Arrays) -> Iterator[np.ndarray]:
    for cache in (a["k_cache"], a["v_cache"]):
        yield cache[:, a["seq_len"] :]


def _lists(spec: KernelType, a: Arrays) -> Iterator[np.ndarray]:
    for name, caches in a.items():
        if isinstance(caches, list):
            yield from (cache[:, max(0, length) :] for cache, length in zip(caches, a["seq_lens"], strict=True))


def _prompts(spec: Any, a: Arrays) -> Iterator[np.ndarray]:
    keys = [a[name] for name in ("k", "v", "k_scales", "v_scales") if name in a]
    if spec.batched:
        yield a["q"][a["q_starts"][-1] :]
        yield from (x[n, :, length:] for x in keys for n, length in enumerate(a["kv_lens"]))
        return
    q_len, kv_len = (int(np.ravel(a[name])[0]) for name in ("q_len", "kv_len"))
    by_head = spec.layout == "heads"
    yield a["q"][:, q_len:] if by_head else a["q"][q_len:]
    yield from (x[:, kv_len:] if by_head or spec.max_len else x[kv_len:] for x in keys)


def _rows_of_slot(spec: Any, a: Arrays) -> Iterator[np.ndarray]:
    length = int(np.ravel(a["seq_len"])[0])
    for name in [n for n in a if n.endswith("_single")]:
        single, batched = a[name], a[name.replace("single", "batched")]
        yield single[:, length:] if spec.direction == "to_slot" else batched[:, :, length:]


TAILS: dict[str, tuple[dict[str, int], Callable[[Any, Arrays], Iterator[np.ndarray]]]] = {
    "incremental_attention": ({"seq_len": 37}, _caches),
    "flash_decoding_chunk": ({"seq_len": 19}, _lists),
    "multi_head_attention": ({"q_len": 21, "kv_len": 27}, _prompts),
    "kv_cache_gather": ({"slot": 1, "seq_len": 23}, _rows_of_slot),
}
WITH_TAILS = {file: case for file, case in CASES.items() if case.spec.kernel_name in TAILS}


def _arguments(case: Case, fill: Callable[[tuple[int, ...], Any], np.ndarray]) -> Arrays:
    """An example whose elements past every length come from `fill`."""
    sizes, tails = TAILS[case.spec.kernel_name]
    values = case.spec.example(np.random.default_rng(7), **sizes)
    found = 0
    for tail in tails(case.spec, values):
        tail[...] = fill(tail.shape, dtype(tail.dtype))
        found += tail.size
    assert found, "the example leaves nothing past its lengths"
    return values


@pytest.mark.parametrize("file", WITH_TAILS)
def test_what_lies_past_a_length_does_not_matter(file: str, checked: CpuDevice) -> None:
    case = WITH_TAILS[file]
    sizes = TAILS[case.spec.kernel_name][0]

    def run(fill: Callable[[tuple[int, ...], Any], np.ndarray]) -> dict[str, np.ndarray]:
        values = _arguments(case, fill)
        return dict(trial(case.spec, checked, target=case.target, arguments=values, repeat=False, **sizes).require().outputs)

    clean, spoiled = run(lambda shape, kind: np.zeros(shape, kind.numpy)), run(poison)
    for name, want in clean.items():
        if case.spec.kernel_name != "kv_cache_gather":  # its caches keep what lies past the length
            assert spoiled[name].tobytes() == want.tobytes(), name
