"""`Kernel`: a generated kernel, loaded; `bind` checks arguments against its parameters and packs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ptxgen.errors import SpecError
from ptxgen.launch import Param, capacities_of
from ptxgen.lengths import MOST
from ptxgen.runtime.core.backend import Function, Geometry, Resources
from ptxgen.runtime.core.launches.arguments import Capacities, check_alignment, check_buffer, check_overlaps
from ptxgen.runtime.core.launches.bound import BoundKernel, Packed
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.memory.wrap import argument
from ptxgen.runtime.core.param_block import ParamBlock
from ptxgen.runtime.core.scalars import pack_scalar

if TYPE_CHECKING:
    from ptxgen.generator import Ptx
    from ptxgen.kernel import KernelType
    from ptxgen.runtime.core.memory.buffer_device import BufferDevice


class Kernel:
    """A generated kernel, loaded on a device: `kernel.bind(q=q, out=out, seq_len=517).launch()`."""

    def __init__(self, device: BufferDevice, ptx: Ptx, function: Function) -> None:
        self.device = device
        self.ptx = ptx
        self.function = function
        self.params: tuple[Param, ...] = ptx.params
        self._index = {p.name: i for i, p in enumerate(ptx.params)}
        self._workspaces = tuple(i for i, p in enumerate(ptx.params) if p.access == "workspace")
        self._zeroed = tuple(i for i, p in enumerate(ptx.params) if p.zeroed)
        expected = tuple(8 if p.kind != "scalar" else p.dtype.bytes for p in ptx.params)
        found = tuple(slot.size for slot in function.slots)
        if expected != found:
            raise SpecError(f"{ptx.entry}: parameters must have {expected} bytes by its spec (the text has {found})")

    @property
    def spec(self) -> KernelType:
        """The specialisation that was loaded."""
        return self.ptx.spec

    @property
    def resources(self) -> Resources:
        """Registers, stack, shared memory, as the compiler reports them."""
        return self.function.resources

    def bind(self, **arguments: object) -> BoundKernel:
        """Check all arguments and pack them once.

        Every parameter by name: buffers as `Buffer`, a DLPack or `__cuda_array_interface__` array, a NumPy array (CPU
        device), or an int address; "pointers" also as a list of buffers; scalars as numbers. Workspaces that are not
        given are allocated; launches that share one must not run at the same time (so: one `bind` per stream).
        Capacities (`batch`) come from the shapes of the buffers, or by name. Raises `SpecError`, also for lengths and
        positions out of their range (`KernelType.ranges`); those in device memory are the kernel's to judge.
        """
        capacities, given = self._split(arguments)
        for name, value in given.items():
            param = self.params[self._index[name]]
            if isinstance(value, Buffer):
                if len(value.shape) == len(param.shape):
                    capacities.learn_from(param, value.shape)
            elif isinstance(value, list | tuple) and param.kind == "pointers":
                capacities.learn_from(param, (len(value),))
        for param in self.params:
            if param.access == "workspace" and param.name not in given:
                given[param.name] = self._workspace(param, capacities)
        geometry = self._geometry(capacities)

        limits = self._limits(capacities)

        def pack(name: str, value: object) -> Packed:
            return self._pack(name, value, capacities, limits)

        def check(kept: Mapping[int, tuple[Buffer, ...]]) -> None:
            check_overlaps(self.params, kept, self.spec.may_alias)

        packed = [pack(name, value) for name, value in given.items()]
        check({index: buffers for index, _, buffers in packed if buffers})
        block = ParamBlock(self.function.slots)
        bound = BoundKernel(
            self.device, self.function, geometry, block, pack, workspaces=self._workspaces, check=check,
            zeroed=self._zeroed,
        )  # fmt: skip
        bound.store(packed)
        return bound

    def _split(self, arguments: Mapping[str, object]) -> tuple[Capacities, dict[str, object]]:
        """Capacities, and the arguments with every array made a `Buffer`; unknown and missing names raise."""
        names = self.capacity_names
        unknown = [n for n in arguments if n not in self._index and n not in names]
        if unknown:
            known = ", ".join([*self._index, *sorted(names)])
            raise SpecError(f"{self.ptx.entry}.bind: takes {known} (got {', '.join(unknown)})")
        missing = [p.name for p in self.params if p.name not in arguments and p.access != "workspace"]
        if missing:
            raise SpecError(f"{self.ptx.entry}.bind: needs {', '.join(missing)}")
        capacities = Capacities({n: v for n, v in arguments.items() if n in names})  # type: ignore[misc]
        given = {n: self._as_buffer(n, v) for n, v in arguments.items() if n in self._index}
        return capacities, given

    @property
    def capacity_names(self) -> frozenset[str]:
        """Capacities that shapes and geometry depend on."""
        shapes = (capacities_of(extent) for p in self.params for extent in p.shape)
        return self.ptx.launch.capacities.union(*shapes) - self._index.keys()

    def _as_buffer(self, name: str, value: object) -> object:
        """Arrays of other libraries as buffers; ints, lists and scalars as they are."""
        param = self.params[self._index[name]]
        if param.kind == "scalar" or isinstance(value, Buffer | int):
            return value
        if param.kind == "pointers" and isinstance(value, list | tuple):
            return value
        return argument(self.device, f"bind({name})", value)

    def _workspace(self, param: Param, capacities: Capacities) -> Buffer:
        make = self.device.zeros if param.zeroed else self.device.empty
        return make(capacities.shape(param), param.dtype)

    def _geometry(self, capacities: Capacities) -> Geometry:
        launch = self.ptx.launch
        grid = tuple(capacities.extent("grid", extent) for extent in launch.grid)
        try:
            return Geometry.of(grid, launch.block, launch.shared, launch.cluster, launch.programmatic, launch.together)
        except SpecError as wrong:
            found = ", ".join(f"{name}={value}" for name, value in capacities.values.items())
            raise SpecError(f"{self.ptx.entry}.bind: {found} cannot be launched: {wrong}") from None

    def _limits(self, capacities: Capacities) -> dict[str, tuple[int, int]]:
        """The least and the largest of each scalar that has them, whatever the capacities are that are not known."""
        names = [p.name for p in self.params if p.kind == "scalar"]
        if not names:
            return {}
        known = capacities.values
        few, many = (self.spec.ranges({**dict.fromkeys(self.spec.sizes, other), **known}) for other in (1, MOST))
        return {n: (min(few[n][0], many[n][0]), max(few[n][1], many[n][1])) for n in names if n in few}

    def _pack(self, name: str, value: object, capacities: Capacities, limits: Mapping[str, tuple[int, int]]) -> Packed:
        """Check one argument against its parameter."""
        index = self._index.get(name)
        if index is None:
            raise SpecError(f"{self.ptx.entry}.bind: takes {', '.join(self._index)} (got {name})")
        param = self.params[index]
        if param.kind == "scalar":
            data = pack_scalar(f"bind({name})", value, param.dtype)
            least, most = limits.get(name, (None, None))
            if least is not None and most is not None and not least <= int(value) <= most:  # type: ignore[call-overload]
                raise SpecError(f"bind({name}): must be from {least} to {most} (got {int(value)})")  # type: ignore[call-overload]
            return index, data, ()
        value = self._as_buffer(name, value)
        if isinstance(value, list | tuple):
            value = self._pointer_array(param, _buffers(name, value))
        if isinstance(value, Buffer):
            check_buffer(param, value, self.device, capacities)
            return index, value.pointer.to_bytes(8, "little"), (value,)
        if not isinstance(value, int) or isinstance(value, bool):
            raise SpecError(f"bind({name}): must be a buffer, an array or an address (got {value!r})")
        check_alignment(param, value)
        return index, value.to_bytes(8, "little"), ()

    def _pointer_array(self, param: Param, targets: Sequence[Buffer]) -> Buffer:
        for target in targets:
            if target.dtype != param.dtype or target.device is not self.device:
                want = f"{param.dtype} on {self.device.name}"
                raise SpecError(f"bind({param.name}): each must be {want} (got {target!r})")
            check_alignment(param, target.pointer)
        return self.device.pointers(targets)

    def __repr__(self) -> str:
        return f"Kernel({self.ptx.spec!r}, {self.ptx.target}, {self.device.name})"


def _buffers(name: str, values: Sequence[object]) -> list[Buffer]:
    for value in values:
        if not isinstance(value, Buffer):
            raise SpecError(f"bind({name}): a list of pointers must hold buffers (got {value!r})")
    return list(values)  # type: ignore[arg-type]
