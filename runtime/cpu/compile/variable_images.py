"""The initial bytes of a module's own variables (`.global`, `.const`), and the pointers to fill in. Owns no memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.flow.calls import function_address
from ptxgen.runtime.cpu.flow.flow import module_variables
from ptxgen.runtime.cpu.flow.symbols import bits_of, variable_align, variable_bytes

MOST_BYTES = 4 << 30  # of a module's variables, which the executor allocates when it is loaded


@dataclass(frozen=True, slots=True)
class GlobalVariable:
    """A variable's image, up to its last byte that is not 0.

    `addresses` are (offset, symbol number, addend) of pointers to fill in.
    """

    name: str
    space: str
    size: int
    align: int
    image: bytes
    addresses: tuple[tuple[int, int, int], ...] = ()


def describe(module: nodes.Module) -> list[GlobalVariable]:
    """Every variable of the module, by symbol number; those in shared memory have no image."""
    variables = module_variables(module)
    numbers = {variable.name: number for number, variable in enumerate(variables)}
    found, total = [], 0
    for variable in variables:
        size = variable_bytes(variable)
        total += size if variable.space in ("global", "const") else 0
        if total > MOST_BYTES:
            said = f"the variables of a module have {MOST_BYTES:,} bytes at most on the CPU executor (got {total:,})"
            raise IsaError(module.finding(variable.line, said))
        step = bits_of(variable.type, variable.line) // 8
        initialised = len(variable.init or ()) * step
        image, addresses = bytearray(initialised if variable.space in ("global", "const") else 0), []
        for position, item in enumerate(variable.init or ()):
            if isinstance(item, nodes.Immediate):
                image[position * step : (position + 1) * step] = _encoded(item, variable.type, step)
            elif isinstance(item, nodes.Symbol) and function_address(module, item.name) is not None:
                image[position * step : (position + 1) * step] = _pointer(module, item.name, step)
            elif isinstance(item, nodes.Symbol) and item.name in numbers:
                addresses.append((position * step, numbers[item.name], item.offset))
            else:
                raise IsaError(
                    module.refusal(variable.line, f"initialiser {item} is not supported by the CPU executor")
                )
        shown = bytes(image).rstrip(b"\0")
        found.append(
            GlobalVariable(variable.name, variable.space, size, variable_align(variable), shown, tuple(addresses))
        )
    return found


def _pointer(module: nodes.Module, name: str, step: int) -> bytes:
    return (function_address(module, name) or 0).to_bytes(8, "little")[:step]


def _encoded(item: nodes.Immediate, kind: str, step: int) -> bytes:
    if kind in ("f32", "f64", "f16"):
        return struct.pack({"f32": "<f", "f64": "<d", "f16": "<e"}[kind], float(item.value))
    value = item.value
    if isinstance(value, float):  # the bit pattern of a float in an untyped array
        return struct.pack("<f" if step == 4 else "<d", value)
    return (int(value) & ((1 << 8 * step) - 1)).to_bytes(step, "little")
