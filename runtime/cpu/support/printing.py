"""`vprintf`: the host prints, lane by lane, while the kernel runs."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.native.layout import LAUNCH, LOCAL_WINDOW, THREAD, WARP, WINDOW_SHIFT
from ptxgen.runtime.cpu.support import support


@support("printf")
def printf(*_: str) -> str:
    """`printf(w, site, mask, format, arguments)`: what the host's function returned, by lane.

    The host gets the format's address, and of the arguments the address and the bytes that the lane has there.
    """
    i32, i64 = vec("i32"), vec("i64")
    c = Code(f"define internal {i32} @printf(ptr %w, i32 %site, i32 %m, {i64} %f, {i64} %a) cold noinline")
    formats, places = (c.var(i64, align=64) for _ in range(2))
    results = c.var(i32, align=64)
    c.store(i64, "%f", formats)
    c.store(i64, "%a", places)
    c.store(i32, splat("i32", 0), results)
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    host = c.load("ptr", launch, LAUNCH["print"])
    stride = c.load("i64", launch, LAUNCH["local_stride"])
    with c.each_bit("%m") as lane:
        format_, place = (c.load("i64", c(f"getelementptr i64, ptr {slot}, i32 {lane}")) for slot in (formats, places))
        pointer, size = c.var("i64", place), c.var("i64", 0)
        c.store("i64", place, pointer)
        c.store("i64", 0, size)
        window = c(f"lshr i64 {place}, {WINDOW_SHIFT}")
        with c.if_(c(f"icmp eq i64 {window}, {LOCAL_WINDOW >> WINDOW_SHIFT}")):
            found = c(f"call ptr @resolve.generic(ptr %w, i32 %site, i32 {lane}, i64 {place}, i64 1)")
            c.store("i64", c(f"ptrtoint ptr {found} to i64"), pointer)
            offset = c(f"and i64 {place}, {(1 << WINDOW_SHIFT) - 1}")
            c.store("i64", c(f"sub i64 {stride}, {offset}"), size)
        said = c(f"call i32 {host}(i64 {format_}, i64 {c.load('i64', pointer)}, i64 {c.load('i64', size)})")
        c.store("i32", said, c(f"getelementptr i32, ptr {results}, i32 {lane}"))
    c.ret(f"{i32} {c.load(i32, results, align=64)}")
    return c.text()
