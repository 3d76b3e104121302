"""The product of one mma.sync, or of eight columns of one wgmma, from fragment registers in memory."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.runtime.cpu.native.ir import Code, indices, vec
from ptxgen.runtime.cpu.support import support


@dataclass(frozen=True, slots=True)
class Element:
    """An operand type of mma: what its tiles are computed in, how many k a register holds, the register's type.

    `depth` is the elements of a row that a tile of a register has, `tiles` the widenings that give its tiles: of
    nibbles the even ones and the odd ones. Bits stay in words.
    """

    compute: str
    per_register: int
    depth: int
    tiles: tuple[str, ...]
    register: str = "b32"


ELEMENTS = {
    "f16": Element("float", 8, 8, ("f16",)), "bf16": Element("float", 8, 8, ("bf16",)),
    "tf32": Element("float", 4, 4, ("tf32",)), "e4m3": Element("float", 16, 16, ("e4m3",)),
    "e5m2": Element("float", 16, 16, ("e5m2",)), "s8": Element("i32", 16, 16, ("s8",)),
    "u8": Element("i32", 16, 16, ("u8",)), "s4": Element("i32", 32, 16, ("s4even", "s4odd")),
    "u4": Element("i32", 32, 16, ("u4even", "u4odd")), "b1": Element("i32", 128, 4, ("",)),
    "f64": Element("double", 4, 4, ("",), "f64"),
}  # fmt: skip
# accumulators: the type of their registers, the LLVM type of one
ACCUMULATORS = {"f32": ("f32", "float"), "f16": ("b32", "i32"), "s32": ("b32", "i32"), "f64": ("f64", "double")}
_FUNCTION = {"float": "f32", "i32": "s32", "double": "f64"}
_WEAVE = indices([32 * (n % 2) + n // 2 for n in range(64)])
_EVEN, _ODD = indices(list(range(0, 64, 2))), indices(list(range(1, 64, 2)))


@support("tiles")
def tiles(d: str, a: str, b: str, c_type: str, shape: str, *options: str) -> str:
    """`tiles.D.A.B.C.mMkK[.satfinite][.minus][.and|.xor](a…, b…, c…, d…)`: pointers to the registers of all lanes.

    `minus` takes a·b away. Eight rows of a by eight columns of b at a time; a saturating sum of integers adds c last.
    `and` and `xor` are what bits are combined by, and then counted.
    """
    m, k = map(int, shape[1:].split("k"))
    element = ELEMENTS[a]
    halves, steps = m // 8, k // element.per_register
    counts = (halves * steps, steps, *(halves * (1 if kind == "f16" else 2) for kind in (c_type, d)))
    pointers = [[f"%{name}{n}" for n in range(count)] for name, count in zip("abcd", counts, strict=True)]
    head = ", ".join(f"ptr {pointer}" for group in pointers for pointer in group)
    c = Code(f"define internal void @{'.'.join(['tiles', d, a, b, c_type, shape, *options])}({head}) noinline")
    b_tiles = [_widened(c, b, pointer) for pointer in pointers[1]]
    sums, tile = vec(element.compute, 64), vec(element.compute, 8 * element.depth)
    how = next((option for option in options if option in ("and", "xor")), _FUNCTION[element.compute])
    results = []
    for half in range(halves):
        start = _accumulator(c, c_type, half, pointers[2])
        total = "zeroinitializer" if "satfinite" in options else start
        for step in range(steps):
            a_tiles = _widened(c, a, pointers[0][halves * step + half])
            for a_tile, b_tile in zip(a_tiles, b_tiles[step], strict=True):
                if "minus" in options:
                    a_tile = c(f"fneg {tile} {a_tile}")
                arguments = f"{sums} {total}, {tile} {a_tile}, {tile} {b_tile}"
                total = c(f"call {sums} @mma.{how}.k{element.depth}({arguments})")
        if "satfinite" in options:
            total = c(f"call {sums} @llvm.sadd.sat.v64i32({sums} {total}, {sums} {start})")
        results.append(total)
    for half, total in enumerate(results):
        _store(c, d, half, pointers[3], total)
    c.ret()
    return c.text()


def _widened(c: Code, kind: str, pointer: str) -> list[str]:
    """A register's elements in the type of the computation, tile by tile."""
    element = ELEMENTS[kind]
    raw = c.load(vec("double" if kind == "f64" else "i32"), pointer, align=64)
    whole = vec(element.compute, 8 * element.depth)
    return [c(f"call {whole} @mma_widen.{tile}({vec('i32')} {raw})") if tile else raw for tile in element.tiles]


def _accumulator(c: Code, kind: str, half: int, pointers: list[str]) -> str:
    """An 8×8 tile of c in the type of the computation, row-major."""
    if kind == "f16":
        raw = c.load(vec("i32"), pointers[half], align=64)
        return c(f"call {vec('float', 64)} @mma_widen.f16({vec('i32')} {raw})")
    element = vec(ACCUMULATORS[kind][1])
    even, odd = (c.load(element, pointers[2 * half + n], align=64) for n in range(2))
    return c(f"shufflevector {element} {even}, {element} {odd}, {_WEAVE}")


def _store(c: Code, kind: str, half: int, pointers: list[str], total: str) -> None:
    if kind == "f16":
        narrow = c(f"fptrunc {vec('float', 64)} {total} to {vec('half', 64)}")
        c.store(vec("i32"), c(f"bitcast {vec('half', 64)} {narrow} to {vec('i32')}"), pointers[half], align=64)
        return
    element = ACCUMULATORS[kind][1]
    whole = vec(element, 64)
    for n, picks in enumerate((_EVEN, _ODD)):
        value = c(f"shufflevector {whole} {total}, {whole} poison, {picks}")
        c.store(vec(element), value, pointers[2 * half + n], align=64)
