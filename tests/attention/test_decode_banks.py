"""The partials of decode attention in shared memory: which banks the vectors of a warp touch at once, on the oracle."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ptxgen.generator import generate
from ptxgen.kernels import IncrementalAttention
from ptxgen.launch import evaluate
from tests.evidence.oracle import Oracle
from tests.evidence.oracle.machine import HANDLERS
from tests.golden.test_oracle_goldens import argument

SHAPES = [
    (32, "f16"), (64, "f16"), (96, "f16"), (128, "f16"), (192, "bf16"), (224, "f16"), (32, "s8"), (96, "e4m3"),
    (128, "e4m3"), (256, "s8"),
]  # fmt: skip
QUARTER = 8  # lanes that vectors of 16 bytes are moved for at once: as many as there are banks for


@pytest.mark.parametrize("heads", [3, 6, 8])
@pytest.mark.parametrize(("head_dim", "kv_dtype"), SHAPES)
def test_vectors_of_partials_meet_in_no_bank(head_dim: int, kv_dtype: str, heads: int, monkeypatch) -> None:
    """Of a quarter of a warp, each lane stores to banks of its own, and the lanes of one head's row load from such."""
    q_dtype = "bf16" if kv_dtype == "bf16" else "f16"
    spec = IncrementalAttention(
        max_len=32, head_dim=head_dim, n_heads=heads, n_kv_heads=1, q_dtype=q_dtype, kv_dtype=kv_dtype, indirect=True
    )
    seen: Counter[str] = Counter()

    def watched(name: str):
        handler = HANDLERS[name]

        def handle(machine, op) -> None:
            if {"shared", "v4", "f32"} <= set(op.mods):
                at = machine.at(op.args[0 if name == "st" else 1], "shared")
                check(name, machine.active, at)
            handler(machine, op)

        return handle

    def check(name: str, threads: np.ndarray, at: np.ndarray) -> None:
        for quarter in np.unique(threads // QUARTER):
            places = at[threads // QUARTER == quarter]
            assert len(np.unique(places // 16 % QUARTER)) == len(places), (name, threads[:QUARTER], places)
            seen[name] += 1

    for name in ("st", "ld"):
        monkeypatch.setitem(HANDLERS, name, watched(name))
    ptx, device = generate(spec, "sm_90"), Oracle()
    values = spec.example(np.random.default_rng(0))
    args = [argument(device, p, values.get(p.name), dict(spec.sizes)) for p in ptx.params]
    grid = tuple(evaluate(extent, spec.sizes) for extent in ptx.launch.grid)
    device.module(ptx.text)[ptx.entry].launch(grid, ptx.launch.block, args, ptx.launch.shared, ptx.launch.cluster)
    assert seen["st"] >= heads * head_dim // 4 // QUARTER
    assert seen["ld"] >= heads * head_dim // 4 // QUARTER
