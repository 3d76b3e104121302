"""Matrix descriptors of wgmma: where eight rows of 16 bytes lie in shared memory, swizzled or not.

Descriptor: bits 0-13 start address / 16, 16-29 leading byte offset / 16 (LBO), 32-45 stride byte offset / 16 (SBO),
62-63 swizzle (0 none, 1 of 128 bytes, 2 of 64, 3 of 32). The swizzle exchanges address bits: 128 bytes: 4-6 by 7-9, 64:
4-5 by 7-8, 32: 4 by 7. PTX ISA, "Shared Memory Matrix Layout", "Matrix Descriptor Format".
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.native.layout import ASYNC, ASYNC_PRODUCT, CTA, SHARED_BASE, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.async_copy import moved_by
from ptxgen.runtime.cpu.support.mbarrier import checking


@support("wgmma_block")
def block(major: str) -> str:
    """`wgmma_block.k|mn(w, site, descriptor, group, step)`: rows 8·group … of the operand's M or N, 16 bytes of k from
    16·step on; `mn`: elements of 16 bits whose rows run along M or N in memory."""
    c = Code(
        f"define internal {vec('i32')} @wgmma_block.{major}(ptr %w, i32 %site, i64 %descriptor, i32 %group, i32 %step) "
        "noinline"
    )
    start, leading, stride = (_bytes(c, shift) for shift in (0, 16, 32))
    mode = c("lshr i64 %descriptor, 62")
    group, step = c("zext i32 %group to i64"), c("zext i32 %step to i64")
    width = c(f"select i1 {c(f'icmp eq i64 {mode}, 0')}, i64 16, i64 {c(f'lshr i64 256, {mode}')}")
    out = c.var(vec("i8", 128), "zeroinitializer", align=64)
    if major == "k":
        _k_major(c, out, start, leading, stride, mode, width, group, step)
    else:
        _mn_major(c, out, start, leading, stride, mode, width, group, step)
    c.ret(f"{vec('i32')} " + c.load(vec("i32"), out, align=64))
    return c.text()


@support("wgmma_tiles")
def tiles(major: str, d: str, a: str, b: str, shape: str, *options: str) -> str:
    """`wgmma_tiles.MAJOR.D.A.B.mMkK…(w, site, descriptor, groups, a0, …, a3, places, keep)`: the product of this warp's
    16 rows, by groups of eight columns. `a0` …: pointers to a's registers; `places`: i32 offsets of d's registers from
    w, in order; `keep`, an i1: their sums so far are added to. Words from D on as in `tiles`."""
    name = ".".join(["wgmma_tiles", major, d, a, b, shape, *options])
    a_regs = [f"ptr %a{n}" for n in range(4)]
    c = Code(f"define internal void @{name}(ptr %w, i32 %site, i64 %descriptor, i32 %groups, {', '.join(a_regs)}, "
             "ptr %places, i1 %keep) noinline")  # fmt: skip
    register, per_group = vec("i32"), 2 if d == "f16" else 4
    zero = c.var(register, "zeroinitializer", align=64)
    b_regs = [c.var(register, align=64) for _ in range(2)]
    with c.count("i32", "%groups") as group:
        for step, pointer in enumerate(b_regs):
            block = f"@wgmma_block.{major}(ptr %w, i32 %site, i64 %descriptor, i32 {group}, i32 {step})"
            c.store(register, c(f"call {register} {block}"), pointer, align=64)
        first = c(f"mul i32 {group}, {per_group}")
        sums = []
        for n in range(per_group):
            place = c(f"getelementptr i32, ptr %places, i32 {c(f'add i32 {first}, {n}')}")
            sums.append(c(f"getelementptr i8, ptr %w, i32 {c.load('i32', place)}"))
        before = [c(f"select i1 %keep, ptr {pointer}, ptr {zero}") for pointer in sums]
        pointers = [*a_regs, *(f"ptr {pointer}" for pointer in [*b_regs, *before, *sums])]
        c.do(f"call void @{'.'.join(['tiles', d, a, b, d, shape, *options])}({', '.join(pointers)})")
    c.ret()
    return c.text()


@support("wgmma_later")
def later(a: str, b: str, columns: str) -> str:
    """`wgmma_later.A.B.N(w, site, a, b)`: check mode: a product of the open group will read its operands until it is
    waited for. `A`, `B`: as in `wgmma_block`, or `registers`; `N`: the columns."""
    c = Code(f"define internal void @wgmma_later.{a}.{b}.{columns}(ptr %w, i32 %site, i64 %a, i64 %b) noinline")
    group = c(f"add i32 {c.load('i32', '%w', WARP['wgmma_committed'])}, 1")
    c.do(
        f"call void @async.append(ptr %w, i32 {ASYNC_PRODUCT}, i32 %site, i32 0, i64 %a, ptr null, "
        f"ptr {c('inttoptr i64 %b to ptr')}, i64 0, ptr null, i32 {group})"
    )
    record, cta = moved_by(c, f"wgmma_again.{a}.{b}.{columns}"), c.load("ptr", "%w", WARP["cta"])
    now = c(f"add i32 {c.load('i32', cta, CTA['epoch'])}, 1")
    c.store("i32", now, cta, CTA["epoch"])
    c.store("i32", now, record, ASYNC["count"])  # what was written before has an earlier stamp
    c.ret()
    return c.text()


@support("wgmma_again")
def again(a: str, b: str, columns: str) -> str:
    """`wgmma_again.A.B.N(record)`: the operands are read once more: writes since are found, ordered or not."""
    c = Code(f"define internal void @wgmma_again.{a}.{b}.{columns}(ptr %record) noinline")
    w = c.load("ptr", "%record", ASYNC["warp"])
    head = f"ptr {w}, i32 {c.load('i32', '%record', ASYNC['site'])}"
    there = c.load("i64", "%record", ASYNC["address"]), c.load("i64", "%record", ASYNC["source"])
    warp = c(f"and i32 {c.load('i32', w, WARP['id'])}, 3")
    first = c(f"shl i32 {warp}, 1")
    c.store("i32", c.load("i32", "%record", ASYNC["count"]), w, WARP["wgmma_since"])
    ranges = [] if a == "registers" else [(a, there[0], first, 2)]
    for major, descriptor, begin, count in [*ranges, (b, there[1], "0", int(columns) // 8)]:
        with c.count("i32", c(f"add i32 {begin}, {count}"), begin) as group:
            for step in range(2):
                c(f"call {vec('i32')} @wgmma_block.{major}({head}, i64 {descriptor}, i32 {group}, i32 {step})")
    c.store("i32", 0, w, WARP["wgmma_since"])
    c.ret()
    return c.text()


def _bytes(c: Code, shift: int) -> str:
    field = c(f"and i64 {c(f'lshr i64 %descriptor, {shift}')}, 16383")
    return c(f"shl i64 {field}, 4")


def _mul(c: Code, a: str, b: str) -> str:
    return c(f"mul i64 {a}, {b}")


def _swizzled(c: Code, address: str, mode: str) -> str:
    """The address with its bits exchanged as the mode says."""
    bits = c(f"select i1 {c(f'icmp eq i64 {mode}, 0')}, i64 0, i64 {c(f'lshr i64 14, {mode}')}")  # 7, 3, 1
    turned = c(f"and i64 {c(f'lshr i64 {address}, 7')}, {bits}")
    return c(f"xor i64 {address}, {c(f'shl i64 {turned}, 4')}")


def _reach(c: Code, address: str, size: int) -> str:
    pointer = c(f"call ptr @reach.shared(ptr %w, i32 %site, i32 0, i64 {address}, i64 {size}, i64 {size})")
    c.ret(f"{vec('i32')} zeroinitializer", when=c(f"icmp eq ptr {pointer}, null"))
    with c.if_(checking(c)):
        head = f"ptr %w, i32 %site, i32 32, i32 {size}"  # on behalf of all lanes
        since = c.load("i32", "%w", WARP["wgmma_since"])
        with c.if_(c(f"icmp ne i32 {since}, 0")):
            where = f"ptr {pointer}, i64 {address}, i64 {size}, i64 {c(f'sub i64 {address}, {SHARED_BASE}')}"
            c.do(f"call void @proxy.kept({head}, {where}, i32 {since})")
        c.do(f"call void @shadow.fetch.shared({head}, ptr {pointer}, i64 {address}, i64 {size})")
        c.do(f"call void @proxy.read(ptr %w, i64 {c(f'sub i64 {address}, {SHARED_BASE}')}, i64 {size})")
    return pointer


def _k_major(
    c: Code, out: str, start: str, leading: str, stride: str, mode: str, width: str, group: str, step: str
) -> None:
    """Row r of the group at r · width; the second 16 bytes beside the first, or LBO away without a swizzle."""
    beside = c(f"select i1 {c(f'icmp eq i64 {mode}, 0')}, i64 {leading}, i64 16")
    row_group = c(f"add i64 {start}, {_mul(c, group, stride)}")
    base = c(f"add i64 {row_group}, {_mul(c, step, beside)}")
    with c.count("i64", 8) as row:
        linear = c(f"add i64 {base}, {_mul(c, row, width)}")
        pointer = _reach(c, _swizzled(c, linear, mode), 16)
        c.store(vec("i8", 16), c.load(vec("i8", 16), pointer, align=16), c.at(out, c(f"shl i64 {row}, 4")), align=16)


def _mn_major(
    c: Code, out: str, start: str, leading: str, stride: str, mode: str, width: str, group: str, step: str
) -> None:
    """Eight values of k, `width` bytes apart, each a run of M or N. Runs follow each other LBO apart and blocks of
    eight k SBO apart; without a swizzle it is the other way round."""
    plain = c(f"icmp eq i64 {mode}, 0")
    next_run = c(f"select i1 {plain}, i64 {stride}, i64 {leading}")
    next_block = c(f"select i1 {plain}, i64 {leading}, i64 {stride}")
    offset = c(f"shl i64 {group}, 4")  # bytes along M or N
    run, within = c(f"udiv i64 {offset}, {width}"), c(f"urem i64 {offset}, {width}")
    base = c(f"add i64 {c(f'add i64 {start}, {within}')}, {_mul(c, run, next_run)}")
    base = c(f"add i64 {base}, {_mul(c, step, next_block)}")
    with c.count("i64", 8) as k:
        linear = c(f"add i64 {base}, {_mul(c, k, width)}")
        pointer = _reach(c, _swizzled(c, linear, mode), 16)
        values = c.load(vec("i16", 8), pointer, align=16)
        for row in range(8):
            place = c(f"add i64 {c(f'shl i64 {k}, 1')}, {16 * row}")
            c.store("i16", c(f"extractelement {vec('i16', 8)} {values}, i32 {row}"), c.at(out, place))
