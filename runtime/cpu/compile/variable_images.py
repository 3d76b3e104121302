"""The initial bytes of a module's own variables (`.global`, `.const`), and the pointers to fill in. Owns no memory."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.flow.calls import function_address
from ptxgen.runtime.cpu.flow.flow import module_variables
from ptxgen.runtime.cpu.flow.symbols import bits_of, pointed, unsupported, variable_align, variable_bytes

MOST_BYTES = 4 << 30  # of a module's variables, which the executor allocates when it is loaded


@dataclass(frozen=True, slots=True)
class GlobalVariable:
    """A variable's image, up to its last byte that is not 0.

    `addresses` are (offset, symbol number, addend) of pointers to fill in; `bytes_of` are (offset, symbol number,
    addend, shift) of one byte of a pointer.
    """

    name: str
    space: str
    size: int
    align: int
    image: bytes
    addresses: tuple[tuple[int, int, int], ...] = ()
    bytes_of: tuple[tuple[int, int, int, int], ...] = ()


def describe(module: nodes.Module) -> list[GlobalVariable]:
    """Every variable of the module, by symbol number; those in shared memory, and those that the executor lacks, have
    no image: an entry that names such a one is refused."""
    variables = module_variables(module)
    numbers = {variable.name: number for number, variable in enumerate(variables)}
    functions: dict[str, int | None] = {}
    found, total = [], 0
    for variable in variables:
        if unsupported(variable):
            found.append(GlobalVariable(variable.name, variable.space, 0, 1, b""))
            continue
        size = variable_bytes(variable)
        total += size if variable.space in ("global", "const") else 0
        if total > MOST_BYTES:
            said = f"the variables of a module have {MOST_BYTES:,} bytes at most on the CPU executor (got {total:,})"
            raise IsaError(module.finding(variable.line, said))
        image, addresses, pieces = _image(module, variable, numbers, functions)
        if variable.space not in ("global", "const"):
            image = b""
        shown = image.rstrip(b"\0")
        found.append(
            GlobalVariable(
                variable.name, variable.space, size, variable_align(variable), shown, tuple(addresses), tuple(pieces)
            )
        )
    return found


def _image(
    module: nodes.Module, variable: nodes.Variable, numbers: dict[str, int], functions: dict[str, int | None]
) -> tuple[bytes, list[tuple[int, int, int]], list[tuple[int, int, int, int]]]:
    """The bytes that are initialised, and the pointers among them; `functions` keeps what was looked up."""
    items = variable.init or ()
    step = bits_of(variable.type, variable.line) // 8
    image = _of_literals(items, variable.type, step)
    if image is not None:
        return image, [], []
    parts: list[bytes] = []
    addresses, pieces = [], []
    for position, item in enumerate(items):
        place = pointed(item) if isinstance(item, nodes.Symbol) else None
        name = place.name if place else ""
        if name and name not in functions:
            functions[name] = function_address(module, name)
        if isinstance(item, nodes.Immediate):
            parts.append(_encoded(item, variable.type, step))
        elif name and (address := functions[name]) is not None:
            parts.append(address.to_bytes(8, "little")[:step])
        elif place and name in numbers:
            if place.mask:
                shift = (place.mask & -place.mask).bit_length() - 1
                pieces.append((position, numbers[name], place.offset, shift))
            else:
                addresses.append((position * step, numbers[name], place.offset))
            parts.append(bytes(step))
        else:
            said = f"initialiser {item} is not supported by the CPU executor"
            raise IsaError(module.refusal(variable.line, said))
    return b"".join(parts), addresses, pieces


def _of_literals(items: tuple[nodes.Operand, ...], kind: str, step: int) -> bytes | None:
    """The bytes of what compilers write in large tables, integers or bit patterns alone; None for anything else."""
    if not all(type(item) is nodes.Immediate for item in items):
        return None
    texts = [item.text for item in items]  # type: ignore[union-attr]
    with suppress(ValueError, OverflowError, FloatingPointError):
        pattern = {("f32", 4): "0f", ("b32", 4): "0f", ("f64", 8): "0d", ("b64", 8): "0d"}.get((kind, step), "")
        if pattern and all(len(text) == 2 + 2 * step and text[:2].lower() == pattern for text in texts):
            patterns = bytes.fromhex("".join(text[2:] for text in texts))
            return np.frombuffer(patterns, f">u{step}").astype(f"<u{step}").tobytes()
        if kind in ("f32", "f64") and all("." in text for text in texts):
            with np.errstate(over="raise"):
                return np.array(list(map(float, texts))).astype(f"<f{step}").tobytes()
        if kind[0] != "f" and step < 16:
            values = [int(text, 0) for text in texts]
            wide = np.array(values, np.int64 if min(values, default=0) < 0 else np.uint64)
            return wide.astype(f"<u{step}").tobytes()
    return None


def _encoded(item: nodes.Immediate, kind: str, step: int) -> bytes:
    if kind in ("f32", "f64", "f16"):
        return struct.pack({"f32": "<f", "f64": "<d", "f16": "<e"}[kind], float(item.value))
    value = item.value
    if isinstance(value, float):  # the bit pattern of a float in an untyped array
        return struct.pack("<f" if step == 4 else "<d", value)
    return (int(value) & ((1 << 8 * step) - 1)).to_bytes(step, "little")
