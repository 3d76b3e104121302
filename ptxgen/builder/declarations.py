"""What a builder declares: registers, arrays, shared memory, tables, and what a template knows of them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from ptxgen.builder.fragment import Absent, Fragment
from ptxgen.builder.values import Reg, RegArray, Shared, Table
from ptxgen.errors import IsaError
from ptxgen.isa import special_register

if TYPE_CHECKING:
    from ptxgen.launch import Launch, Param
    from ptxgen.targets import Target


class Spec(Protocol):
    """What a builder, and a template, ask of a specialisation."""

    @property
    def kernel_name(self) -> str:
        """What the kernel type is called."""

    def params(self) -> tuple[Param, ...]:
        """The parameters in order."""

    def launch(self, target: Target) -> Launch:
        """Geometry for a target."""

    def template(self, target: Target) -> str:
        """The skeleton's file name without `.ptx.j2`."""


class Declarations(ABC):
    """The declarations of a text. Names within a body (`Builder.body`) begin with its prefix."""

    def __init__(self, spec: Spec, target: Target) -> None:
        self.spec = spec
        self.target = target
        self.params: dict[str, Param] = {p.name: p for p in spec.params()}
        self.fragments: dict[str, Fragment] = {}
        self.absent: dict[str, Absent] = {}
        self.registers: dict[str, Reg] = {}
        self.arrays: dict[str, RegArray] = {}
        self.shared_variables: dict[str, Shared] = {}
        self.tables: dict[str, Table] = {}
        self.exposed: dict[str, object] = {}
        self.bodies: dict[str, dict[str, object]] = {}  # prefix -> what a body's skeleton knows, by names without it
        self._named: dict[str, Mapping[str, object]] = {
            "a fragment": self.fragments, "an absent fragment": self.absent, "a register": self.registers,
            "a register array": self.arrays, "exposed": self.exposed,
        }  # fmt: skip
        self._prefix = ""  # of the open body
        self._types: dict[str, str] = {}  # of every declared register, those of arrays included

    def _tell(self, name: str, value: object) -> None:
        """A skeleton knows a value by this name, that of the open body without the prefix; no other has it."""
        full = self._prefix + name
        if sum(full in names for names in self._named.values()) > 1:
            said = " and ".join(kind for kind, names in self._named.items() if full in names)
            raise self._error(f"fragments, registers and exposed values share no names (got {full!r}); it is {said}")
        if self._prefix:
            self.bodies[self._prefix[:-1]][name] = value

    def param(self, name: str) -> Param:
        """The parameter of that name; `IsaError` where the kernel type declares none."""
        if name not in self.params:
            raise self._error(f"parameter {name!r} is not declared; there are {', '.join(self.params)}")
        return self.params[name]

    def known(self, name: str) -> Reg | None:
        """The register of that name, if it is declared."""
        return self.registers.get(self._prefix + name)

    def known_array(self, name: str) -> RegArray | None:
        """The array of that name, if it is declared."""
        return self.arrays.get(self._prefix + name)

    def reg(self, name: str, type: str) -> Reg:
        """Declare one register; `name` without the `%`."""
        self._check_name(name)
        given, name = name, self._prefix + name
        if name in self._types or name in self.arrays:
            raise self._error(f"register %{name} is already declared; pass the register itself to write it again")
        if special_register(f"%{name}") or special_register(f"%{name}.x"):
            raise self._error(f"register %{name}: PTX has a special register of that name; choose another")
        self.registers[name] = Reg(name, type)
        self._types[name] = type
        self._tell(given, self.registers[name])
        return self.registers[name]

    def array(self, name: str, type: str, count: int) -> RegArray:
        """Declare `count` registers `%name0` … of a type; the name must be new."""
        self._check_name(name)
        given, name = name, self._prefix + name
        made = RegArray(name, type, count)
        taken = [n for n in (name, *(reg.name for reg in made)) if n in self._types or n in self.arrays]
        if taken:
            raise self._error(f"register %{taken[0]} is already declared")
        self.arrays[name] = made
        self._types.update((reg.name, type) for reg in made)
        self._tell(given, made)
        return made

    def shared(self, name: str, nbytes: int, align: int = 16, *, dynamic: bool = False) -> Shared:
        """Declare a shared-memory variable of `nbytes`; the one dynamic variable takes its size from the launch."""
        if type(nbytes) is not int or nbytes < 1:
            raise self._error(f"shared variable {name}: must be an int of bytes from 1 on (got {nbytes!r})")
        if type(align) is not int or align < 1 or align & (align - 1):
            raise self._error(f"shared variable {name}: align must be a power of two, in bytes (got {align!r})")
        if not dynamic:
            name = self._prefix + name
        elif self._prefix and name in self.shared_variables and self.shared_variables[name].dynamic:
            nbytes = max(nbytes, self.shared_variables.pop(name).bytes)
        if name in self.shared_variables:
            raise self._error(f"shared variable {name} is already declared")
        self.shared_variables[name] = Shared(name, nbytes, align, dynamic)
        return self.shared_variables[name]

    def table(self, name: str, type: str, values: Iterable[int | float]) -> Table:
        """Declare constants in global memory, aligned to 16 bytes; the name is prefixed with the entry's."""
        if name in self.tables:
            raise self._error(f"table {name} is already declared")
        self.tables[name] = Table(f"{self.spec.kernel_name}_{name}", type, tuple(values))
        return self.tables[name]

    def room(self, name: str, nbytes: int) -> Table:
        """Declare global memory of the module that kernels write, at a multiple of 128 bytes; zeros when it is loaded.

        It is shared by all launches of the module. The name is prefixed with the entry's.
        """
        if name in self.tables:
            raise self._error(f"table {name} is already declared")
        self.tables[name] = Table(f"{self.spec.kernel_name}_{name}", "b8", (), nbytes)
        return self.tables[name]

    def expose(self, **values: object) -> None:
        """Give the template values under these names (unroll counts to print, names of variants)."""
        for name, value in values.items():
            self.exposed[self._prefix + name] = value
            self._tell(name, value)

    def _check_name(self, name: str) -> None:
        if not (name.isascii() and name.isidentifier()):
            raise self._error(f"register: a name is letters, digits and _, no digit first (got {name!r})")

    @abstractmethod
    def _error(self, what: str) -> IsaError:
        """An error that names the kernel, the fragment, and the lines that called."""
