"""Any PTX text as a loaded module: `Module` and its `Entry`s, with arguments by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.errors import ModuleLoadError, SpecError, brief
from ptxgen.runtime.core.backend import Function, Geometry, Resources
from ptxgen.runtime.core.launches.arguments import pack_raw
from ptxgen.runtime.core.launches.bound import BoundKernel, Packed
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.memory.tensor_map import TensorMap
from ptxgen.runtime.core.memory.wrap import argument
from ptxgen.runtime.core.param_block import ParamBlock

if TYPE_CHECKING:
    from ptxgen.runtime.core.memory.buffer_device import BufferDevice


class Entry:
    """One entry of a `Module`: arguments by position, geometry by the caller."""

    def __init__(self, device: BufferDevice, function: Function) -> None:
        self.device = device
        self.function = function

    def __repr__(self) -> str:
        return f"Entry({self.function.name}, {self.device.name})"

    @property
    def resources(self) -> Resources:
        """Registers, stack, shared memory, as the compiler reports them."""
        return self.function.resources

    def bind(
        self,
        grid: object,
        block: object,
        args: Sequence[object] = (),
        shared: int = 0,
        cluster: object = None,
        programmatic: bool = False,
    ) -> BoundKernel:
        """Pack a launch; arguments are buffers, arrays, int addresses or NumPy scalars (of the exact width).

        `update` takes them by position: `update(_0=buffer)`. Raises `SpecError` on a wrong count or width.
        """
        geometry = Geometry.of(grid, block, shared, cluster, programmatic)
        slots = self.function.slots
        if not isinstance(args, Sequence) or len(args) != len(slots):
            got = len(args) if isinstance(args, Sequence) else brief(args)
            raise SpecError(f"{self.function.name}: takes {len(slots)} arguments (got {got})")
        packed = [self._pack(f"_{i}", value) for i, value in enumerate(args)]
        bound = BoundKernel(self.device, self.function, geometry, ParamBlock(slots), self._pack)
        bound.store(packed)
        return bound

    def launch(
        self,
        grid: object,
        block: object,
        args: Sequence[object] = (),
        shared: int = 0,
        cluster: object = None,
        stream: object = None,
        programmatic: bool = False,
    ) -> None:
        """`bind` and launch once."""
        self.bind(grid, block, args, shared, cluster, programmatic).launch(stream)

    def _pack(self, name: str, value: object) -> Packed:
        index = int(name.removeprefix("_")) if name.removeprefix("_").isdigit() else -1
        if not 0 <= index < len(self.function.slots):
            raise SpecError(f"{self.function.name}: arguments are _0 … _{len(self.function.slots) - 1} (got {name})")
        if not isinstance(value, Buffer | TensorMap | int | bytes | np.generic):
            value = argument(self.device, f"{self.function.name}({name})", value)
        data, keep = pack_raw(f"{self.function.name}({name})", value, self.function.slots[index].size, self.device)
        return index, data, () if keep is None else (keep,)


class Module:
    """Any PTX text, loaded: `module["entry"].launch(grid=32, block=128, args=[q, out, np.uint32(7)])`."""

    def __init__(self, device: BufferDevice, text: str, name: str = "module") -> None:
        if device.strict:
            raise ModuleLoadError(f"{device.name} is strict: no module is loaded any more")
        if not isinstance(text, str):
            raise SpecError(f"Device.module: must be PTX text, a str (got {brief(text)})")
        try:
            text.encode()
        except UnicodeEncodeError as wrong:
            line = text.count("\n", 0, wrong.start) + 1
            raise ModuleLoadError(f"{name}:{line}: {text[wrong.start]!r} is no character of a text") from None
        self.device = device
        self.text = text
        self._code = device._load_foreign(text, name)
        self._entries: dict[str, Entry] = {}

    @property
    def origin(self) -> str:
        """Where the machine code came from."""
        return self._code.origin

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries."""
        return self._code.entries

    def __repr__(self) -> str:
        names = [*self.entries[:3], *(["…"] if len(self.entries) > 3 else [])]
        return f"Module({', '.join(names) or 'no entries'}; {self.device.name})"

    def __getitem__(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = Entry(self.device, self._code.function(name))
        return entry
