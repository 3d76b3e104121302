"""PackedGemm with one barrier, arrival or wait left out, where goldens are too small to tell: k is longer than the
ring, CTAs that have all of k go on to further tiles, and the kernel before is still writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.generator import Ptx
from ptxgen.kernel import KernelType
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import bind_example
from ptxgen.targets import target
from tests.support import sweep
from tests.support.packed_products import WHERE
from tests.tools.mutations import Mutation, SpecSubject, Work, deletions

FAULTS = 3  # of each case that are tried; in a sweep all
FAST: dict[str, Any] = {"precision": "fast", "tile_rows": 64, "split": 1}
BY_ROW: dict[str, Any] = {"x_dtype": "f16", "by_row": True, "tile_rows": 64, "weights": "int4_g128"}
# Lines of which `PackedGemm.unreported` says that leaving them out does not matter in its goldens.
LATER = ("%is_empty", "released_bell", "full_bell", "a phase behind", "bar.arrive 6", "roots_free")


@dataclass(frozen=True)
class Several(SpecSubject):
    """A spec with three tiles of tokens."""

    @cached_property
    def works(self) -> tuple[Work, ...]:
        return (self._work({"rows": 17, "n_rows": 17}),)


# What nobody notices, and how many of each; it does not matter, but for the first, which a GPU needs.
LANES = {"before the next tile": 1}  # lanes of a warp: what one of them releases between counts as released by all
OVER = {"wgmma.wait_group": 3}  # no product is open but the last, or none
ONE_TILE = {"%arrives": 1}  # CTAs that share k have one tile each: nobody waits for its last stage again
TOGETHER = {"barrier.cluster.wait": 2}  # the CTAs of a cluster begin together
LATE = {"wgmma.wait_group": 1, "wgmma.fence": 1}  # nothing is open yet; fragments were written before the fence before
CASES: tuple[tuple[dict[str, Any], dict[str, int]], ...] = (
    ({"n": 320, "k": 1024, "norm": "rms", **FAST}, LANES),
    ({"n": 256, "k": 1536, "share": 2, **FAST}, LANES),
    ({"n": 100, "k": 4096, "residual": True, **FAST, "split": 2}, ONE_TILE | TOGETHER),
    ({"n": 128, "k": 1024, **BY_ROW, "split": 1}, OVER),
    ({"n": 160, "k": 768, **BY_ROW, "weights": "q4_k", "tokens": 64, "split": 1}, LATE),
)


@pytest.mark.parametrize(("fields", "excused"), CASES, ids=("norm", "share", "split", "by_row", "late"))
def test_k_turns_the_ring_and_ctas_have_several_tiles(
    fields: dict[str, Any], excused: dict[str, int], few_processors: None
) -> None:
    subject = Several(PackedGemm(**{"tokens": 8, **fields}), target(WHERE))

    def excuse(one: Mutation) -> str | None:
        return next((words for words in excused if words in one.what), None)

    every = list(deletions(subject.ptx.text))
    later = [one for one in every if any(words in one.what for words in LATER) and not excuse(one)]
    assert len(later) >= FAULTS
    missed = [one for one in (every if sweep.ALL else sweep.some(later, FAULTS)) if not subject.noticed(one.text)]
    assert [str(one) for one in missed if not excuse(one)] == []
    assert not sweep.ALL or Counter(map(excuse, missed)) == excused


# a kernel, one that reads what it writes, and by which names
CHAINS: tuple[tuple[KernelType, PackedGemm, dict[str, str]], ...] = (
    (
        PackedGemm(n=256, k=256, tokens=8, precision="fast", residual=True, norm_out=True),
        PackedGemm(n=78, k=256, tokens=8, precision="fast", norm="rms", programmatic=True),
        {"x": "digits", "squares": "out_squares"},
    ),
    (
        PackTokens(dim=512, tokens=8, dtype="f16", by_row=True),
        PackedGemm(n=64, k=512, tokens=8, programmatic=True, **{**BY_ROW, "weights": "q8_0"}, split=1),
        {"x": "out", "x_scales": "scales"},
    ),
)


def run_behind(first: KernelType, second: Ptx, names: Mapping[str, str], text: str) -> None:
    """A kernel, and behind it a text of the second."""
    device, rng, sizes = CpuDevice("check", threads=1), np.random.default_rng(8), {"rows": 9, "n_rows": 9}
    ahead, made = bind_example(device.load(first, WHERE), first.example(rng, **sizes), {"rows": 9})
    kernel = Kernel(device, second, device._load(text, second.entry).function(second.entry))
    given = second.spec.example(rng, **sizes)
    buffers = {name: device.array(value) if isinstance(value, np.ndarray) else value for name, value in given.items()}
    bound = kernel.bind(**{**buffers, **{name: made[its] for name, its in names.items()}})
    ahead.launch()
    bound.launch()
    device.synchronize()


@pytest.mark.parametrize(("first", "second", "names"), CHAINS, ids=("norm", "by_row"))
def test_whatever_reads_tokens_waits_for_the_kernel_that_writes_them(
    first: KernelType, second: PackedGemm, names: Mapping[str, str]
) -> None:
    """And what writes results, for the one before that wrote or reads them: two launches of the same kernel."""
    alone = Several(second, target(WHERE))
    run_behind(first, alone.ptx, names, alone.ptx.text)
    waits = [one.text for one in deletions(alone.ptx.text) if "griddepcontrol.wait" in one.what]
    assert len(waits) == 2 + bool(second.norm)  # copies tokens, writes results, finds roots
    with pytest.raises(ExecutionError, match=r"griddepcontrol\.wait"):
        alone.run(waits.pop(), "check", 1)
    for text in waits:
        with pytest.raises(ExecutionError, match=r"griddepcontrol\.wait"):
            run_behind(first, alone.ptx, names, text)
