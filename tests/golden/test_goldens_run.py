"""Every golden of every kernel type, for each of its targets, in check mode: no finding, and what its reference says.

Outputs and workspaces hold NaN (or what no result has) before each launch, and whatever lies past a length too.
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
from ptxgen.kernel import kernel_types
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial

CASES = {case.file: case for case in Goldens(Path(__file__).resolve().parents[2] / "golden_ptx").cases()}
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
Past = Iterator[tuple[np.ndarray, Any]]  # arrays, and where in them


def _cached(a: Arrays) -> list[np.ndarray]:
    return [a[name] for name in ("k_cache", "v_cache", "k_scales", "v_scales") if name in a]


def _caches(spec: Any, a: Arrays) -> Past:
    if not spec.batched:
        length = int(np.ravel(a["seq_len"])[0])
        yield from ((cache, np.s_[:, length:]) for cache in _cached(a))
    elif not spec.page_size:
        for cache in _cached(a):
            yield from ((cache, np.s_[n, :, length:]) for n, length in enumerate(a["seq_lens"]))
    else:
        yield from _pages(spec, _cached(a), a["page_table"], a["seq_lens"])


def _pages(spec: Any, caches: list[np.ndarray], tables: np.ndarray, lengths: np.ndarray) -> Past:
    """The rows of pages that no sequence has a position in."""
    used = np.zeros((caches[0].shape[0], spec.page_size), bool)
    for table, length in zip(tables, lengths, strict=True):
        positions = np.arange(length)
        used[table[positions // spec.page_size], positions % spec.page_size] = True
    pages, rows = np.nonzero(~used)
    yield from ((cache, np.s_[pages, :, rows]) for cache in caches)


def _lists(spec: Any, a: Arrays) -> Past:
    for caches in (value for value in a.values() if isinstance(value, list)):
        for cache, length in zip(caches, a["seq_lens"], strict=True):
            yield cache, np.s_[:, max(0, length) :]


def _prompts(spec: Any, a: Arrays) -> Past:
    keys = [a[name] for name in ("k", "v", "k_scales", "v_scales") if name in a]
    if spec.batched:
        yield a["q"], np.s_[a["q_starts"][-1] :]
        if spec.page_size:
            yield from _pages(spec, keys, a["page_table"], a["kv_lens"])
            return
        yield from ((x, np.s_[n, :, length:]) for x in keys for n, length in enumerate(a["kv_lens"]))
        return
    q_len, kv_len = (int(np.ravel(a[name])[0]) for name in ("q_len", "kv_len"))
    by_head = spec.layout == "heads"
    yield a["q"], np.s_[:, q_len:] if by_head else np.s_[q_len:]
    yield from ((x, np.s_[:, kv_len:] if by_head or spec.max_len else np.s_[kv_len:]) for x in keys)


def _rows_of_slot(spec: Any, a: Arrays) -> Past:
    length = int(np.ravel(a["seq_len"])[0])
    for name in [n for n in a if n.endswith("_single")]:
        if spec.direction == "to_slot":
            yield a[name], np.s_[:, length:]
        else:
            yield a[name.replace("single", "batched")], np.s_[:, :, length:]


TAILS: dict[str, tuple[dict[str, int], Callable[[Any, Arrays], Past]]] = {
    "incremental_attention": ({"seq_len": 19}, _caches),
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
    for array, past in tails(case.spec, values):
        shape = array[past].shape
        array[past] = fill(shape, dtype(array.dtype))
        found += int(np.prod(shape))
    assert found, "the example leaves nothing past its lengths"
    return values


@pytest.mark.parametrize("file", WITH_TAILS)
def test_what_lies_past_a_length_does_not_matter(file: str, checked: CpuDevice) -> None:
    case = WITH_TAILS[file]
    sizes = TAILS[case.spec.kernel_name][0]

    def run(fill: Callable[[tuple[int, ...], Any], np.ndarray]) -> dict[str, np.ndarray]:
        values = _arguments(case, fill)
        made = trial(case.spec, checked, target=case.target, arguments=values, repeat=False, **sizes)
        return dict(made.require().outputs)

    clean, spoiled = run(lambda shape, kind: np.zeros(shape, kind.numpy)), run(poison)
    for name, want in clean.items():
        if case.spec.kernel_name != "kv_cache_gather":  # its caches keep what lies past the length
            assert spoiled[name].tobytes() == want.tobytes(), name
