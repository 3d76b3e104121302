"""Products of tiles for mma.sync and wgmma, and fragments widened to the type they are computed in."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.runtime.cpu.native.ir import Code, indices, vec
from ptxgen.runtime.cpu.support import support

_COMPUTE = {"f32": "float", "s32": "i32", "f64": "double", "and": "i32", "xor": "i32"}
_FMA = {"float": "llvm.fma.v64f32", "double": "llvm.fma.v64f64"}


@support("mma")
def mma(kind: str, depth: str) -> str:
    """`mma.KIND.kDEPTH(c, a, b)`: c + a·bᵀ, an 8×8 tile; a and b are 8 rows of `depth` elements, k along the row.

    Products of f16, bf16, tf32 and fp8 are exact in f32; the sum over k runs in f32 in ascending order, where the
    hardware adds with an order and a truncation of its own. Integers wrap. `and` and `xor` count the bits of words.
    """
    element, k = _COMPUTE[kind], int(depth[1:])
    acc, tile = vec(element, 64), vec(element, 8 * k)
    c = Code(f"define internal {acc} @mma.{kind}.{depth}({acc} %c, {tile} %a, {tile} %b) noinline")
    if element == "i32":
        return _integer_tile(c, kind, k, acc, tile)
    total = "%c"
    for step in range(k):
        a, b = _columns(c, tile, k, step)
        total = c(f"call {acc} @{_FMA[element]}({acc} {a}, {acc} {b}, {acc} {total})")
    c.ret(f"{acc} {total}")
    return c.text()


@support("transposed")
def transposed() -> str:
    """`transposed(tile)`: rows and columns of an 8×8 tile of 16-bit elements exchanged."""
    tile, halves = vec("i32"), vec("i16", 64)
    c = Code(f"define internal {tile} @transposed({tile} %a) noinline")
    turned = indices([8 * column + row for row in range(8) for column in range(8)])
    flat = c(f"bitcast {tile} %a to {halves}")
    other = c(f"shufflevector {halves} {flat}, {halves} poison, {turned}")
    c.ret(f"{tile} " + c(f"bitcast {halves} {other} to {tile}"))
    return c.text()


@support("rows")
def rows(way: str) -> str:
    """`rows.of_words(p)`, `rows.to_words(p)`: 32 rows of four 32-bit words, and four words of 32 lanes, in place."""
    whole = vec("i32", 128)
    c = Code(f"define internal void @rows.{way}(ptr %p) noinline")
    order = [32 * word + row for row in range(32) for word in range(4)]
    if way == "to_words":
        order = [4 * row + word for word in range(4) for row in range(32)]
    held = c.load(whole, "%p", align=64)
    c.store(whole, c(f"shufflevector {whole} {held}, {whole} poison, {indices(order)}"), "%p", align=64)
    c.ret()
    return c.text()


def _columns(c: Code, tile: str, k: int, step: int) -> tuple[str, str]:
    """Element `step` of a's rows down the tile, and of b's rows across it."""
    down = indices([k * (n // 8) + step for n in range(64)])
    across = indices([k * (n % 8) + step for n in range(64)])
    return (
        c(f"shufflevector {tile} %a, {tile} poison, {down}"),
        c(f"shufflevector {tile} %b, {tile} poison, {across}"),
    )


def _integer_tile(c: Code, kind: str, k: int, acc: str, tile: str) -> str:
    total = "%c"
    for step in range(k):
        a, b = _columns(c, tile, k, step)
        part = c(f"{'mul' if kind == 's32' else kind} {acc} {a}, {b}")
        if kind != "s32":
            part = c(f"call {acc} @llvm.ctpop.v64i32({acc} {part})")
        total = c(f"add {acc} {total}, {part}")
    c.ret(f"{acc} {total}")
    return c.text()


@support("mma_widen")
def widen(kind: str) -> str:
    """`mma_widen.KIND(register)`: all elements of a fragment register, f32 or i32, in the order of their bits."""
    element = "i32" if kind[0] in "su" else "float"
    count = {"tf32": 32, "f16": 64, "bf16": 64}.get(kind, 128)
    whole = vec(element, count)
    c = Code(f"define internal {whole} @mma_widen.{kind}({vec('i32')} %r) noinline")
    c.ret(f"{whole} " + _WIDEN[kind](c))
    return c.text()


def _parts(c: Code, element: str, count: int) -> str:
    return c(f"bitcast {vec('i32')} %r to {vec(element, count)}")


def _f16(c: Code) -> str:
    return c(f"fpext {vec('half', 64)} {_parts(c, 'half', 64)} to {vec('float', 64)}")


def _bf16(c: Code) -> str:
    wide = c(f"zext {vec('i16', 64)} {_parts(c, 'i16', 64)} to {vec('i32', 64)}")
    up = c(f"shl {vec('i32', 64)} {wide}, splat (i32 16)")
    return c(f"bitcast {vec('i32', 64)} {up} to {vec('float', 64)}")


def _tf32(c: Code) -> str:
    """The low 13 bits take no part."""
    kept = c(f"and {vec('i32')} %r, splat (i32 -8192)")
    return c(f"bitcast {vec('i32')} {kept} to {vec('float')}")


def _bytes(c: Code, extend: str) -> str:
    return c(f"{extend} {vec('i8', 128)} {_parts(c, 'i8', 128)} to {vec('i32', 128)}")


def _e4m3(c: Code) -> str:
    """Seven magnitude bits at the top of an f32 whose exponent is then 120 too small; all ones is NaN."""
    i32, f32 = vec("i32", 128), vec("float", 128)
    wide = _bytes(c, "zext")
    magnitude = c(f"and {i32} {wide}, splat (i32 127)")
    small = c(f"bitcast {i32} {c(f'shl {i32} {magnitude}, splat (i32 20)')} to {f32}")
    value = c(f"fmul {f32} {small}, splat (float {_hex_float(2.0**120)})")
    is_nan = c(f"icmp eq {i32} {magnitude}, splat (i32 127)")
    value = c(f"select {vec('i1', 128)} {is_nan}, {f32} splat (float 0x7FF8000000000000), {f32} {value}")
    sign = c(f"shl {i32} {c(f'and {i32} {wide}, splat (i32 128)')}, splat (i32 24)")
    bits = c(f"or {i32} {c(f'bitcast {f32} {value} to {i32}')}, {sign}")
    return c(f"bitcast {i32} {bits} to {f32}")


def _e5m2(c: Code) -> str:
    """The upper byte of an f16."""
    wide = c(f"zext {vec('i8', 128)} {_parts(c, 'i8', 128)} to {vec('i16', 128)}")
    up = c(f"shl {vec('i16', 128)} {wide}, splat (i16 8)")
    half = c(f"bitcast {vec('i16', 128)} {up} to {vec('half', 128)}")
    return c(f"fpext {vec('half', 128)} {half} to {vec('float', 128)}")


def _s8(c: Code) -> str:
    return _bytes(c, "sext")


def _u8(c: Code) -> str:
    return _bytes(c, "zext")


def _nibbles(odd: bool, extend: str) -> Callable[[Code], str]:
    """The even or the odd four bits of each byte."""

    def widened(c: Code) -> str:
        i8 = vec("i8", 128)
        parts, shift = _parts(c, "i8", 128), "ashr" if extend == "sext" else "lshr"
        high = parts if odd else c(f"shl {i8} {parts}, splat (i8 4)")
        return c(f"{extend} {i8} {c(f'{shift} {i8} {high}, splat (i8 4)')} to {vec('i32', 128)}")

    return widened


def _hex_float(value: float) -> str:
    import struct

    return "0x" + struct.pack(">d", value).hex().upper()


_WIDEN = {
    "f16": _f16, "bf16": _bf16, "tf32": _tf32, "e4m3": _e4m3, "e5m2": _e5m2,
    "s8": _s8, "u8": _u8, "s4even": _nibbles(False, "sext"), "s4odd": _nibbles(True, "sext"),
    "u4even": _nibbles(False, "zext"), "u4odd": _nibbles(True, "zext"),
}  # fmt: skip
