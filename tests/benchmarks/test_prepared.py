"""Kernels that other processes make ahead are those that this one would make."""

from __future__ import annotations

import time

import pytest

from benchmarks.cases.decode import Case
from benchmarks.peers.decode import OURS, kernels
from benchmarks.timing import prepared
from ptxgen.errors import SpecError
from ptxgen.generator import generate
from ptxgen.kernels import ArgMax, IncrementalAttention, KvCacheScatter


def test_what_was_begun_ahead_is_what_would_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no ptxas: texts alone
    monkeypatch.setattr(prepared.os, "cpu_count", lambda: 2)
    begun, later = ArgMax(32000), ArgMax(64)
    wrong = KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2)
    prepared.ahead([(begun, "sm_80"), (wrong, "sm_70")], "sm_90")
    prepared.wait(time.monotonic())  # no longer
    prepared.wait(time.monotonic() + 60)
    assert all(prepared._COMING[spec, target, "sm_90"].ready() for spec, target in ((begun, "sm_80"), (wrong, "sm_70")))
    assert prepared.kernel(begun, "sm_80", "sm_90") == (generate(begun, "sm_80"), b"")
    assert prepared.kernel(later, "sm_90") == (generate(later, "sm_90"), b"")
    with pytest.raises(SpecError, match="must be sm_75 or later"):
        prepared.kernel(wrong, "sm_70", "sm_90")


def test_kernels_of_a_case_are_those_of_every_implementation_of_ours() -> None:
    case = Case(32, 8, 128, 1, 4096)
    found = list(kernels([case], [*OURS, "sdpa-cudnn"], "sm_90"))
    assert [target for _, target in found] == ["sm_90", "sm_90", "sm_80", "sm_90"]
    specs = [spec for spec, _ in found if isinstance(spec, IncrementalAttention)]
    assert [spec.batched for spec in specs] == [False, False, False, True]
    assert [spec.programmatic for spec in specs] == [False, True, False, False]
