"""Every golden kernel on the NumPy oracle against its reference: evidence that shares nothing with the executor.

Goldens whose texts differ in their headers only are one case. Where a golden is large for the sake of a loop, the same
text with smaller numbers stands in for it.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ptxgen import generator
from ptxgen.generator import Ptx
from ptxgen.golden.case import Case
from ptxgen.kernel import KernelType
from ptxgen.launch import evaluate
from ptxgen.parity import judge
from ptxgen.products.geometry.runs import Shape
from tests.evidence.oracle import Array, Oracle
from tests.support.goldens import body, different

CASES = {case.file: case for case in different()}


@dataclass(frozen=True)
class Smaller:
    """Another size that takes the same text but for its numbers, where these constants of modules are smaller too."""

    fields: dict[str, int]
    constants: dict[str, object]
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)

    def of(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> Ptx:
        """The smaller kernel. It is not kept: its text is none of its spec's."""
        spec = dataclasses.replace(case.spec, **self.fields)  # type: ignore[type-var]
        with monkeypatch.context() as patch:
            for name, value in self.constants.items():
                patch.setattr(f"ptxgen.{name}", value)
            made = generator._generate(spec, case.target)
        texts = (body(text).replace("_", "") for text in (case.generate().text, made.text))
        assert len({re.sub(r"\b\d+\b", "N", text) for text in texts}) == 1, "only numbers differ"
        return made


# 625 groups of records for 264 CTAs become 6 for 4; 5000 units for 132 CTAs 150 for 4, so that each has 37 or 38 as
# before; ten passes over a row become three.
SMALLER = {
    "sm_75/gemv/n80000": Smaller(
        {"n": 700}, {"products.geometry.groups.K_WARPS": ((0, 1),), "products.geometry.groups.MOST_WARPS": 32}
    ),
    "sm_90/gemv/n80000": Smaller({"n": 2400}, {"products.geometry.runs.RUN": Shape(16, 3, 4)}),
    "/sample/vocab20000": Smaller({"vocab": 5000}, {"kernels.sample.OF_CTA": 1 << 12}, {"rows": 4}),
}


def test_every_smaller_size_is_of_a_golden() -> None:
    assert [name for name in SMALLER if not any(name in file for file in CASES)] == []


def argument(device: Oracle, param: Any, value: Any, capacities: dict[str, int]) -> Any:
    """One argument on the oracle: buffers copied, pointer tables made, workspaces zeroed or poisoned."""
    if param.access == "workspace":
        raw = np.full(max(param.nbytes(capacities), 1), 0 if param.zeroed else 0xFF, np.uint8)
        return device.array(raw)
    if isinstance(value, list):
        return device.array(np.array([device.array(np.asarray(v)).pointer for v in value], np.uint64))
    return device.array(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("file", CASES)
def test_golden_matches_its_reference(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[file]
    small = next((smaller for name, smaller in SMALLER.items() if name in file), None)
    if small:
        matches(small.of(case, monkeypatch), {**case.spec.sizes, **small.sizes})
    else:
        matches(case.generate(), dict(case.spec.sizes))


def matches(ptx: Ptx, sizes: dict[str, int]) -> None:
    """One launch on the oracle gives what the reference says."""
    spec: KernelType = ptx.spec
    device = Oracle()
    values = spec.example(np.random.default_rng(7), **sizes)
    expected = spec.reference(**{n: v.copy() if isinstance(v, np.ndarray) else v for n, v in values.items()})
    args = {p.name: argument(device, p, values.get(p.name), sizes) for p in ptx.params}
    grid = tuple(evaluate(extent, sizes) for extent in ptx.launch.grid)
    kernel = device.module(ptx.text)[ptx.entry]
    kernel.launch(grid, ptx.launch.block, list(args.values()), ptx.launch.shared, ptx.launch.cluster)
    wanted = {name: np.asarray(want) for name, want in expected.items() if isinstance(args[name], Array)}
    for verdict in judge(spec, {name: args[name].numpy() for name in wanted}, wanted):
        assert verdict.ok, str(verdict)
