"""What docs/performance.md says of prefill: of every case the newest run that has it beside a peer."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.documents import prefill as document

PROMPT = {"n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "tokens": 512, "dtype": "bf16"}
CHUNK = {**PROMPT, "keys": 32768}


def row(case: dict[str, Any], impl: str, us: float, commit: str, **more: Any) -> dict[str, Any]:
    return {"case": case, "impl": impl, "us": us, "tflops": 1000 / us, "commit": commit, "run": commit, **more}


RUNS = {
    "old": [
        *(row(CHUNK, impl, us, "old") for impl, us in (("ptxgen", 9.0), ("sdpa-cudnn, no mask", 8.0))),
        *(row(PROMPT, impl, us, "old") for impl, us in (("ptxgen", 10.0), ("sdpa-cudnn", 14.0), ("flashinfer", 12.0))),
    ],
    "interrupted": [
        row(CHUNK, impl, us, "cut", partial=True) for impl, us in (("ptxgen", 5.0), ("sdpa-cudnn, no mask", 8.0))
    ],
    "alone": [row(PROMPT, "ptxgen", 4.0, "alone"), row(PROMPT, "ptxgen-sm_80", 8.0, "alone")],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "runs", lambda bench: RUNS)


def test_the_newest_run_beside_a_peer_counts() -> None:
    """That of prompts is the old one: the newest has no peer. The order is the benchmark's."""
    found = [(impls["ptxgen"]["case"], impls["ptxgen"]["commit"]) for impls in document.newest()]
    assert found == [(PROMPT, "old"), (CHUNK, "cut")]


def test_a_line_says_its_commit() -> None:
    text = "\n".join(document.prefill())
    assert "| 32/8/128 | 512 | 100 | 71 | 83 | old |" in text
    assert "| 32/8/128 | 512 | keys 32768 | 200 | 125 | cut |" in text
    assert "cuDNN (torch) 1.40, least 1.40; FlashInfer 1.20, least 1.20." in text


def test_runs_beside_fewer_peers_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer run without FlashInfer would leave out the best peer."""
    times = (("ptxgen", 10.0), ("sdpa-flash", 20.0), ("sdpa-cudnn", 14.0), ("flashinfer", 12.0))
    whole = [row(PROMPT, impl, us, "whole") for impl, us in times]
    newer = [row(PROMPT, impl, us, "newer") for impl, us in times[:-1]]
    monkeypatch.setattr(document, "runs", lambda bench: {"whole": whole, "newer": newer})
    assert [impls["ptxgen"]["commit"] for impls in document.newest(peers=3)] == ["whole"]
    (beside,) = document.newest()
    assert {name: each["commit"] for name, each in beside.items()} == {
        "ptxgen": "newer", "sdpa-flash": "newer", "sdpa-cudnn": "newer", "flashinfer": "whole",
    }  # fmt: skip
    assert "| 32/8/128 | 512 | 100 | 50 | 71 | 83 * | newer |" in "\n".join(document.prefill())
