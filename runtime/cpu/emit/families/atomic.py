"""atom and red: every operation and type, scalars and vectors, in any space. Scopes need nothing here."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.load_store import address, space_of, synchronise
from ptxgen.runtime.cpu.emit.llvm_types import integer_vector
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import vec
from ptxgen.runtime.cpu.support.access import address_type

_RELEASES = frozenset({"release", "acq_rel", "sc"})
_OPERATIONS = ("add", "and", "or", "xor", "exch", "cas", "inc", "dec", "min", "max")


def _emit(e: Emitter, op: Op, place: Source, sources: list[Source]) -> list[str]:
    """The old values, one for each element of the vector."""
    if not isinstance(place, nodes.Address):
        raise e.error(f"operand {place}: must be an address")
    kind, space = _type_of(op), space_of(op.words)
    operation = next((w for w in op.words[1:] if w in _OPERATIONS), "")
    if not operation or space in ("const", "param", "local"):
        raise e.unsupported()
    bits = bits_of(kind)
    vector = integer_vector(bits)
    rows = [list(s.items) if isinstance(s, nodes.Vector) else [s] for s in sources]
    synchronise(e, op, "before", place)
    addresses, offset = address(e, place, space)
    mask, found = e.exec_mask(), []
    late = e.check and op.words[0] == "red" and space == "global" and bits <= 64 and not _RELEASES & set(op.words)
    for number, row in enumerate(zip(*rows, strict=True)):
        values = "".join(f", {vector} {e.src(item, f'b{bits}')}" for item in row)
        name = f"atom.{space}.{operation}.{kind}{'.late' if late else e.suffix}"
        head = f"ptr %w, {vec(address_type(space))} {addresses}, i64 {offset + number * bits // 8}, i32 {mask}"
        size = len(rows[0]) * bits // 8 if number == 0 else bits // 8
        found.append(e.c(f"call {vector} @{name}({head}, i32 {e.new_site()}, i32 {size}{values})"))
    synchronise(e, op, "after", place)
    return found


def _type_of(op: Op) -> str:
    """Last, but for vectors of floats: there the ISA's text has the operation behind it, and nvcc before it."""
    return next(word for word in reversed(op.words) if word not in ("add", "min", "max", "noftz"))


def _sources(op: Op, first: int) -> list[Source]:
    """The values; a cache policy may follow them."""
    return list(op.operands[first : first + (2 if "cas" in op.words else 1)])


@emits("atom")
def atom(e: Emitter, op: Op) -> None:
    """d = [a]; [a] = op([a], b, c), indivisibly."""
    target = op.operands[0]
    targets = list(target.items) if isinstance(target, nodes.Vector) else [target]
    values = _emit(e, op, op.operands[1], _sources(op, 2))
    kind = f"b{bits_of(_type_of(op))}"
    for one, value in zip(targets, values, strict=True):
        e.dst(one, value, kind)


@emits("red", outputs=0)
def red(e: Emitter, op: Op) -> None:
    """[a] = op([a], b), indivisibly."""
    _emit(e, op, op.operands[0], _sources(op, 1))
