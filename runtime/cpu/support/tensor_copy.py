"""Bulk tensor copies and reductions of one lane in tile mode; what a box is, is in `tensor_boxes.py`.

PTX ISA, "Data Movement and Conversion Instructions: Tensor copy".
"""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.foreign.map_fields import OFFSET
from ptxgen.runtime.arrays.tensormap import DATA_TYPES, MAP_BYTES
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import ASYNC, ASYNC_COPY, ASYNC_OUT, RANK_SHIFT, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.async_copy import moved_by
from ptxgen.runtime.cpu.support.atomic import modify
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT
from ptxgen.runtime.cpu.support.mbarrier import checking
from ptxgen.runtime.cpu.support.tensor_boxes import DIMENSIONS, Row, each_chunk, each_row, tell_written

_ALIGN = 128  # of a box in shared memory
# what a box may be reduced by -> the element types that it takes (PTX ISA, "cp.reduce.async.bulk.tensor")
REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f32", "f16", "bf16"), "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",),
    "and": ("u32", "u64"), "or": ("u32", "u64"), "xor": ("u32", "u64"),
}  # fmt: skip


@support("tensor")
def tensor(what: str, *options: str) -> str:
    """`tensor.load`, `.store`, `.publish`, `.reduce.OP`, and what lands them in check mode: `.arrive`, `.leave`,
    `.reduced.OP`."""
    if what in ("reduce", "reduced"):
        return (_reduce if what == "reduce" else _reduced)(*options)
    return {"arrive": _arrive, "leave": _leave, "load": _load, "publish": _publish, "store": _store}[what]()


def _landing(name: str) -> tuple[Code, str, str]:
    """(a function that `async.land` calls with a record, arguments of the box: map, coordinates, offset, pointer)."""
    c = Code(f"define internal void @tensor.{name}(ptr %record) noinline")
    map_, at = c.load("ptr", "%record", ASYNC["source"]), c.at("%record", ASYNC["coordinates"])
    target = c.load("i64", "%record", ASYNC["address"])
    box = c.load("ptr", "%record", ASYNC["target"])
    return c, f"ptr {map_}, ptr {at}, i64 {target}, ptr {box}", target


def _arrive() -> str:
    """`tensor.arrive(record)`: the box of a load arrives."""
    c, box, _ = _landing("arrive")
    c.do(f"call void @box.gather({box})")
    c.ret()
    return c.text()


def _leave() -> str:
    """`tensor.leave(record)`: the box of a store leaves shared memory."""
    c, box, _ = _landing("leave")
    site, lane = (c.load("i32", "%record", ASYNC[name]) for name in ("site", "lane"))
    c.do(f"call void @box.scatter(ptr {c.load('ptr', '%record', ASYNC['warp'])}, i32 {site}, i32 {lane}, {box})")
    c.ret()
    return c.text()


_HEAD = "ptr %w, i32 %map_site, i32 %shared_site, i32 %lane, i64 %map, i64 %shared"
_COORDINATES = ", ".join(f"i32 %c{d}" for d in range(DIMENSIONS))


def _begun(name: str, head: str, reads: bool) -> tuple[Code, str, str, str]:
    """(code that has looked at its operands and returned where they are wrong, the map, coordinates, bytes)."""
    c = Code(f"define internal void @tensor.{name}({head}, i64 %rank, {_COORDINATES}) noinline")
    at = c.var(f"[{DIMENSIONS} x i32]", align=4)
    for d in range(DIMENSIONS):
        c.store("i32", f"%c{d}", at, 4 * d)
    map_ = c("call ptr @box.map(ptr %w, i32 %map_site, i32 %lane, i64 %map, i64 %rank)")
    c.ret(when=c(f"icmp eq ptr {map_}, null"))
    flag = "true" if reads else "false"
    for what in ("begin", "reach"):
        fine = c(f"call i1 @box.{what}(ptr %w, i32 %map_site, i32 %lane, ptr {map_}, ptr {at}, i1 {flag})")
        c.ret(when=c(f"xor i1 {fine}, true"))
    return c, map_, at, c(f"call i64 @box.bytes(ptr {map_})")


def _load() -> str:
    """`tensor.load(w, map_site, shared_site, lane, map, shared, bar, ranks, rank, coordinates)`; `ranks`: CTAs of the
    cluster that get the box, and whose mbarrier counts its bytes; 0: as the addresses say."""
    c, map_, at, size = _begun("load", _HEAD + ", i64 %bar, i32 %ranks", True)
    with c.if_(c("icmp eq i32 %ranks, 0")):
        _load_one(c, map_, at, size, "%shared", "%bar")
    with c.else_(), c.each_bit("%ranks") as rank:
        plus_one = c(f"add i32 {rank}, 1")
        field = c(f"shl i64 {c(f'zext i32 {plus_one} to i64')}, {RANK_SHIFT}")
        there = [c(f"or i64 {c(f'and i64 {name}, {(1 << RANK_SHIFT) - 1}')}, {field}") for name in ("%shared", "%bar")]
        _load_one(c, map_, at, size, *there)
    c.ret()
    return c.text()


def _load_one(c: Code, map_: str, at: str, size: str, shared: str, bar: str) -> None:
    head = "ptr %w, i32 %shared_site, i32 %lane"
    box = c(f"call ptr @reach.shared({head}, i64 {shared}, i64 {size}, i64 {_ALIGN})")
    c.ret(when=c(f"icmp eq ptr {box}, null"))
    object_ = c(f"call ptr @mbarrier.check({head}, i64 {bar})")
    c.ret(when=c(f"icmp eq ptr {object_}, null"))
    with c.if_(checking(c)):  # the asynchronous proxy must see its initialisation
        c.do(f"call void @shadow.fetch.shared({head}, i32 8, ptr {object_}, i64 {bar}, i64 8)")
        _later(c, ASYNC_COPY, "arrive", (map_, at, shared, box, size, object_))
    with c.else_():
        c.do(f"call void @box.gather(ptr {map_}, ptr {at}, i64 {shared}, ptr {box})")
        c(f"call i64 @mbarrier.apply(ptr %w, ptr {object_}, i64 0, i64 {c(f'sub i64 0, {size}')}, i64 0)")


def _later(c: Code, kind: int, landing: str, what: tuple[str, str, str, str, str, str]) -> None:
    """Queue a copy that `tensor.LANDING` makes when somebody waits for it."""
    map_, at, shared, box, size, object_ = what
    groups = c.at("%w", WARP["bulk_group"])
    group = c.load("i32", c(f"getelementptr i32, ptr {groups}, i32 %lane"))
    c.do(
        f"call void @async.append(ptr %w, i32 {kind}, i32 %shared_site, i32 %lane, i64 {shared}, ptr {box}, "
        f"ptr {map_}, i64 {size}, ptr {object_}, i32 {group})"
    )
    record = moved_by(c, f"tensor.{landing}")
    c.move(c.at(record, ASYNC["coordinates"]), at, 4 * DIMENSIONS)


def _publish() -> str:
    """`tensor.publish(w, to_site, from_site, lane, to, from)`: a map from shared to global memory."""
    sites = "i32 %to_site, i32 %from_site, i32 %lane, i64 %to, i64 %from"
    c = Code(f"define internal void @tensor.publish(ptr %w, {sites}) noinline")
    size = f"i64 {MAP_BYTES}, i64 64"
    source = c(f"call ptr @reach.shared(ptr %w, i32 %from_site, i32 %lane, i64 %from, {size})")
    c.ret(when=c(f"icmp eq ptr {source}, null"))
    with c.if_(checking(c)):
        head = f"ptr %w, i32 %from_site, i32 %lane, i32 {MAP_BYTES}"
        c.do(f"call void @shadow.read.shared({head}, ptr {source}, i64 %from, i64 {MAP_BYTES})")
    to = c(f"call ptr @reach.global.write(ptr %w, i32 %to_site, i32 %lane, i64 %to, {size})")
    c.ret(when=c(f"icmp eq ptr {to}, null"))
    c.move(to, source, MAP_BYTES)
    c.ret()
    return c.text()


def _source_box(c: Code, size: str) -> str:
    """The box in shared memory that a store or a reduction reads; returns where it is none."""
    head = "ptr %w, i32 %shared_site, i32 %lane"
    box = c(f"call ptr @reach.shared({head}, i64 %shared, i64 {size}, i64 {_ALIGN})")
    c.ret(when=c(f"icmp eq ptr {box}, null"))
    with c.if_(checking(c)):
        bytes_ = c(f"trunc i64 {size} to i32")
        c.do(f"call void @shadow.fetch.shared({head}, i32 {bytes_}, ptr {box}, i64 %shared, i64 {size})")
    return box


def _store() -> str:
    """`tensor.store(w, map_site, shared_site, lane, map, shared, rank, coordinates)`."""
    c, map_, at, size = _begun("store", _HEAD, False)
    box = _source_box(c, size)
    with c.if_(checking(c)):
        _later(c, ASYNC_OUT, "leave", (map_, at, "%shared", box, size, "null"))
    with c.else_():
        where = "ptr %w, i32 %map_site, i32 %lane"
        c.do(f"call void @box.scatter({where}, ptr {map_}, ptr {at}, i64 %shared, ptr {box})")
    c.ret()
    return c.text()


def _reduce(operation: str) -> str:
    """`tensor.reduce.OP(w, map_site, shared_site, lane, map, shared, rank, coordinates)`: every element of the array
    that the box covers is combined with the box's."""
    c, map_, at, size = _begun(f"reduce.{operation}", _HEAD, False)
    box = _source_box(c, size)

    def combine_now(kind: str) -> None:
        with c.if_(checking(c)):
            _later(c, ASYNC_OUT, f"reduced.{operation}", (map_, at, "%shared", box, size, "null"))
        with c.else_():
            head = f"ptr %w, i32 %map_site, i32 %lane, ptr {map_}, ptr {at}, i64 %shared, ptr {box}"
            c.do(f"call void @tensor_combine.{operation}.{kind}({head})")

    _by_type(c, operation, map_, combine_now)
    bit = c("shl i32 1, %lane")
    tail = f"i32 {bit}, i32 {MAP_BYTES}, i64 %map, i64 0"
    c.do(f"call void @fault(ptr %w, i32 %map_site, i32 {FAULT_ASSERT}, {tail})")
    c.ret()
    return c.text()


def _by_type(c: Code, operation: str, map_: str, body: Callable[[str], None]) -> None:
    """Emit `body(kind)` and a return for each type of elements that the map may have."""
    number = c.load("i8", map_, OFFSET["dtype"])
    for kind in REDUCTIONS[operation]:
        with c.if_(c(f"icmp eq i8 {number}, {DATA_TYPES[kind]}")):
            body(kind)
            c.ret(when="true")


def _reduced(operation: str) -> str:
    """`tensor.reduced.OP(record)`: the array's elements get the box of a reduction."""
    c, box, _ = _landing(f"reduced.{operation}")
    site, lane = (c.load("i32", "%record", ASYNC[name]) for name in ("site", "lane"))
    where = f"ptr {c.load('ptr', '%record', ASYNC['warp'])}, i32 {site}, i32 {lane}"
    _by_type(c, operation, c.load("ptr", "%record", ASYNC["source"]),
             lambda kind: c.do(f"call void @tensor_combine.{operation}.{kind}({where}, {box})"))  # fmt: skip
    c.ret()
    return c.text()


@support("tensor_combine")
def combine(operation: str, kind: str) -> str:
    """`tensor_combine.OP.TYPE(w, site, lane, map, at, target, box)`."""
    c = Code(
        f"define internal void @tensor_combine.{operation}.{kind}(ptr %w, i32 %site, i32 %lane, ptr %map, ptr %at, "
        "i64 %target, ptr %box) noinline"
    )
    bytes_ = bits_of(kind) // 8

    def move(row: Row) -> None:
        def chunk(pointer: str, begin: str, first: str, last: str) -> None:
            count = c(f"udiv i64 {c(f'sub i64 {last}, {first}')}, {bytes_}")
            with c.count("i64", count) as number:
                here = c(f"add i64 {first}, {c(f'mul i64 {number}, {bytes_}')}")
                to = c(f"inttoptr i64 {c(f'add i64 {row.source}, {here}')} to ptr")
                value = c.load(f"i{8 * bytes_}", c.at(pointer, c(f"sub i64 {here}, {begin}")))
                modify(c, operation, kind, to, value)

        tell_written(c, row, "atomic")
        each_chunk(c, row, chunk)

    each_row(c, "%at", move)
    c.ret()
    return c.text()
