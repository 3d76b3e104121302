"""Exchanges between the 32 lanes: permutation, match, reductions over member masks."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, lanes_of, splat, vec
from ptxgen.runtime.cpu.support import support

_I32 = vec("i32")


@support("shuffle")
def shuffle(mode: str) -> str:
    """`shuffle.up|down|bfly|idx(b, c)`: the lane that each lane of a shfl reads, or 32 + itself where that lies outside
    of its segment (PTX ISA, "shfl.sync")."""
    c = Code(f"define internal {_I32} @shuffle.{mode}({_I32} %b, {_I32} %c) noinline")
    lane, five = lanes_of("i32", 1), splat("i32", 31)
    by, clamp = (c(f"and {_I32} {value}, {five}") for value in ("%b", "%c"))
    segment = c(f"and {_I32} {c(f'lshr {_I32} %c, splat (i32 8)')}, {five}")
    free = c(f"xor {_I32} {segment}, {five}")
    lowest = c(f"and {_I32} {lane}, {segment}")
    highest = c(f"or {_I32} {lowest}, {c(f'and {_I32} {clamp}, {free}')}")
    if mode == "idx":
        found = c(f"or {_I32} {lowest}, {c(f'and {_I32} {by}, {free}')}")
    else:
        found = c(f"{ {'up': 'sub', 'down': 'add', 'bfly': 'xor'}[mode] } {_I32} {lane}, {by}")
    inside = c(f"icmp {'sge' if mode == 'up' else 'sle'} {_I32} {found}, {highest}")
    outside = lanes_of("i32", 1, start=32)
    c.ret(f"{_I32} " + c(f"select {vec('i1')} {inside}, {_I32} {found}, {_I32} {outside}"))
    return c.text()


@support("permute")
def permute(*_: str) -> str:
    """`permute(values, lanes)`: lane n gets the value of lane `lanes[n]`."""
    c = Code(f"define internal {_I32} @permute({_I32} %a, {_I32} %lane) noinline")
    source, index, result = (c.var(_I32, align=64) for _ in range(3))
    c.store(_I32, "%a", source)
    c.store(_I32, c(f"and {_I32} %lane, {splat('i32', 31)}"), index)
    for lane in range(32):
        where = c.load("i32", index, 4 * lane)
        c.store("i32", c.load("i32", c(f"getelementptr i32, ptr {source}, i32 {where}")), result, 4 * lane)
    c.ret(f"{_I32} " + c.load(_I32, result))
    return c.text()


@support("match")
def match(bits: str) -> str:
    """`match.b32(values, mask)`: for each lane of the mask, the lanes of the mask with the same value."""
    element, vector = f"i{bits[1:]}", vec(f"i{bits[1:]}")
    c = Code(f"define internal {_I32} @match.{bits}({vector} %a, i32 %mask) noinline")
    source, result = c.var(vector, "%a", align=64), c.var(_I32, "zeroinitializer", align=64)
    with c.each_bit("%mask") as lane:
        mine = c.load(element, c(f"getelementptr {element}, ptr {source}, i32 {lane}"))
        same = c(f"icmp eq {vector} %a, {c.spread(element, mine)}")
        image = c(f"bitcast {vec('i1')} {same} to i32")
        lanes = c(f"and i32 {image}, %mask")
        c.store("i32", lanes, c(f"getelementptr i32, ptr {result}, i32 {lane}"))
    c.ret(f"{_I32} " + c.load(_I32, result))
    return c.text()


@support("redux")
def redux(operator: str, *words: str) -> str:
    """`redux.add.s32(values, members, mask)`: the reduction over the members that are in the mask."""
    kind = words[-1]
    name = ".".join(["redux", operator, *words])
    c = Code(f"define internal {_I32} @{name}({_I32} %a, {_I32} %members, i32 %mask) noinline")
    source, members = c.var(_I32, "%a", align=64), c.var(_I32, "%members", align=64)
    result = c.var(_I32, "zeroinitializer", align=64)
    todo = c.var("i32", "%mask")
    with c.loop() as out:  # one group of members at a time
        left = c.load("i32", todo)
        c.leave(out, c(f"icmp eq i32 {left}, 0"))
        first = c(f"call i32 @llvm.cttz.i32(i32 {left}, i1 true)")
        named = c.load("i32", c(f"getelementptr i32, ptr {members}, i32 {first}"))
        own = c(f"shl i32 1, {first}")
        group = c(f"or i32 {c(f'and i32 {named}, %mask')}, {own}")
        total = c.var("i32", c.load("i32", c(f"getelementptr i32, ptr {source}, i32 {first}")))
        rest = c(f"and i32 {group}, {c(f'xor i32 {own}, -1')}")
        if kind == "f32" and "abs" in words:
            c.store("i32", c(f"and i32 {c.load('i32', total)}, 2147483647"), total)
        with c.each_bit(rest) as lane:
            value = c.load("i32", c(f"getelementptr i32, ptr {source}, i32 {lane}"))
            c.store("i32", _combine(c, operator, kind, words, c.load("i32", total), value), total)
        with c.each_bit(group) as lane:
            c.store("i32", c.load("i32", total), c(f"getelementptr i32, ptr {result}, i32 {lane}"))
        c.store("i32", c(f"and i32 {c.load('i32', todo)}, {c(f'xor i32 {group}, -1')}"), todo)
    c.ret(f"{_I32} " + c.load(_I32, result))
    return c.text()


def _combine(c: Code, operator: str, kind: str, words: tuple[str, ...], a: str, b: str) -> str:
    if operator in ("add", "and", "or", "xor"):
        return c(f"{operator} i32 {a}, {b}")
    if kind != "f32":
        return c(f"call i32 @llvm.{kind[0]}{operator}.i32(i32 {a}, i32 {b})")
    if "abs" in words:
        b = c(f"and i32 {b}, 2147483647")
    x, y = (c(f"bitcast i32 {v} to float") for v in (a, b))
    name = f"{operator}imum" if "nan" in words else f"{operator}imumnum"
    return c(f"bitcast float {c(f'call float @llvm.{name}.f32(float {x}, float {y})')} to i32")
