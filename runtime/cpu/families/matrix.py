"""ldmatrix, stmatrix, movmatrix and mma.sync. The tile products are in `support/matrix.py`.

A fragment register of all lanes is an 8-row tile in row-major order: lane 4·g + q holds row g and the q-th 32 bits of
it (PTX ISA, "Matrix Fragments for mma"). So a fragment is a bitcast, and A and B tiles are rows along k alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen import nodes
from ptxgen.runtime.cpu.emitter import Emitter
from ptxgen.runtime.cpu.families.memory import address, space_of
from ptxgen.runtime.cpu.flow import Op, Source
from ptxgen.runtime.cpu.ir import indices, vec
from ptxgen.runtime.cpu.registry import emits
from ptxgen.runtime.cpu.support.memory import address_type

_I32, _HALVES = vec("i32"), vec("i16", 64)
_TRANSPOSED = indices([8 * column + row for row in range(8) for column in range(8)])
_WORDS = vec("i32", 128)
_ROWS_OF_WORDS = indices([32 * word + row for row in range(32) for word in range(4)])
_WORDS_OF_ROWS = indices([4 * row + word for word in range(4) for row in range(32)])
_WEAVE = indices([32 * (n % 2) + n // 2 for n in range(64)])
_EVEN, _ODD = indices(list(range(0, 64, 2))), indices(list(range(1, 64, 2)))


def _transpose(e: Emitter, tile: str) -> str:
    """An 8×8 tile of 16-bit elements, rows and columns exchanged."""
    halves = e.c(f"bitcast {_I32} {tile} to {_HALVES}")
    turned = e.c(f"shufflevector {_HALVES} {halves}, {_HALVES} poison, {_TRANSPOSED}")
    return e.c(f"bitcast {_HALVES} {turned} to {_I32}")


def _whole_warp(e: Emitter) -> None:
    """An .aligned instruction: all lanes that have not exited."""
    e.converge("-1")


@emits("movmatrix", converges=True)
def movmatrix(e: Emitter, op: Op) -> None:
    """d = the 8×8 tile a, transposed."""
    if op.words[3:] != ("m8n8", "trans", "b16"):
        raise e.unsupported()
    _whole_warp(e)
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
    _whole_warp(e)
    e.c.do(_row_access(e, op, op.operands[1], len(targets), "ld"))
    words = e.c.load(_WORDS, e.scratch, align=64)
    e.c.store(_WORDS, e.c(f"shufflevector {_WORDS} {words}, {_WORDS} poison, {_ROWS_OF_WORDS}"), e.scratch, align=64)
    for n, target in enumerate(targets):
        tile = e.c.load(_I32, e.scratch, 128 * n, align=64)
        e.dst(target, _transpose(e, tile) if "trans" in op.words else tile, "b32")


@emits("stmatrix", outputs=0, converges=True)
def stmatrix(e: Emitter, op: Op) -> None:
    """Tiles to rows in shared memory; addresses as in ldmatrix."""
    sources = _tiles(e, op, op.operands[1])
    _whole_warp(e)
    for n in range(4):
        tile = e.src(sources[min(n, len(sources) - 1)], "b32")
        e.c.store(_I32, _transpose(e, tile) if "trans" in op.words else tile, e.scratch, 128 * n, align=64)
    words = e.c.load(_WORDS, e.scratch, align=64)
    e.c.store(_WORDS, e.c(f"shufflevector {_WORDS} {words}, {_WORDS} poison, {_WORDS_OF_ROWS}"), e.scratch, align=64)
    e.c.do(_row_access(e, op, op.operands[0], len(sources), "st"))


@dataclass(frozen=True, slots=True)
class Element:
    """An operand type of mma: what its tiles are computed in, how many k a register holds, bits a register."""

    compute: str
    per_register: int
    register: str = "b32"


ELEMENTS = {
    "f16": Element("float", 8), "bf16": Element("float", 8), "tf32": Element("float", 4),
    "e4m3": Element("float", 16), "e5m2": Element("float", 16), "s8": Element("i32", 16), "u8": Element("i32", 16),
    "f64": Element("double", 4, "f64"),
}  # fmt: skip


@emits("mma.sync.aligned", converges=True)
def mma(e: Emitter, op: Op) -> None:
    """d = a·b + c, tile by tile: 8 rows of a and 8 columns of b at a time."""
    words = [w for w in op.words[3:] if w not in ("row", "col", "satfinite", "kind::f8f6f4")]
    shape, d_type, a_type, b_type, c_type = _shape(e, op, words)
    a_regs, b_regs, c_regs = (list(items_of(operand)) for operand in op.operands[1:4])
    element, other = ELEMENTS[a_type], ELEMENTS[b_type]
    halves = shape[0] // 8
    steps = shape[2] // element.per_register
    if len(a_regs) != halves * steps or len(b_regs) != steps:
        raise e.unsupported()
    _whole_warp(e)
    b_tiles = [widen(e, reg, b_type, other) for reg in b_regs]
    results = []
    for half in range(halves):
        a_tiles = [widen(e, a_regs[halves * step + half], a_type, element) for step in range(steps)]
        start = accumulator(e, c_regs, half, c_type)
        results.append(sum_of_tiles(e, element, start, a_tiles, b_tiles, "satfinite" in op.words))
    targets = list(items_of(op.operands[0]))
    for half, total in enumerate(results):
        store_accumulator(e, targets, half, total, d_type)


def sum_of_tiles(
    e: Emitter, element: Element, start: str, a_tiles: list[str], b_tiles: list[str], saturates: bool
) -> str:
    """start + Σ a·bᵀ, all 8×8 results; a saturating sum of integers adds the start last, to the exact products."""
    suffix = {"float": "f32", "i32": "s32", "double": "f64"}[element.compute]
    sums, tile = vec(element.compute, 64), vec(element.compute, 8 * element.per_register)
    total = "zeroinitializer" if saturates else start
    for a_tile, b_tile in zip(a_tiles, b_tiles, strict=True):
        arguments = f"{sums} {total}, {tile} {a_tile}, {tile} {b_tile}"
        total = e.c(f"call {sums} @mma.{suffix}.k{element.per_register}({arguments})")
    return e.c(f"call {sums} @llvm.sadd.sat.v64i32({sums} {total}, {sums} {start})") if saturates else total


def _shape(e: Emitter, op: Op, words: list[str]) -> tuple[tuple[int, int, int], str, str, str, str]:
    """((m, n, k), types of d, a, b, c); forms with other layouts are refused by name."""
    shape, *types = words
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    known = len(types) == 4 and types[1] in ELEMENTS and types[2] in ELEMENTS and types[0] in _ACCUMULATORS
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


def widen(e: Emitter, reg: Source, kind: str, element: Element) -> str:
    """A fragment register as a tile in the type of the computation."""
    if kind == "f64":
        return e.src(reg, "f64")
    return widen_value(e, e.src(reg, "b32"), kind, element)


def widen_value(e: Emitter, value: str, kind: str, element: Element) -> str:
    """The same from 8 rows of 16 bytes, `<32 x i32>`."""
    whole = vec(element.compute, 8 * element.per_register)
    return e.c(f"call {whole} @mma_widen.{kind}({_I32} {value})")


_ACCUMULATORS = {"f32": "float", "f16": "float", "s32": "i32", "f64": "double"}


def accumulator(e: Emitter, regs: list[Source], half: int, kind: str) -> str:
    """An 8×8 tile of c in the type of the computation, row-major."""
    if kind == "f16":
        return e.c(f"call {vec('float', 64)} @mma_widen.f16({_I32} {e.src(regs[half], 'b32')})")
    element = vec(_ACCUMULATORS[kind])
    even, odd = (e.src(regs[2 * half + n], "b32" if kind == "s32" else kind) for n in range(2))
    return e.c(f"shufflevector {element} {even}, {element} {odd}, {_WEAVE}")


def store_accumulator(e: Emitter, targets: list[Source], half: int, total: str, kind: str) -> None:
    if kind == "f16":
        narrow = e.c(f"fptrunc {vec('float', 64)} {total} to {vec('half', 64)}")
        e.dst(targets[half], e.c(f"bitcast {vec('half', 64)} {narrow} to {_I32}"), "b32")
        return
    whole = vec(_ACCUMULATORS[kind], 64)
    for n, picks in enumerate((_EVEN, _ODD)):
        value = e.c(f"shufflevector {whole} {total}, {whole} poison, {picks}")
        e.dst(targets[2 * half + n], value, "b32" if kind == "s32" else kind)
