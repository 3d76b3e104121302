"""ldmatrix, stmatrix, movmatrix and mma.sync. The products are in `support/tiles.py`.

A fragment register of all lanes is an 8-row tile in row-major order: lane 4·g + q holds row g and the q-th 32 bits of
it (PTX ISA, "Matrix Fragments for mma"). So a fragment is a bitcast, and A and B tiles are rows along k alike.
"""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.foreign.order import in_order
from ptxgen.isa import lookup
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.load_store import address, space_of
from ptxgen.runtime.cpu.emit.llvm_types import vector_of
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import vec
from ptxgen.runtime.cpu.support.access import address_type
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT
from ptxgen.runtime.cpu.support.tiles import ACCUMULATORS, ELEMENTS

_I32 = vec("i32")


def _transpose(e: Emitter, tile: str) -> str:
    """An 8×8 tile of 16-bit elements, rows and columns exchanged."""
    return e.c(f"call {_I32} @transposed({_I32} {tile})")


def known(e: Emitter, op: Op) -> None:
    """Refuses products that PTX does not have: the tiles would compute something like them, such as other columns."""
    if "sp" in op.words:
        raise e.unsupported()
    lookup(in_order(".".join(op.words)))  # libraries write .satfinite last


def whole_warp(e: Emitter) -> None:
    """An .aligned instruction to which all lanes of the warp give something: none may have exited."""
    e.converge("-1")
    if e.check:
        whole = e.c(f"icmp eq i32 {e.mask}, -1")
        e.fault_if(e.c(f"select i1 {whole}, i32 0, i32 {e.mask}"), FAULT_ASSERT, remark="all 32 lanes must take part")


@emits("movmatrix", converges=True)
def movmatrix(e: Emitter, op: Op) -> None:
    """d = the 8×8 tile a, transposed."""
    if op.words[3:] != ("m8n8", "trans", "b16"):
        raise e.unsupported()
    whole_warp(e)
    e.dst(op.operands[0], _transpose(e, e.src(op.operands[1], "b32")), "b32")


def _tiles(e: Emitter, op: Op, operand: Source) -> list[Source]:
    count = next(int(w[1:]) for w in op.words if w in ("x1", "x2", "x4"))
    items: list[Source] = list(operand.items) if isinstance(operand, nodes.Vector) else [operand]
    if "m8n8" not in op.words or op.words[-1] != "b16":
        raise e.unsupported()
    if len(items) != count:
        raise e.error(f"operand {operand}: must have {count} registers")
    return items


def _row_access(e: Emitter, op: Op, operand: Source, count: int, verb: str) -> str:
    """The head of a call that moves a 16-byte row for each of the first 8·count lanes."""
    if not isinstance(operand, nodes.Address):
        raise e.error(f"operand {operand}: must be an address")
    space = space_of(op.words)
    addresses, offset = address(e, operand, space)
    rows = e.c(f"and i32 {e.mask}, {(1 << 8 * count) - 1}")
    name = f"{verb}.{space}.v4.b32{'.collective' if e.check else ''}"
    return (
        f"call void @{name}(ptr %w, {vec(address_type(space))} {addresses}, i64 {offset}, "
        f"i32 {rows}, i32 {e.new_site()}, ptr {e.scratch})"
    )


@emits("ldmatrix", converges=True)
def ldmatrix(e: Emitter, op: Op) -> None:
    """Tiles from rows in shared memory: lane 8·i + r gives the address of row r of tile i."""
    targets = _tiles(e, op, op.operands[0])
    whole_warp(e)
    e.c.do(_row_access(e, op, op.operands[1], len(targets), "ld"))
    e.c.do(f"call void @rows.of_words(ptr {e.scratch})")
    for n, target in enumerate(targets):
        tile = e.c.load(_I32, e.scratch, 128 * n, align=64)
        e.dst(target, _transpose(e, tile) if "trans" in op.words else tile, "b32")


@emits("stmatrix", outputs=0, converges=True)
def stmatrix(e: Emitter, op: Op) -> None:
    """Tiles to rows in shared memory; addresses as in ldmatrix."""
    sources = _tiles(e, op, op.operands[1])
    whole_warp(e)
    for n in range(4):
        tile = e.src(sources[min(n, len(sources) - 1)], "b32")
        e.c.store(_I32, _transpose(e, tile) if "trans" in op.words else tile, e.scratch, 128 * n, align=64)
    e.c.do(f"call void @rows.to_words(ptr {e.scratch})")
    e.c.do(_row_access(e, op, op.operands[0], len(sources), "st"))


@emits("mma.sync.aligned", converges=True)
def mma(e: Emitter, op: Op) -> None:
    """d = a·b + c; of bits, how many are left of `a and b`, or of `a xor b`."""
    known(e, op)
    words = [w for w in op.words[3:] if w not in ("row", "col", "satfinite", "kind::f8f6f4", "and", "xor", "popc")]
    shape, d_type, a_type, b_type, c_type = _shape(e, op, words)
    a_regs, b_regs, c_regs = (items_of(operand) for operand in op.operands[1:4])
    element = ELEMENTS[a_type]
    steps = shape[2] // element.per_register
    if len(a_regs) != shape[0] // 8 * steps or len(b_regs) != steps:
        raise e.unsupported()
    whole_warp(e)
    held = [(reg, element.register) for reg in (*a_regs, *b_regs)]
    held += [(reg, ACCUMULATORS[c_type][0]) for reg in c_regs]
    pointers = [lanes_in_memory(e, reg, kind, 256 * n) for n, (reg, kind) in enumerate(held)]
    options = "".join(f".{word}" for word in ("satfinite", "and", "xor") if word in op.words)
    name = f"tiles.{d_type}.{a_type}.{b_type}.{c_type}.m{shape[0]}k{shape[2]}{options}"
    product(e, name, pointers, items_of(op.operands[0]))


def product(e: Emitter, name: str, pointers: list[str], targets: tuple[Source, ...]) -> None:
    """Call a function of `support/tiles.py`. All lanes are here, so it may write to the register file itself."""
    regs = [e.reg(target) for target in targets]
    into = [e.overwrite(reg) if reg is not None else e.scratch for reg in regs]
    e.c.do(f"call void @{name}({', '.join(f'ptr {pointer}' for pointer in [*pointers, *into])})")


def lanes_in_memory(e: Emitter, operand: Source, kind: str, place: int) -> str:
    """Pointer to all lanes of an operand: in the register file, or else at this place in the scratch block."""
    reg = e.reg(operand)
    pointer = e.in_file(reg) if reg is not None and reg.bits == bits_of(kind) else ""
    if not pointer:
        pointer = e.c.at(e.scratch, place)
        e.c.store(vector_of(kind), e.src(operand, kind), pointer, align=64)
    return pointer


def _shape(e: Emitter, op: Op, words: list[str]) -> tuple[tuple[int, int, int], str, str, str, str]:
    """((m, n, k), types of d, a, b, c); forms with other layouts are refused by name."""
    shape, *types = words
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    known = len(types) == 4 and types[1] in ELEMENTS and types[2] in ELEMENTS and types[0] in ACCUMULATORS
    # m8n8k4.f16 is Volta's: quad pairs, another layout altogether
    if not known or (int(m) == 8 and types[1] == "f16") or op.words[4] == "col" or op.words[5:6] == ("row",):
        raise e.unsupported()
    d, a, b, c = types
    return (int(m), int(n), int(k)), d, a, b, c


def items_of(operand: Source) -> tuple[Source, ...]:
    """The registers in braces, or the one register."""
    if isinstance(operand, nodes.Vector):
        return operand.items
    return (operand,)
