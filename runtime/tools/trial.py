"""One launch of a spec against its NumPy reference: what `ptxgen run`, the demo and the numeric tests share."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import SpecError
from ptxgen.generator import Ptx, generate
from ptxgen.launch import written_of
from ptxgen.parity import Verdict, judge
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.tools.isolate import Limits, isolated
from ptxgen.targets import target as parse_target

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.launches.bound import BoundKernel
    from ptxgen.runtime.core.launches.kernel import Kernel


@dataclass(frozen=True)
class Trial:
    """Outcome of a launch: a verdict per written buffer, the buffers, and times in seconds.

    `load_s` covers generation and loading, `first_s` the first launch until its results are there, `run_s` the second.
    """

    ptx: Ptx
    device: str
    verdicts: tuple[Verdict, ...]
    outputs: Mapping[str, np.ndarray]
    load_s: float
    first_s: float
    run_s: float

    @property
    def ok(self) -> bool:
        """Whether every buffer matches."""
        return all(v.ok for v in self.verdicts)

    def require(self) -> Trial:
        """Raise `AssertionError` naming the spec and every buffer that is wrong."""
        wrong = [str(v) for v in self.verdicts if not v.ok]
        if wrong:
            raise AssertionError(f"{self.ptx.spec!r} on {self.device}: {'; '.join(wrong)}")
        return self


def trial(
    spec: KernelType,
    device: Device,
    *,
    target: object = None,
    seed: int = 0,
    arguments: Mapping[str, Any] | None = None,
    limit: float | None = None,
    repeat: bool = True,
    isolate: Limits | None = None,
    **sizes: int,
) -> Trial:
    """Launch `spec` on `device` with arguments from a seed (or with the given ones) and compare with its reference.

    `sizes` are capacities and lengths as the spec's `example` takes them. With `repeat` it is launched twice on equal
    inputs, and the two results must be the same bytes. `isolate`: all of it in a process of its own with these limits
    (`isolate.py`); the CPU executor only.
    """
    if isolate is not None:
        if device.kind != "cpu":
            raise SpecError(f"trial.isolate: the CPU executor only can be isolated (got {device.name})")
        how = asdict(device.options)  # type: ignore[attr-defined]
        how["time_limit"] = min(how["time_limit"] or math.inf, 0.9 * isolate.seconds)  # and then says where it was
        given = dict(target=target, seed=seed, arguments=arguments, limit=limit, repeat=repeat, **sizes)
        verdicts, outputs, times = isolated(_plain_trial, spec, how, limits=isolate, **given)
        where = parse_target(target) if target is not None else device.target  # type: ignore[arg-type]
        return Trial(generate(spec, where), device.name, verdicts, outputs, *times)
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = {**spec.example(rng, **sizes), **(arguments or {})}
    with np.errstate(all="ignore"):  # infinities among the inputs are judged where they come out
        expected = spec.reference(**{name: _copied(value) for name, value in values.items()})
    written = written_of(type(spec).__name__, spec.params())
    if not isinstance(expected, Mapping) or not expected.keys() <= set(written):
        got = ", ".join(expected) if isinstance(expected, Mapping) else type(expected).__name__
        raise SpecError(f"{type(spec).__name__}.reference: must be a dict by {', '.join(written)} (got {got})")

    started = time.perf_counter()
    kernel = device.load(spec, target)
    load_s = time.perf_counter() - started

    outputs, first_s = _launched(kernel, values, sizes)
    verdicts = judge(spec, outputs, {name: np.asarray(want) for name, want in expected.items()}, limit)
    run_s = first_s
    if repeat:
        again, run_s = _launched(kernel, values, sizes)
        for name, first in outputs.items():
            if first.tobytes() != again[name].tobytes():
                verdicts.append(Verdict(name, False, float("inf"), 0.0, (), "a second launch gave other bytes"))
    return Trial(kernel.ptx, device.name, tuple(verdicts), outputs, load_s, first_s, run_s)


def _plain_trial(spec: KernelType, how: dict[str, Any], **given: Any) -> tuple[Any, ...]:
    """A trial on an executor of its own, without what cannot leave a process."""
    from ptxgen.runtime.cpu.device import CpuDevice

    done = trial(spec, CpuDevice(**how), **given)
    return done.verdicts, done.outputs, (done.load_s, done.first_s, done.run_s)


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [np.array(item) for item in value]
    return np.array(value) if isinstance(value, np.ndarray) else value


def bind_example(
    kernel: Kernel, values: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[BoundKernel, dict[str, Any]]:
    """Upload an example's arguments and bind them; also what each name was bound to."""
    device = kernel.device
    bound: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            bound[name] = [device.array(item) for item in value]
        elif isinstance(value, np.ndarray):
            bound[name] = device.array(value)
        else:
            bound[name] = value
    capacities = {n: v for n, v in {**kernel.ptx.spec.sizes, **sizes}.items() if n in kernel.capacity_names}
    return kernel.bind(**bound, **capacities), bound


def behind_a_writer(kernel: Kernel, bound: Mapping[str, Any]) -> None:
    """In check mode: as if a kernel had just written the inputs of a programmatic launch that it must wait for."""
    device, spec = kernel.device, kernel.ptx.spec
    writes = getattr(device, "launch_that_writes", None)
    if writes is None or not getattr(spec, "programmatic", False):
        return
    names = [param.name for param in kernel.params if param.access in ("in", "inout") and param.name not in spec.early]
    values = [bound[name] for name in names]
    lists = [value if isinstance(value, list) else [value] for value in values]
    writes([buffer for one in lists for buffer in one if isinstance(buffer, Buffer)])


def _launched(
    kernel: Kernel, values: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], float]:
    """Upload, bind, launch, download: the written buffers and the seconds from launch to finish."""
    device = kernel.device
    launch, bound = bind_example(kernel, values, sizes)
    device.synchronize()
    behind_a_writer(kernel, bound)
    started = time.perf_counter()
    launch.launch()
    device.synchronize()
    seconds = time.perf_counter() - started
    written = [p.name for p in kernel.params if p.access in ("out", "inout")]
    return {n: bound[n].numpy() for n in written if isinstance(bound[n], Buffer)}, seconds
