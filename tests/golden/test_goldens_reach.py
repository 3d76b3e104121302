"""The trials of every golden execute all of its instructions, those of loops for rare inputs among them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.runtime.cpu.device import CpuDevice, CpuFunction
from ptxgen.runtime.tools import coverage
from tests.support import sweep
from tests.tools.mutation_figures import unique
from tests.tools.mutations import SpecSubject

SECOND_TILE = "no CTA of a golden has a second tile (tests/products/wgmma/test_faults.py has such shapes)"
SHORT = "k ends before the stages whose tokens are brought early (other goldens have longer k)"
# What no trial executes: by golden and the first instruction of a run of lines, and why.
UNREACHED = {
    r"/incremental_attention/.* mad\.wide\.u32 %values_place, %record_split": "records that were not there at first: "
    "their CTAs end before the one that merges begins to read",
    r"/packed_\w+/.* mbarrier\.try_wait.* %is_empty, \[%empty_bell\]": SHORT,
    r"/packed_gemm/.* bar\.sync %left_empty": SECOND_TILE,
    r"/packed_gemm/n80_.* cvt\.rn\.bf16x2\.f32 %result_word0, ": "all tiles of the golden are of a turn that is shared "
    "(tests/products/wgmma/test_last_split.py has whole ones)",
    r"/packed_\w+/.* bar\.(sync|arrive) 6, ": SECOND_TILE,
    r"/gemv/n3_k16640_.* shfl\.sync\.bfly\.b32 %lane_f32, %sum0": "a warp takes two tiles a turn, "
    "and here its last one is the second",
    r"/persistent_step/.*_hidden48_.* not\.b32 %x_word8": "the other golden's x has more than 2048 values",
}  # fmt: skip


def unreached(subject: SpecSubject) -> Iterator[str]:
    """The first instruction of each run of lines that no trial executes."""
    device = CpuDevice("fast", threads=1)
    function = device._load(subject.ptx.text, subject.name).function(subject.ptx.entry)
    assert isinstance(function, CpuFunction)
    counts = function.code.program.counted(subject.ptx.entry)
    kernel = Kernel(device, subject.ptx, function)
    for work in subject.works:
        assert subject._launched(kernel, work) is None
    reached_before = True
    for those in coverage.of(subject.name, counts).lines.values():
        reached = any(one.reached for one in those)
        if reached_before and not reached:
            yield f"{subject.name} {those[0].text}"
        reached_before = reached


def reason_of(place: str) -> str | None:
    """The pattern that excuses a place."""
    return next((pattern for pattern in UNREACHED if re.search(pattern, place)), None)


@pytest.mark.parametrize("subject", unique(), ids=lambda subject: subject.name)
def test_trials_execute_every_instruction(subject: SpecSubject) -> None:
    unknown = [place for place in unreached(subject) if reason_of(place) is None]
    assert not unknown, "no trial of `trials` executes:\n" + "\n".join(unknown)


@pytest.mark.skipif(not sweep.ALL, reason="runs every golden once more: PTXGEN_SWEEP=1")
def test_every_reason_excuses_something() -> None:
    used = {reason_of(place) for subject in unique() for place in unreached(subject)}
    assert used >= UNREACHED.keys()
