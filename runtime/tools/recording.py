"""One launch in one file: PTX, arguments, every buffer before and after. Recorded on any device, replayed on any."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.dtypes import DTYPES, dtype
from ptxgen.errors import SpecError, brief
from ptxgen.files.archive import read_arrays, write_arrays
from ptxgen.parity import LIMITS, Verdict, compare, judge
from ptxgen.runtime.core.backend import Geometry
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.memory.buffer import Buffer

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.launches.bound import BoundKernel
    from ptxgen.runtime.core.launches.kernel import Kernel
    from ptxgen.runtime.core.launches.module import Module

FORMAT = 2
_LACKING = {1: ({"kernel": None}, {"shape": None})}  # what older files do not say: of a launch, of an allocation


@dataclass(frozen=True)
class Memory:
    """One allocation of a recording: its address then, its bytes before and after, and what is known of its elements.

    `points`: its 64-bit words are addresses of other allocations. `shape`: of the argument, where it is known.
    """

    pointer: int
    before: np.ndarray
    after: np.ndarray
    name: str = ""
    dtype: str = "u8"
    points: bool = False
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Recording:
    """A launch: text, entry, geometry, the bytes and sizes of its parameters, and its memory.

    `kernel`: of a text of ours, the fields of its spec, and the kernel type's name as `kernel_type`.
    """

    text: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int]
    arguments: tuple[bytes, ...]
    memory: tuple[Memory, ...]
    device: str
    limit: float
    kernel: Mapping[str, Any] | None = None

    def spec(self) -> KernelType | None:
        """The spec that the text is of; None of other texts, and where this version has no such spec."""
        from ptxgen.kernel import make_spec

        fields = dict(self.kernel or {})
        try:
            return make_spec(str(fields.pop("kernel_type")), fields) if fields else None
        except (SpecError, KeyError, TypeError, ValueError):
            return None

    def save(self, path: str | Path) -> Path:
        """Write it as an `.npz`, whole or not at all."""
        meta = {
            "format": FORMAT, "entry": self.entry, "grid": self.grid, "block": self.block, "shared": self.shared,
            "cluster": self.cluster, "arguments": [a.hex() for a in self.arguments], "device": self.device,
            "limit": self.limit, "text": self.text, "kernel": self.kernel,
            "memory": [
                {"pointer": m.pointer, "name": m.name, "dtype": m.dtype, "points": m.points, "shape": m.shape}
                for m in self.memory
            ],
        }  # fmt: skip
        arrays = {f"before_{i}": m.before for i, m in enumerate(self.memory)}
        arrays |= {f"after_{i}": m.after for i, m in enumerate(self.memory)}
        return write_arrays(path, {"meta": np.array(json.dumps(meta)), **arrays}, compress=True)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read what `save` wrote; `SpecError` names the file, and the field, when it is something else."""
        arrays = read_arrays(path, _WHAT)
        try:
            return _recording(arrays)
        except SpecError as wrong:
            raise SpecError(f"{path}: {wrong}") from None


_WHAT = "a launch recorded by ptxgen"
_Rule = tuple[str, Callable[[Any], bool]]  # what a field must be, and whether a value is


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_hex(value: Any) -> bool:
    return isinstance(value, str) and len(value) % 2 == 0 and set(value) <= set("0123456789abcdef")


def _is_bytes(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1 and value.size > 0


_TEXT: _Rule = ("a string", lambda v: isinstance(v, str))
_WHOLE: _Rule = ("an integer from 0, of 64 bits at most", _is_whole)
_THREE: _Rule = ("three integers", lambda v: isinstance(v, list) and len(v) == 3 and all(map(_is_whole, v)))
_EXTENTS: _Rule = (
    "null, or a list of integers from 0", lambda v: v is None or (isinstance(v, list) and all(map(_is_whole, v)))
)  # fmt: skip
_META: dict[str, _Rule] = {
    "text": _TEXT, "entry": _TEXT, "grid": _THREE, "block": _THREE, "shared": _WHOLE, "cluster": _THREE,
    "arguments": ("a list of bytes in hexadecimal", lambda v: isinstance(v, list) and all(map(_is_hex, v))),
    "memory": ("a list", lambda v: isinstance(v, list)), "device": _TEXT,
    "limit": ("a number from 0", lambda v: type(v) in (int, float) and 0 <= v < math.inf),
    "kernel": ("null, or the fields of a spec", lambda v: v is None or isinstance(v, dict)),
}  # fmt: skip
_BYTES: _Rule = ("a row of bytes", _is_bytes)
_MEMORY: dict[str, _Rule] = {
    "pointer": _WHOLE, "before": _BYTES, "after": _BYTES, "name": _TEXT,
    "dtype": (f"one of {', '.join(DTYPES)}", lambda v: isinstance(v, str) and v in DTYPES),
    "points": ("true or false", lambda v: isinstance(v, bool)), "shape": _EXTENTS,
}  # fmt: skip


def _recording(arrays: Mapping[str, np.ndarray]) -> Recording:
    """From the arrays of a file: the one place that checks them."""
    try:
        meta = json.loads(str(arrays["meta"]))
        written = meta["format"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise SpecError(f"must be {_WHAT} (got arrays {brief(sorted(arrays))})") from None
    if type(written) is not int or written not in (FORMAT, *_LACKING):
        raise SpecError(f"recording format must be 1 to {FORMAT} (got {brief(written)})")
    of_launch, of_memory = _LACKING.get(written, ({}, {}))
    fields = _checked("recording", {**of_launch, **meta}, _META)
    grid, block, cluster = (tuple(fields[name]) for name in ("grid", "block", "cluster"))
    try:
        geometry = Geometry.of(grid, block, fields["shared"], cluster)
    except SpecError as wrong:
        raise SpecError(str(wrong).replace("Geometry.", "recording.", 1)) from None
    memory = []
    for number, known in enumerate(fields["memory"]):
        label = f"recording.memory[{number}]"
        held = {name: arrays.get(f"{name}_{number}") for name in ("before", "after")}
        said = {**of_memory, **known, **held} if isinstance(known, dict) else known
        one = Memory(**_checked(label, said, _MEMORY))
        one = replace(one, shape=None if one.shape is None else tuple(one.shape))
        if one.before.nbytes != one.after.nbytes:
            raise SpecError(f"{label}: must be as many bytes before as after (got {one.before.nbytes}, "
                            f"{one.after.nbytes})")  # fmt: skip
        if one.points and one.before.nbytes % 8:
            raise SpecError(f"{label}: addresses must be 8 bytes each (got {one.before.nbytes} bytes)")
        memory.append(one)
    arguments = tuple(map(bytes.fromhex, fields["arguments"]))
    return Recording(
        fields["text"], fields["entry"], geometry.grid, geometry.block, geometry.shared, geometry.cluster, arguments,
        tuple(memory), fields["device"], fields["limit"], fields["kernel"],
    )  # fmt: skip


def _checked(label: str, values: Any, rules: Mapping[str, _Rule]) -> dict[str, Any]:
    """The fields that `rules` names, each as its rule demands."""
    if not isinstance(values, dict):
        raise SpecError(f"{label}: must have the fields {', '.join(rules)} (got {brief(values)})")
    for name, (says, fits) in rules.items():
        if name not in values:
            raise SpecError(f"{label}.{name}: must be {says} (it is missing)")
        if not fits(values[name]):
            raise SpecError(f"{label}.{name}: must be {says} (got {_described(values[name])})")
    return {name: values[name] for name in rules}


def _described(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else brief(value)


def record(source: Kernel | Module, bound: BoundKernel) -> Recording:
    """Launch `bound` (made by `source`) once, keeping its memory as it was and as it became."""
    from ptxgen.parity import limit_of
    from ptxgen.runtime.core.launches.kernel import Kernel
    from ptxgen.views.manifest import spec_fields

    device, geometry = bound.device, bound.geometry
    device.synchronize()
    allocations = bound.allocations()
    before = [_bytes(a) for a in allocations]
    bound.launch()
    device.synchronize()
    raw = bound.block.tobytes()
    arguments = tuple(raw[slot.offset : slot.offset + slot.size] for slot in bound.block.slots)
    known, kernel, limit, buffers = {}, None, LIMITS["f32"], bound.buffers()
    if isinstance(source, Kernel):
        known = {
            int.from_bytes(value, "little"): (p.name, p.dtype.name, buffers[index].shape if index in buffers else None)
            for index, (p, value) in enumerate(zip(source.params, arguments, strict=True))
            if p.kind == "buffer"
        }
        spec = source.ptx.spec
        kernel, limit = {"kernel_type": spec.kernel_name, **spec_fields(spec)}, limit_of(spec)
    memory = []
    for allocation, old in zip(allocations, before, strict=True):
        name, kind, shape = known.get(allocation.pointer, ("", "u8", None))
        memory.append(Memory(allocation.pointer, old, _bytes(allocation), name, kind, bool(allocation.targets), shape))
    text = source.ptx.text if isinstance(source, Kernel) else source.text
    return Recording(
        text, bound.name, geometry.grid, geometry.block, geometry.shared, geometry.cluster, arguments, tuple(memory),
        device.name, limit, kernel,
    )  # fmt: skip


def _bytes(allocation: Allocation) -> np.ndarray:
    return Buffer(allocation, allocation.pointer, (allocation.nbytes,), dtype("u8")).numpy()


def replay(recording: Recording, device: Device) -> tuple[Verdict, ...]:
    """Launch a recording on `device`; a verdict for every buffer that the recorded launch changed.

    Equal bytes pass. Others are judged as a trial of the recorded spec judges its outputs; where that is not to be had,
    values of a known floating type pass within the recorded limit.
    """
    buffers = [device.empty((m.before.nbytes,), "u8") for m in recording.memory]
    moved = _Moved(recording.memory, buffers)
    for memory, buffer in zip(recording.memory, buffers, strict=True):
        buffer.copy_from(moved.pointers(memory.before) if memory.points else memory.before)
    arguments = [moved.argument(value) for value in recording.arguments]
    entry = device.module(recording.text)[recording.entry]
    entry.launch(recording.grid, recording.block, arguments, recording.shared, recording.cluster)
    device.synchronize()
    return tuple(_verdicts(recording, buffers))


def _verdicts(recording: Recording, buffers: list[Buffer]) -> Iterator[Verdict]:
    spec = recording.spec()
    for number, (memory, buffer) in enumerate(zip(recording.memory, buffers, strict=True)):
        if memory.points or np.array_equal(memory.before, memory.after):
            continue
        got = buffer.numpy()
        name = memory.name or f"buffer {number}"
        kind = dtype(memory.dtype)
        if spec is not None and _is_output(spec, memory) and not np.array_equal(got, memory.after):
            found, wanted = ({name: raw.view(kind.numpy).reshape(memory.shape)} for raw in (got, memory.after))
            yield from judge(spec, found, wanted)
        elif kind.is_float and got.nbytes % kind.bytes == 0 and not np.array_equal(got, memory.after):
            yield compare(name, got.view(kind.numpy), memory.after.view(kind.numpy), recording.limit)
        else:
            yield compare(name, got, memory.after, 0.0)


def _is_output(spec: KernelType, memory: Memory) -> bool:
    """Whether an allocation is one output of a spec, all of it and nothing else."""
    param = next((p for p in spec.params() if p.name == memory.name), None)
    if param is None or param.kind != "buffer" or param.access not in ("out", "inout") or memory.shape is None:
        return False
    extents = len(memory.shape) == len(param.shape) and all(
        isinstance(wanted, str) or wanted == found for wanted, found in zip(param.shape, memory.shape, strict=True)
    )
    size = math.prod(memory.shape) * param.dtype.bytes
    return extents and memory.dtype == param.dtype.name and size == memory.after.nbytes


class _Moved:
    """Addresses of a recording, in the memory of the replay."""

    def __init__(self, memory: tuple[Memory, ...], buffers: list[Buffer]) -> None:
        self._ranges = [(m.pointer, m.before.nbytes, b.pointer) for m, b in zip(memory, buffers, strict=True)]

    def address(self, value: int) -> int:
        """Where an address points now; a number that is none stays as it is."""
        for pointer, nbytes, now in self._ranges:
            if pointer <= value < pointer + nbytes:
                return now + value - pointer
        return value

    def pointers(self, raw: np.ndarray) -> np.ndarray:
        """The bytes of an array of addresses."""
        words = raw[: raw.nbytes // 8 * 8].view(np.uint64)
        return np.array([self.address(int(w)) for w in words], np.uint64).view(np.uint8)

    def argument(self, value: bytes) -> Any:
        """One packed argument."""
        return self.address(int.from_bytes(value, "little")).to_bytes(8, "little") if len(value) == 8 else value
