"""Tiles of a KV cache that bulk copies bring to shared memory ahead of their use (`Choice.stages`)."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen import generate
from ptxgen.assembler import assemble, available_assemblers
from ptxgen.runtime import Device
from ptxgen.targets import target as parse_target
from ptxgen.tuning import Choice, fixed, using
from tests.support.attention.decode_trials import attend, spec

STAGED: dict[str, Choice] = {
    "one CTA": Choice(4, 1, 1, 1, 4096, stages=2), "a cluster": Choice(2, 4, 8, 1, 4096, stages=3),
    "splits": Choice(2, 1, 12, 1, 256, stages=4), "splits of clusters": Choice(2, 2, 12, 1, 256, stages=2),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize(
    "fields",
    [
        {}, {"indirect": True}, {"batched": True}, {"programmatic": True}, {"window": 100}, {"head_dim": 80},
        {"head_dim": 256, "n_heads": 32}, {"head_dim": 128, "n_heads": 48}, {"kv_dtype": "e4m3"},
        {"kv_dtype": "bf16", "alibi": True, "soft_cap": 3.0},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)  # fmt: skip
def test_staged_tiles(device: Device, name: str, fields: dict[str, Any]) -> None:
    with using(fixed(STAGED[name])):
        assert spec(max_len=512, **fields).plan(parse_target("sm_90")).shape.stages > 0
        for length in (0, 1, 16, 17, 250, 511, 512):
            given = [length, max(length - 60, 0)] if fields.get("batched") else length
            attend(device, "sm_90", given, max_len=512, lse=True, **fields)


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("sm_80", {}), ("sm_90", {"max_len": 500}), ("sm_90", {"batched": True, "page_size": 16}),
        ("sm_90", {"kv_dtype": "s8"}),
    ],
)  # fmt: skip
def test_stages_are_for_whole_contiguous_tiles(target: str, fields: dict[str, Any]) -> None:
    with using(fixed(STAGED["one CTA"])):
        assert spec(**{"max_len": 512, **fields}).plan(parse_target(target)).shape.stages == 0


def test_stages_fit() -> None:
    """However many are asked for: no more than fit beside the merges, no more than a warp has tiles."""
    for head_dim in (8, 80, 128, 512):
        for warps in (1, 4, 8):
            with using(fixed(Choice(warps, 8, 8, 1, 4096, stages=64))):
                ptx = generate(spec(max_len=4096, head_dim=head_dim, n_kv_heads=1, n_heads=16), "sm_90")
                assert ptx.launch.shared > 64 * 1024 or head_dim == 8
                if available_assemblers():
                    assert assemble(ptx.text, "sm_90").resources[ptx.entry].spill_stores == 0


@pytest.mark.parametrize(
    ("head_dim", "group", "warps", "stages", "heads"),
    [
        (128, 24, 6, 0, 12),  # in registers: two head tiles a warp
        (128, 24, 6, 2, 24),  # tiles in shared memory leave registers for three
        (128, 24, 8, 2, 12),  # no room for two stages beside the partials of 24 heads
        (256, 16, 4, 2, 16),
        (64, 32, 8, 2, 32),
    ],
)
def test_stages_let_a_warp_carry_more_heads(head_dim: int, group: int, warps: int, stages: int, heads: int) -> None:
    fields = {"max_len": 4096, "head_dim": head_dim, "n_kv_heads": 1, "n_heads": group}
    with using(fixed(Choice(warps, 1, 128, 1, 4096, stages=stages))):
        plan = spec(**fields).plan(parse_target("sm_90"))
        assert (plan.shape.heads, plan.parts, plan.shape.stages) == (heads, group // heads, stages)
        if available_assemblers():
            ptx = generate(spec(**fields), "sm_90")
            assert assemble(ptx.text, "sm_90").resources[ptx.entry].spill_stores == 0
