"""Boxes of tensor maps: where their elements lie in global and in shared memory, and moving them.

A box lies row by row in shared memory, innermost dimension first; a swizzle exchanges bits of its addresses: bits 4-6
by 7-9 (128 bytes), 4-5 by 7-8 (64), 4 by 7 (32). Elements outside of the array arrive as zeros or NaN, and are not
stored. PTX ISA, "Tensors".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ptxgen.foreign.map_fields import MAGIC, OFFSET
from ptxgen.runtime.arrays.tensormap import BEGIN_ALIGN, MAP_BYTES
from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import LAUNCH, THREAD, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_ALIGN, FAULT_ASSERT, FAULT_COORDINATE
from ptxgen.runtime.cpu.support.mbarrier import checking

DIMENSIONS = 5
_CHUNK = 16  # bytes that a swizzle moves as one
_CHUNK_TYPE = "<16 x i8>"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a box in native code: names of i64 values. Bytes [low, high) of it are in the array."""

    shared: str  # offset of its first byte from the box's
    source: str  # address in global memory of the first byte, in the array or not
    low: str
    high: str


def _field(c: Code, name: str, kind: str, index: int = 0) -> str:
    """A field of the map `%map` as an i64."""
    size = int(kind[1:]) // 8
    value = c.load(kind, "%map", OFFSET[name] + size * index, align=1)
    return value if kind == "i64" else c(f"zext {kind} {value} to i64")


def _counts(c: Code) -> list[str]:
    """Elements of the box by dimension, skipped ones not counted."""
    counts = []
    for d in range(DIMENSIONS):
        box, step = _at_least_1(c, _field(c, "box", "i16", d)), _at_least_1(c, _field(c, "steps", "i8", d))
        total = c(f"add i64 {box}, {c(f'sub i64 {step}, 1')}")
        counts.append(c(f"udiv i64 {total}, {step}"))
    return counts


def _at_least_1(c: Code, value: str) -> str:
    """What kernels make of zeros by tensormap.replace has 0 in the dimensions that it lacks."""
    return c(f"call i64 @llvm.umax.i64(i64 {value}, i64 1)")


def _row_bytes(c: Code) -> str:
    return c(f"mul i64 {_field(c, 'box', 'i16')}, {_field(c, 'element', 'i8')}")


def each_row(c: Code, coordinates: str, body: Callable[[Row], None]) -> None:
    """Emit `body` for every row of the box at the i32 `coordinates` (a pointer, innermost first)."""
    counts, element = _counts(c), _field(c, "element", "i8")
    at = [c(f"sext i32 {c.load('i32', coordinates, 4 * d)} to i64") for d in range(DIMENSIONS)]
    rank, row_bytes = _field(c, "rank", "i8"), _row_bytes(c)
    base = c(f"add i64 {_field(c, 'address', 'i64')}, {c(f'mul i64 {at[0]}, {element}')}")
    size = c(f"add i64 {_field(c, 'last', 'i32')}, 1")
    low, high = (_clamped(c, value, counts[0]) for value in (c(f"sub i64 0, {at[0]}"), c(f"sub i64 {size}, {at[0]}")))
    rows = counts[1]
    for count in counts[2:]:
        rows = c(f"mul i64 {rows}, {count}")
    with c.count("i64", rows) as number:
        rest, place, inside = number, base, "true"
        for d in range(1, DIMENSIONS):
            here = c(f"urem i64 {rest}, {counts[d]}")
            rest = c(f"udiv i64 {rest}, {counts[d]}")
            moved = c(f"mul i64 {here}, {_field(c, 'steps', 'i8', d)}")
            coordinate = c(f"add i64 {at[d]}, {moved}")
            place = c(f"add i64 {place}, {c(f'mul i64 {coordinate}, {_stride(c, d)}')}")
            fits = c(f"icmp ule i64 {coordinate}, {_field(c, 'last', 'i32', d)}")
            unused = c(f"icmp ule i64 {rank}, {d}")
            inside = c(f"and i1 {inside}, {c(f'or i1 {fits}, {unused}')}")
        ends = [c(f"mul i64 {c(f'select i1 {inside}, i64 {end}, i64 0')}, {element}") for end in (low, high)]
        body(Row(c(f"mul i64 {number}, {row_bytes}"), place, *ends))


def _stride(c: Code, d: int) -> str:
    return _field(c, "strides", "i64", d)


def _clamped(c: Code, value: str, most: str) -> str:
    """Within 0 … most."""
    return c(f"call i64 @llvm.smin.i64(i64 {c(f'call i64 @llvm.smax.i64(i64 {value}, i64 0)')}, i64 {most})")


def _swizzled(c: Code, offset: str) -> str:
    """Where the 16 bytes at an offset of a box lie; the box is aligned to 128 bytes at the window offset `%target`."""
    mode = _field(c, "swizzle", "i8")
    bits = c(f"sub i64 {c(f'shl i64 1, {mode}')}, 1")
    address = c(f"add i64 %target, {offset}")
    turned = c(f"and i64 {c(f'lshr i64 {address}, 7')}, {bits}")
    return c(f"xor i64 {offset}, {c(f'shl i64 {turned}, 4')}")


def each_chunk(c: Code, row: Row, body: Callable[[str, str, str, str], None]) -> None:
    """Emit `body(pointer of 16 bytes of the box, their first byte in the row, first and last byte to move)`."""
    with c.count("i64", c(f"lshr i64 {_row_bytes(c)}, 4")) as number:
        begin = c(f"shl i64 {number}, 4")
        end = c(f"add i64 {begin}, {_CHUNK}")
        first = c(f"call i64 @llvm.umax.i64(i64 {row.low}, i64 {begin})")
        last = c(f"call i64 @llvm.umin.i64(i64 {row.high}, i64 {end})")
        place = _swizzled(c, c(f"add i64 {row.shared}, {begin}"))
        body(c.at("%box", place), begin, first, c(f"call i64 @llvm.umax.i64(i64 {last}, i64 {first})"))


@support("box")
def box(what: str) -> str:
    """`box.map`, `.bytes`, `.begin`, `.reach`, `.gather`, `.scatter`: see each."""
    return {
        "map": _map, "bytes": _bytes, "begin": _begin, "reach": _reach, "gather": _gather, "scatter": _scatter,
    }[what]()  # fmt: skip


def _map() -> str:
    """`box.map(w, site, lane, address, rank) -> ptr`: the map, or null after a fault."""
    c = Code("define internal ptr @box.map(ptr %w, i32 %site, i32 %lane, i64 %address, i64 %rank) noinline")
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    block = c(f"ptrtoint ptr {c.load('ptr', launch, LAUNCH['params'])} to i64")
    offset = c(f"sub i64 %address, {block}")  # parameters are aligned among themselves, wherever the host keeps them
    passed = c(f"icmp ult i64 {offset}, {c.load('i64', launch, LAUNCH['param_bytes'])}")
    low = c(f"and i64 {c(f'select i1 {passed}, i64 {offset}, i64 %address')}, 63")
    bit = c("shl i32 1, %lane")
    with c.if_(c(f"icmp ne i64 {low}, 0"), likely=False):
        c.do(f"call void @fault(ptr %w, i32 %site, i32 {FAULT_ALIGN}, i32 {bit}, i32 64, i64 %address, i64 0)")
        c.ret("ptr null", when="true")
    map_ = c(f"call ptr @reach.generic(ptr %w, i32 %site, i32 %lane, i64 %address, i64 {MAP_BYTES}, i64 1)")
    c.ret("ptr null", when=c(f"icmp eq ptr {map_}, null"))
    magic = c.load("i64", map_, OFFSET["magic"], align=1)
    rank = c(f"zext i8 {c.load('i8', map_, OFFSET['rank'])} to i64")
    known = c(f"and i1 {c(f'icmp eq i64 {magic}, {MAGIC}')}, {c(f'icmp eq i64 {rank}, %rank')}")
    with c.if_(c(f"xor i1 {known}, true"), likely=False):
        tail = f"i32 {bit}, i32 {MAP_BYTES}, i64 %address, i64 0"
        c.do(f"call void @fault(ptr %w, i32 %site, i32 {FAULT_ASSERT}, {tail})")
        c.ret("ptr null", when="true")
    c.ret(f"ptr {map_}")
    return c.text()


def _bytes() -> str:
    """`box.bytes(map) -> i64`: bytes of a box in shared memory."""
    c = Code("define internal i64 @box.bytes(ptr %map) noinline")
    total = _row_bytes(c)
    for count in _counts(c)[1:]:
        total = c(f"mul i64 {total}, {count}")
    c.ret(f"i64 {total}")
    return c.text()


def _begin() -> str:
    """`box.begin(w, site, lane, map, coordinates, reads) -> i1`: whether a GPU copies a box that begins there.

    It ends with an illegal instruction where the innermost coordinate is no multiple of 16 bytes (an H200 does; the
    manuals do not say so), or where a store or a reduction begins before the array (CUDA Programming Guide, "Negative
    indices and out of bounds"). The fault holds the bytes of an element, the coordinate (address) and its dimension.
    """
    c = Code("define internal i1 @box.begin(ptr %w, i32 %site, i32 %lane, ptr %map, ptr %at, i1 %reads) noinline")
    element = _field(c, "element", "i8")
    for d in range(DIMENSIONS):
        coordinate = c(f"sext i32 {c.load('i32', '%at', 4 * d)} to i64")
        before = c(f"icmp slt i64 {coordinate}, 0")
        wrong = c(f"and i1 {before}, {c('xor i1 %reads, true')}")
        if d == 0:
            rest = c(f"and i64 {c(f'mul i64 {coordinate}, {element}')}, {BEGIN_ALIGN - 1}")
            wrong = c(f"or i1 {wrong}, {c(f'icmp ne i64 {rest}, 0')}")
        with c.if_(wrong, likely=False):
            tail = f"i32 {c('shl i32 1, %lane')}, i32 {c(f'trunc i64 {element} to i32')}, i64 {coordinate}, i64 {d}"
            c.do(f"call void @fault(ptr %w, i32 %site, i32 {FAULT_COORDINATE}, {tail})")
            c.ret("i1 false", when="true")
    c.ret("i1 true")
    return c.text()


def _reach() -> str:
    """`box.reach(w, site, lane, map, coordinates, reads) -> i1`: every row's part of the array may be read, of which
    check mode is told; or without `reads`, may be written."""
    c = Code("define internal i1 @box.reach(ptr %w, i32 %site, i32 %lane, ptr %map, ptr %at, i1 %reads) noinline")
    element = _field(c, "element", "i8")

    def look(row: Row) -> None:
        length = c(f"sub i64 {row.high}, {row.low}")
        with c.if_(c(f"icmp sgt i64 {length}, 0")):
            start = c(f"add i64 {row.source}, {row.low}")
            head = "ptr %w, i32 %site, i32 %lane"
            with c.if_("%reads"):
                there = c(f"call ptr @reach.global({head}, i64 {start}, i64 {length}, i64 {element})")
                c.ret("i1 false", when=c(f"icmp eq ptr {there}, null"))
                with c.if_(checking(c)):
                    bytes_ = c(f"trunc i64 {length} to i32")
                    c.do(f"call void @shadow.read.global({head}, i32 {bytes_}, ptr {there}, i64 {start}, i64 {length})")
            with c.else_():
                there = c(f"call ptr @reach.global.write({head}, i64 {start}, i64 {length}, i64 {element})")
                c.ret("i1 false", when=c(f"icmp eq ptr {there}, null"))

    each_row(c, "%at", look)
    c.ret("i1 true")
    return c.text()


def _gather() -> str:
    """`box.gather(map, at, target, box)`: a box into shared memory, `target` being its window offset."""
    c = Code("define internal void @box.gather(ptr %map, ptr %at, i64 %target, ptr %box) noinline")
    held = c.var(_CHUNK_TYPE, align=_CHUNK)
    fill = c.var(_CHUNK_TYPE, "zeroinitializer", align=_CHUNK)
    with c.if_(c(f"icmp ne i64 {_field(c, 'nan', 'i8')}, 0")):
        c.store(_CHUNK_TYPE, "splat (i8 -1)", fill, align=_CHUNK)
        element = _field(c, "element", "i8")
        with c.count("i64", c(f"udiv i64 {_CHUNK}, {element}")) as number:  # no signs: the positive NaN of all ones
            after = c(f"mul i64 {c(f'add i64 {number}, 1')}, {element}")
            c.store("i8", 127, fill, c(f"sub i64 {after}, 1"))

    def move(row: Row) -> None:
        def chunk(pointer: str, begin: str, first: str, last: str) -> None:
            c.store(_CHUNK_TYPE, c.load(_CHUNK_TYPE, fill, align=_CHUNK), held, align=_CHUNK)
            source = c(f"inttoptr i64 {c(f'add i64 {row.source}, {first}')} to ptr")
            to = c.at(held, c(f"sub i64 {first}, {begin}"))
            with c.if_(c(f"icmp ult i64 {first}, {last}")):
                c.move(to, source, c(f"sub i64 {last}, {first}"))
            c.store(_CHUNK_TYPE, c.load(_CHUNK_TYPE, held, align=_CHUNK), pointer, align=_CHUNK)

        each_chunk(c, row, chunk)

    each_row(c, "%at", move)
    c.ret()
    return c.text()


def _scatter() -> str:
    """`box.scatter(w, site, lane, map, at, target, box)`: a box out of shared memory."""
    c = Code(
        "define internal void @box.scatter(ptr %w, i32 %site, i32 %lane, ptr %map, ptr %at, i64 %target, ptr %box) "
        "noinline"
    )

    def move(row: Row) -> None:
        def chunk(pointer: str, begin: str, first: str, last: str) -> None:
            with c.if_(c(f"icmp ult i64 {first}, {last}")):
                to = c(f"inttoptr i64 {c(f'add i64 {row.source}, {first}')} to ptr")
                source = c.at(pointer, c(f"sub i64 {first}, {begin}"))
                c.move(to, source, c(f"sub i64 {last}, {first}"))

        tell_written(c, row, "write")
        each_chunk(c, row, chunk)

    each_row(c, "%at", move)
    c.ret()
    return c.text()


def tell_written(c: Code, row: Row, how: str) -> None:
    with c.if_(checking(c)):
        length = c(f"sub i64 {row.high}, {row.low}")
        with c.if_(c(f"icmp sgt i64 {length}, 0")):
            start = c(f"add i64 {row.source}, {row.low}")
            head = "ptr %w, i32 %site, i32 %lane"
            there = c(f"call ptr @resolve.global.write({head}, i64 {start}, i64 {length})")
            bytes_ = c(f"trunc i64 {length} to i32")
            c.do(f"call void @shadow.{how}.global({head}, i32 {bytes_}, ptr {there}, i64 {start}, i64 {length})")
