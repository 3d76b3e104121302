"""The benchmark of shapes that no table was made with: its cases are legal, its table begins with the worst."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.cases import prefill, unseen
from benchmarks.packed_products import SHAPES, TARGET, specs
from benchmarks.unseen import table
from ptxgen.kernel import supports
from ptxgen.kernels import MultiHeadAttention
from tests.support.sweep import drawn


def test_every_attention_is_supported() -> None:
    every = list(unseen.attention())
    assert len({str(case) for case in every}) == len(every)
    for case in every:
        more = {"batched": True, "max_len": max(case["lengths"])} if "lengths" in case else {"layout": "heads"}
        heads = {name: case[name] for name in ("n_heads", "n_kv_heads", "head_dim")}
        kind = case["dtype"]
        assert supports(MultiHeadAttention(**heads, q_dtype=kind, kv_dtype=kind, **more), TARGET), case


def test_every_product_has_a_tile() -> None:
    every = list(unseen.products())
    assert len({tuple(case.values()) for case in every}) == len(every)
    for case in drawn(every):
        assert all(supports(spec, TARGET) for spec in specs(case, "programmatic").values()), case


def test_no_case_is_one_that_tables_were_made_with() -> None:
    assert not set(SHAPES) & set(unseen.MATRICES)
    assert not set(prefill.SHAPES) & set(unseen.HEADS)


def test_the_worst_comes_first() -> None:
    def rows(n: int, **us: float) -> list[dict[str, Any]]:
        case = {"m": 512, "n": n, "k": 32, "weights": "bf16"}
        return [{"case": case, "impl": impl, "us": value, "tflops": 1.0} for impl, value in us.items()]

    every = itertools.chain(rows(64, programmatic=10.0, cublas=20.0), rows(128, programmatic=10.0, cublas=8.0))
    shown = table([*every, *rows(128, floor=1.0)]).splitlines()
    assert shown[2] == "| m 512, n 128, k 32, weights bf16 | 0.800 | 10.0 | cublas 8.0 | 1 |"
    assert shown[-1] == "2 cases: 1.265 in the mean, least 0.800"
