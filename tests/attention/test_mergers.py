"""Splits merged by the last CTAs to start (`mergers`): the late ticket's bytes in every mode and order, workspaces left
as they were, and that the executor tells where such a CTA does not wait.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ptxgen.assembler import assemble
from ptxgen.generator import generate
from ptxgen.kernels import IncrementalAttention
from ptxgen.kernels.flash_decoding_chunk import FlashDecodingChunk
from ptxgen.launch import Param, evaluate
from ptxgen.runtime import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import bind_example, trial
from ptxgen.targets import target as parse_target
from ptxgen.tuning import Choice, fixed, using
from tests.support import sweep
from tests.support.marks import needs_assembler
from tests.tools.mutations import SpecSubject, deletions

SEEDS = range(6)
ORDERS = sweep.some(SEEDS, 2)  # where each has to give the same
# Ways to share a unit out: the target, CTAs of a cluster, CTAs of the grid, stages of bulk copies.
SHARED = {"splits": ("sm_80", 1, 24, 0), "splits, sm_90": ("sm_90", 1, 24, 0), "more splits than are read at once":
          ("sm_80", 1, 80, 0), "clusters of 2": ("sm_90", 2, 24, 0), "clusters of 4": ("sm_90", 4, 24, 0),
          "bulk copies": ("sm_90", 2, 24, 2)}  # fmt: skip
FIELDS: dict[str, dict[str, Any]] = {
    "f16": {}, "e4m3": {"kv_dtype": "e4m3"}, "s8": {"kv_dtype": "s8"}, "f32": {"kv_dtype": "f32", "q_dtype": "f32"},
    "window": {"window": 633}, "options": {"alibi": True, "sinks": True, "soft_cap": 3.0},
    "part of a group": {"n_heads": 24, "n_kv_heads": 1, "head_dim": 64}, "batch": {"batched": True},
    "invariant": {"batched": True, "batch_invariant": True}, "window, batch": {"batched": True, "window": 1000},
    "pages": {"batched": True, "page_size": 16}, "programmatic": {"programmatic": True},
    "programmatic, batch": {"programmatic": True, "batched": True, "kv_dtype": "s8"},
}  # fmt: skip
LONGEST, LENGTHS = 1504, (1504, 0, 1, 300, 64, 1499)


def choice(shared: str, mergers: int = 1) -> Choice:
    _, cluster, grid, stages = SHARED[shared]
    return Choice(2, cluster, grid, 1, split_positions=64, stages=stages, mergers=mergers)


def spec(**fields: Any) -> IncrementalAttention:
    plain = {"max_len": LONGEST, "head_dim": 16, "n_heads": 4, "n_kv_heads": 2, "q_dtype": "f16", "kv_dtype": "f16"}
    return IncrementalAttention(**{**plain, "lse": True, **fields})


def given(one: IncrementalAttention) -> tuple[dict[str, Any], dict[str, int]]:
    """Arguments, and the sizes of a batch."""
    if not one.batched:
        return one.example(np.random.default_rng(5)), {}
    sizes = {"batch": len(LENGTHS)} | ({"pages": len(LENGTHS) * 94} if one.page_size else {})
    values = one.example(np.random.default_rng(5), **sizes)
    values["seq_lens"] = np.array(LENGTHS, np.int32)
    if one.page_size:
        pages = np.random.default_rng(6).permutation(sizes["pages"])
        values["page_table"] = pages.astype(np.int32).reshape(len(LENGTHS), -1)
    return values, sizes


def results(device: Device, one: IncrementalAttention, target: str) -> bytes:
    """The bytes of what it writes, once these are what its reference says, twice."""
    arguments, sizes = given(one)
    outputs = trial(one, device, target=target, arguments=arguments, **sizes).require().outputs
    return b"".join(outputs[name].tobytes() for name in ("out", "lse"))


@pytest.fixture
def executor() -> Iterator[Callable[..., CpuDevice]]:
    """Opens CPU executors that end with the test: their kernels, of which there are thousands here, go with them."""
    opened: list[CpuDevice] = []

    def one_more(*options: Any, **named: Any) -> CpuDevice:
        opened.append(CpuDevice(*options, **named))
        return opened[-1]

    yield one_more
    for each in opened:
        each.close()


@pytest.fixture
def own(device: Device, executor: Callable[..., CpuDevice]) -> Device:
    """The GPU, or a CPU executor of the test's own."""
    return executor() if device.kind == "cpu" else device


def zeros(param: Param, sizes: dict[str, int]) -> np.ndarray:
    """A buffer of a parameter's shape."""
    return np.zeros([evaluate(extent, sizes) for extent in param.shape], param.dtype.numpy)


def cases(every: int) -> list[Any]:
    """Ways to share and fields, each with some of the others: one of `every` pairs; in a sweep all."""
    return [
        pytest.param(shared, fields, id=f"{shared}: {fields}")
        for i, (shared, (target, *_)) in enumerate(SHARED.items())
        for j, fields in enumerate(FIELDS)
        if target == "sm_90" or "programmatic" not in fields
        if sweep.ALL or (i + j) % every == 0
    ]


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "fields"), cases(4))
def test_who_merges_does_not_change_the_bytes(own: Device, shared: str, fields: str) -> None:
    """On a GPU CTAs start in an order of their own each time: several launches."""
    one, target = spec(**FIELDS[fields]), SHARED[shared][0]
    found = set()
    for mergers in sweep.some((0, 1, 2, 4, 8, 16), 4):
        with using(fixed(choice(shared, mergers))):
            plan = one.plan(parse_target(target))
            most = 1 << (plan.most_splits.bit_length() - 1)
            assert (plan.mergers, plan.cluster) == (min(mergers, most), SHARED[shared][1])
            assert plan.most_splits > 2
            found |= {results(own, one, target) for _ in range(1 if own.kind == "cpu" else 4)}
    assert len(found) == 1


@pytest.mark.parametrize("mergers", [1, 4] if sweep.ALL else [4])
@pytest.mark.parametrize(("shared", "fields"), cases(4))
def test_in_every_mode_and_order_of_ctas(
    shared: str, fields: str, mergers: int, executor: Callable[..., CpuDevice]
) -> None:
    one, target = spec(**FIELDS[fields]), SHARED[shared][0]
    devices = [executor(mode, threads=threads) for mode in ("fast", "check") for threads in (1, 4)]
    devices += [executor("random", seed, threads=1 + seed % 3) for seed in ORDERS]
    with using(fixed(choice(shared, mergers))):
        assert len({results(device, one, target) for device in devices}) == 1


@pytest.mark.parametrize(
    ("shared", "mergers"),
    [(shared, n) for i, shared in enumerate(SHARED) for n in ((1, 2, 16) if sweep.ALL else ((1, 2, 16)[i % 3],))],
)
def test_launches_leave_the_workspaces_as_they_were(
    own: Device, shared: str, mergers: int, executor: Callable[..., CpuDevice]
) -> None:
    """Zeros, whatever the lengths: the next launch, of other lengths, finds its counters and records at the start."""
    on_cpu = own.kind == "cpu"
    checked = (
        [executor("check", threads=1), *(executor("random", seed, threads=2) for seed in ORDERS)] if on_cpu else []
    )
    one, target = spec(batched=True), SHARED[shared][0]
    values, sizes = given(one)
    rng = np.random.default_rng(8)
    for on in (own, *checked):
        with using(fixed(choice(shared, mergers))):
            kernel = on.load(one, target)
        spaces = {p.name: zeros(p, sizes) for p in kernel.params if p.access == "workspace"}
        assert set(spaces) == {"records", "tickets"}
        launch, bound = bind_example(kernel, values | spaces, sizes)
        for lengths in (LENGTHS, (0,) * 6, (LONGEST,) * 6, *rng.integers(0, LONGEST, (4, 6), endpoint=True)):
            values["seq_lens"] = np.array(lengths, np.int32)
            bound["seq_lens"].copy_from(values["seq_lens"])
            launch.launch()
            on.synchronize()
            wanted = one.reference(**values)["out"].astype(np.float32)
            np.testing.assert_allclose(bound["out"].numpy().astype(np.float32), wanted, atol=3e-3)
            assert not bound["tickets"].numpy().any()
            assert not bound["records"].numpy().any()


@pytest.mark.parametrize("mergers", [1, 4])
def test_a_unit_that_one_cta_takes_draws_no_ticket(mergers: int) -> None:
    """Short lengths: one split has work, and no CTA waits."""
    one = spec(batched=True)
    values, sizes = given(one)
    values["seq_lens"] = np.array([1, 16, 32, 0, 31, 2], np.int32)
    with using(fixed(choice("splits", mergers))):
        kernel = CpuDevice("check").load(one, "sm_80")
    tickets = next(p for p in kernel.params if p.name == "tickets")
    launch, bound = bind_example(kernel, values | {"tickets": zeros(tickets, sizes) + np.uint32(77)}, sizes)
    launch.launch()
    assert (bound["tickets"].numpy() == 77).all()


# -- what the executor tells -------------------------------------------------------------------------------------------


def subject(shared: str, mergers: int = 1, **fields: Any) -> SpecSubject:
    """One with a text of the early ticket, which is made here and now."""
    made = SpecSubject(spec(**fields), parse_target(SHARED[shared][0]))
    with using(fixed(choice(shared, mergers))):
        assert "%ticket_drawn" in made.ptx.text
    return made


@pytest.mark.parametrize("mergers", [1, 4])
@pytest.mark.parametrize(
    ("shared", "fields"), [("splits", {}), ("clusters of 2", {}), ("clusters of 2", {"programmatic": True})], ids=str
)
def test_every_barrier_wait_and_fence_matters(shared: str, fields: dict[str, Any], mergers: int) -> None:
    """The late ticket has a barrier without which nothing changes; here there is none."""
    sound = subject(shared, mergers, **fields)
    assert sound.noticed(sound.ptx.text) is None
    faults = list(deletions(sound.ptx.text))
    assert len([fault for fault in faults if fault.kind == "barrier" and "bar.sync" in fault.what]) == 1
    assert [str(fault) for fault in sweep.drawn(faults) if not sound.noticed(fault.text)] == []


@pytest.mark.parametrize("mergers", [1, 4])
@pytest.mark.parametrize("shared", SHARED)
def test_a_merge_that_does_not_wait_is_noticed(shared: str, mergers: int) -> None:
    sound = subject(shared, mergers)
    text = sound.ptx.text.replace("@!%records_there bra $records_wait;", "")
    assert text != sound.ptx.text
    assert any(sound.outcome(text, "random", seed) for seed in SEEDS)


# Ahead of the question whether all CTAs of a unit have started: wait until they have, or the counter is back at zero.
ALL_START = """
$all_start:
    ld.relaxed.gpu.global.b32 %ticket_now, [%ticket_place];
    and.b32 %ticket_now, %ticket_now, 0xFFFF;
    setp.lt.u32 %ticket_used, %ticket_now, %active;
    setp.ne.and.u32 %ticket_used, %ticket_now, 0, %ticket_used;
    @%ticket_used bra $all_start;
"""


@pytest.mark.parametrize("shared", ["splits", "clusters of 2"])
def test_a_part_is_merged_by_its_cta_or_by_the_last_to_start(shared: str) -> None:
    """The former where all start before any asks, the latter where each CTA ends before the next begins."""
    sound = subject(shared, 4)
    asks, told = "    mov.b32 %ticket_asked, %ticket_drawn;", "    st.shared.u32 [ticket_told], %part_mask;"
    marks = "    or.b32 %part_mask, %part_mask, %ticket_marks;"
    assert [sound.ptx.text.count(line) for line in (asks, told, marks)] == [1, 1, 1]
    at_once = sound.ptx.text.replace(asks, ALL_START + asks)
    nobody_asks = (told, f"    @%ticket_asks mov.u32 %part_mask, 0;\n{told}")
    no_marks = (marks, "")
    for seed in ORDERS:
        assert not sound.outcome(at_once, "random", seed)
        assert not sound.outcome(at_once.replace(*no_marks), "random", seed)
        assert sound.outcome(at_once.replace(*nobody_asks), "random", seed)
    assert not sound.outcome(sound.ptx.text.replace(*nobody_asks), "check")
    assert sound.outcome(sound.ptx.text.replace(*no_marks), "check")


@pytest.mark.parametrize("mergers", [1, 4])
def test_a_ticket_ahead_of_the_wait_for_the_kernel_ahead_is_noticed(
    mergers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two launches of a chain have one workspace."""
    monkeypatch.setattr(IncrementalAttention, "early", (*IncrementalAttention.early, "q"))  # which is read before it
    sound = subject("clusters of 2", mergers, programmatic=True)
    lines = sound.ptx.text.split("\n")
    wait = next(line for line in lines if "griddepcontrol.wait" in line)
    lines.remove(wait)
    drawn = next(number for number, line in enumerate(lines) if "atom.relaxed" in line)
    assert "ticket" in lines[drawn]
    late = "\n".join([*lines[: drawn + 1], wait, *lines[drawn + 1 :]])
    noticed = sound.outcome(late, "check")
    assert noticed is not None
    assert re.search(r"may still write.*\n.*atom", noticed.said)


# -- geometry and code -------------------------------------------------------------------------------------------------


def test_more_splits_than_the_counter_has_room_for_have_one_merger() -> None:
    one = IncrementalAttention(1 << 23, 16, 4, 2, batched=True)
    for positions, mergers in ((64, 1), (256, 8)):
        with using(fixed(Choice(4, 1, 132, 1, split_positions=positions, mergers=8))):
            plan = one.plan(parse_target("sm_80"))
        assert (plan.most_splits, plan.mergers) == ((1 << 23) // positions, mergers)


def test_a_kernel_without_splits_has_no_ticket() -> None:
    with using(fixed(choice("splits"))):
        early = spec(max_len=30)
        assert early.plan(parse_target("sm_80")).mergers == 0
        text = generate(early, "sm_80").text
        chunk = generate(FlashDecodingChunk(LONGEST, 16, 4, 2), "sm_80").text
    assert "ticket" not in text
    assert "ticket" not in chunk


@needs_assembler
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"])
def test_assembles_without_spills(target: str) -> None:
    """The ticket is some registers more, held through the main loop."""
    shapes = (
        {"n_heads": 32, "n_kv_heads": 8, "head_dim": 128}, {"n_heads": 9, "n_kv_heads": 1, "head_dim": 256},
        {"n_heads": 32, "n_kv_heads": 32, "head_dim": 80, "kv_dtype": "s8", "batched": True},
        {"n_heads": 16, "n_kv_heads": 1, "head_dim": 512, "kv_dtype": "e4m3", "window": 4096},
        {"n_heads": 8, "n_kv_heads": 2, "head_dim": 64, "kv_dtype": "f32", "q_dtype": "f32"},
    )  # fmt: skip
    every = itertools.product(shapes, (4, 8, 16), (1, 8))
    for fields, warps, mergers in sweep.some(every, 6):
        one = spec(max_len=65536, **fields)
        with using(fixed(Choice(warps, 2, 264, 2, 4096, mergers=mergers))):
            assert one.plan(parse_target(target)).mergers > 0
            ptx = generate(one, target)
        resources = assemble(ptx.text, target).resources[ptx.entry]
        assert resources.clean, (one, resources)
