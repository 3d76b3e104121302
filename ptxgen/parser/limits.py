"""How much one declaration may ask for: what no GPU has is refused before anything is made of it."""

from __future__ import annotations

from ptxgen.errors import IsaError
from ptxgen.nodes import Variable

MOST_REGISTERS = 1 << 18  # of one declaration %r<n>, and of an entry; compilers name tens of thousands
MOST_MODIFIERS = 64  # of an instruction; PTX ISA 9.0 has some fifteen
MOST_NESTED = 100  # scopes within scopes, and brackets within brackets
MOST_NUMBERS = 3  # of a directive such as .maxntid
MOST_DIGITS = 20  # of a whole number: it has 64 bits at most
MOST_FINDINGS = 200  # that are written out of one text
MOST_BLOCKS = 20_000  # of an entry and what it calls: LLVM takes half a millisecond for each
MOST_ALIGNMENT = 1 << 20
MOST_PARAMETERS = 32764  # bytes (PTX ISA 9.0, "Kernel Function Parameters"), so not more of them either
MOST_BYTES = {
    "local": 512 << 10,  # of a thread (CUDA C++ Programming Guide, "Technical Specifications")
    "shared": 1 << 20,  # more than any CTA has
    "const": 1 << 20,
    "param": 1 << 16,
    "global": 1 << 38,  # more than any GPU has
}
_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}  # of a type, by the digits in its name; 16x2 has 4


def within(variable: Variable) -> Variable:
    """The variable itself. Raises `IsaError` where it asks for more than there can be."""
    name, align = variable.name, variable.align
    if variable.count * max(variable.vector, 1) > MOST_REGISTERS:
        got = _brief(variable.count * max(variable.vector, 1))
        raise IsaError(f"{name}: at most {MOST_REGISTERS:,} registers in one declaration (got {got})")
    if align and (align > MOST_ALIGNMENT or align & (align - 1)):
        raise IsaError(f"{name}: .align must be a power of two up to {MOST_ALIGNMENT:,} (got {_brief(align)})")
    if not variable.dims and variable.space == "reg":
        return variable  # most declarations by far
    if any(extent < 0 for extent in variable.dims):
        raise IsaError(f"{name}: an array has 0 elements or more (got {_brief(min(variable.dims))})")
    most = MOST_BYTES.get(variable.space.partition("[")[0])
    if most is not None and bytes_of(variable) > most:
        raise IsaError(f"{name}: at most {most:,} bytes of .{variable.space} memory (got {_brief(bytes_of(variable))})")
    return variable


def whole(digits: str, what: str) -> int:
    """The number that decimal digits are, of a declaration or directive. Raises `IsaError` for more than 64 bits."""
    if len(digits) > MOST_DIGITS:
        raise IsaError(f"{what}: a number has at most {MOST_DIGITS} digits (got {len(digits):,})")
    return int(digits)


def bytes_of(variable: Variable) -> int:
    """Bytes of a declaration; of a type that is not known, what a byte each would take."""
    digits = "".join(char for char in variable.type.partition("x")[0] if char.isdigit())
    size = _BYTES.get(digits, 1) * max(variable.vector, 1)
    for extent in variable.dims:
        size *= extent
    return size


def _brief(number: int) -> str:
    return f"{number:,}" if number.bit_length() < 128 else f"a number of {number.bit_length()} bits"
