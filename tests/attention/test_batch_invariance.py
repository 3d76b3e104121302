"""Batch invariance: with the option a sequence's bytes are the same in every batch; without it they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import bind_example, trial
from ptxgen.targets import target as parse_target

HEADS, GROUP, DIM, LONGEST = 2, 4, 16, 3000
# Lengths of the sequences that are followed from batch to batch: of several splits, of two, of one, of none.
FOLLOWED = (LONGEST, 2049, 1024, 513, 512, 37, 0)


def spec(**fields: Any) -> IncrementalAttention:
    plain = dict(max_len=LONGEST, head_dim=DIM, n_heads=HEADS * GROUP, n_kv_heads=HEADS, q_dtype="f32", kv_dtype="f16")
    return IncrementalAttention(**{**plain, "batched": True, "batch_invariant": True, "lse": True, **fields})


def arguments(followed: dict[int, int], batch: int, rng: np.random.Generator) -> dict[str, Any]:
    """A batch of random neighbours, with sequence number `followed[place]` at each of these places."""
    out: dict[str, Any] = {
        "q": rng.standard_normal((batch, HEADS * GROUP, DIM)).astype(np.float32),
        "k_cache": rng.standard_normal((batch, HEADS, LONGEST, DIM)).astype(np.float16),
        "v_cache": rng.standard_normal((batch, HEADS, LONGEST, DIM)).astype(np.float16),
        "seq_lens": rng.integers(0, LONGEST, batch, np.int32, endpoint=True),
    }
    for place, number in followed.items():
        own = np.random.default_rng(number)
        out["q"][place] = own.standard_normal((HEADS * GROUP, DIM))
        for name in ("k_cache", "v_cache"):
            out[name][place] = own.standard_normal((HEADS, LONGEST, DIM))
        out["seq_lens"][place] = FOLLOWED[number]
    return out


def results(device: Device, one: IncrementalAttention, target: str, batch: int) -> dict[int, bytes]:
    """The bytes of every followed sequence that has a place in a batch of that size."""
    rng = np.random.default_rng(batch)
    places = rng.permutation(batch)[: len(FOLLOWED)]
    followed = {int(place): number for number, place in enumerate(places)}
    launch, bound = bind_example(device.load(one, target), {
        **arguments(followed, batch, rng),
        "out": np.full((batch, HEADS * GROUP, DIM), np.nan, np.float32),
        "lse": np.full((batch, HEADS * GROUP), np.nan, np.float32),
    }, {"batch": batch})  # fmt: skip
    launch.launch()
    device.synchronize()
    out, lse = bound["out"].numpy(), bound["lse"].numpy()
    assert np.isfinite(out).all()
    return {number: out[place].tobytes() + lse[place].tobytes() for place, number in followed.items()}


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_a_sequence_has_the_same_bytes_in_every_batch(device: Device, target: str) -> None:
    found: dict[int, set[bytes]] = {}
    for batch in (1, 2, 7, 64):
        for number, data in results(device, spec(), target, batch).items():
            found.setdefault(number, set()).add(data)
    assert sorted(found) == list(range(len(FOLLOWED)))
    assert [number for number, seen in found.items() if len(seen) > 1] == []


def test_without_the_option_a_batch_changes_the_bytes(device: Device) -> None:
    """So the test above can fail, and its sequences are long enough to be split in more than one way."""
    one = spec(batch_invariant=False)
    assert len({results(device, one, "sm_80", batch)[0] for batch in (1, 7, 64)}) > 1


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_more_than_one_split_runs_and_the_grid_knows_no_batch(target: str) -> None:
    one, where = spec(), parse_target(target)
    plan = one.plan(where)
    assert plan.grid == 0
    assert plan.most_splits == plan.splits == -(-LONGEST // (plan.split_tiles * plan.shape.tile)) > 2
    launch = one.launch(where)
    grids = [launch.at({"batch": batch}).grid for batch in (1, 7, 64)]
    assert grids == [(plan.splits * plan.cluster, HEADS, batch) for batch in (1, 7, 64)]


@pytest.mark.parametrize("fields", [{}, {"page_size": 16}, {"window": 1500}, {"kv_dtype": "s8"}], ids=str)
def test_numbers(device: Device, fields: dict[str, Any]) -> None:
    one = spec(**fields)
    given = one.example(np.random.default_rng(3), batch=4, pages=800)
    given["seq_lens"] = np.array([LONGEST, 600, 0, 17], np.int32)
    if one.page_size:
        width = given["page_table"].shape[1]
        given["page_table"] = np.random.default_rng(4).permutation(4 * width).astype(np.int32).reshape(4, width)
        given = one.example(np.random.default_rng(3), batch=4, pages=4 * width) | {
            "page_table": given["page_table"], "seq_lens": given["seq_lens"],
        }  # fmt: skip
        trial(one, device, target="sm_90", arguments=given, batch=4, pages=4 * width).require()
        return
    trial(one, device, target="sm_90", arguments=given, batch=4).require()


def test_one_sequence_has_no_batch_to_depend_on() -> None:
    with pytest.raises(SpecError, match="batch_invariant: needs batched=True"):
        spec(batched=False)
