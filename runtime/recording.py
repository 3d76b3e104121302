"""One launch in one file: PTX, arguments, every buffer before and after. Recorded on any device, replayed on any."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from ptxgen.dtypes import dtype
from ptxgen.errors import SpecError
from ptxgen.output import write_files
from ptxgen.parity import LIMITS, Verdict, compare
from ptxgen.runtime.allocation import Allocation
from ptxgen.runtime.buffer import Buffer

if TYPE_CHECKING:
    from ptxgen.runtime.bound import BoundKernel
    from ptxgen.runtime.device import Device
    from ptxgen.runtime.kernel import Kernel
    from ptxgen.runtime.module import Module

FORMAT = 1


@dataclass(frozen=True)
class Memory:
    """One allocation of a recording: its address then, its bytes before and after, and what is known of its elements.

    `points`: its 64-bit words are addresses of other allocations.
    """

    pointer: int
    before: np.ndarray
    after: np.ndarray
    name: str = ""
    dtype: str = "u8"
    points: bool = False


@dataclass(frozen=True)
class Recording:
    """A launch: text, entry, geometry, the bytes and sizes of its parameters, and its memory."""

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

    def save(self, path: str | Path) -> Path:
        """Write it as an `.npz`, whole or not at all."""
        meta = {
            "format": FORMAT, "entry": self.entry, "grid": self.grid, "block": self.block, "shared": self.shared,
            "cluster": self.cluster, "arguments": [a.hex() for a in self.arguments], "device": self.device,
            "limit": self.limit, "text": self.text,
            "memory": [
                {"pointer": m.pointer, "name": m.name, "dtype": m.dtype, "points": m.points} for m in self.memory
            ],
        }  # fmt: skip
        arrays = {f"before_{i}": m.before for i, m in enumerate(self.memory)}
        arrays |= {f"after_{i}": m.after for i, m in enumerate(self.memory)}
        packed = io.BytesIO()
        np.savez_compressed(packed, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]
        return write_files(Path(path).parent, {Path(path).name: packed.getvalue()})[0]

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read what `save` wrote; `SpecError` names the file when it is something else."""
        try:
            with np.load(path) as file:
                meta = json.loads(str(file["meta"]))
                if meta["format"] != FORMAT:
                    raise SpecError(f"{path}: recording format must be {FORMAT} (got {meta['format']})")
                memory = tuple(
                    Memory(m["pointer"], file[f"before_{i}"], file[f"after_{i}"], m["name"], m["dtype"], m["points"])
                    for i, m in enumerate(meta["memory"])
                )
        except (KeyError, ValueError, TypeError, AttributeError, EOFError, BadZipFile) as wrong:
            raise SpecError(f"{path}: must be a launch recorded by ptxgen ({wrong})") from None
        return cls(
            meta["text"], meta["entry"], _three(meta["grid"]), _three(meta["block"]), meta["shared"],
            _three(meta["cluster"]), tuple(bytes.fromhex(a) for a in meta["arguments"]), memory, meta["device"],
            meta["limit"],
        )  # fmt: skip


def _three(values: list[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z


def record(source: Kernel | Module, bound: BoundKernel) -> Recording:
    """Launch `bound` (made by `source`) once, keeping its memory as it was and as it became."""
    from ptxgen.parity import limit_of
    from ptxgen.runtime.kernel import Kernel

    device, geometry = bound.device, bound.geometry
    device.synchronize()
    allocations = bound.allocations()
    before = [_bytes(a) for a in allocations]
    bound.launch()
    device.synchronize()
    raw = bound.block.tobytes()
    arguments = tuple(raw[slot.offset : slot.offset + slot.size] for slot in bound.block.slots)
    known = {}
    if isinstance(source, Kernel):
        known = {
            int.from_bytes(value, "little"): (p.name, p.dtype.name)
            for p, value in zip(source.params, arguments, strict=True)
            if p.kind == "buffer"
        }
    memory = []
    for allocation, old in zip(allocations, before, strict=True):
        name, kind = known.get(allocation.pointer, ("", "u8"))
        memory.append(Memory(allocation.pointer, old, _bytes(allocation), name, kind, bool(allocation.targets)))
    text = source.ptx.text if isinstance(source, Kernel) else source.text
    limit = limit_of(source.ptx.spec) if isinstance(source, Kernel) else LIMITS["f32"]
    return Recording(
        text, bound.name, geometry.grid, geometry.block, geometry.shared, geometry.cluster, arguments, tuple(memory),
        device.name, limit,
    )  # fmt: skip


def _bytes(allocation: Allocation) -> np.ndarray:
    return Buffer(allocation, allocation.pointer, (allocation.nbytes,), dtype("u8")).numpy()


def replay(recording: Recording, device: Device) -> tuple[Verdict, ...]:
    """Launch a recording on `device`; a verdict for every buffer that the recorded launch changed.

    Equal bytes pass; where the element type is known and floating, values within the recorded limit do too.
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
    for number, (memory, buffer) in enumerate(zip(recording.memory, buffers, strict=True)):
        if memory.points or np.array_equal(memory.before, memory.after):
            continue
        got = buffer.numpy()
        name = memory.name or f"buffer {number}"
        kind = dtype(memory.dtype)
        if kind.is_float and got.nbytes % kind.bytes == 0 and not np.array_equal(got, memory.after):
            yield compare(name, got.view(kind.numpy), memory.after.view(kind.numpy), recording.limit)
        else:
            yield compare(name, got, memory.after, 0.0)


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
