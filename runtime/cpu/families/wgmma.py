"""wgmma: a warp computes its 16 of the 64 rows when the instruction is issued; operands in shared memory by descriptor.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": register fragments, matrix descriptor, layouts.
"""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emitter import Emitter
from ptxgen.runtime.cpu.families.matrix import (
    ELEMENTS,
    Element,
    accumulator,
    items_of,
    store_accumulator,
    sum_of_tiles,
    widen,
    widen_value,
)
from ptxgen.runtime.cpu.flow import Op, Source
from ptxgen.runtime.cpu.ir import vec
from ptxgen.runtime.cpu.layout import WARP
from ptxgen.runtime.cpu.registry import emits

_I32 = vec("i32")
_REMARK = "the descriptor must lead to shared memory"


@emits("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group", outputs=0, converges=True)
def order(e: Emitter, op: Op) -> None:
    """Products are there when they are issued."""
    e.converge("-1")


@emits("wgmma.mma_async", outputs=0, inout=(0,), converges=True)
def wgmma(e: Emitter, op: Op) -> None:
    """d = a·b, or a·b + d where scale-d holds."""
    e.converge("-1")
    shape = op.words[4]
    columns = int(shape.partition("n")[2].partition("k")[0])
    d_type, a_type, b_type = [w for w in op.words[5:] if w != "satfinite"]
    if a_type not in ELEMENTS or b_type not in ELEMENTS or "sp" in op.words:
        raise e.unsupported()
    a, b, scale_d, sign, transposed = _operands(e, op)
    element, other = ELEMENTS[a_type], ELEMENTS[b_type]
    targets = list(items_of(op.operands[0]))
    a_tiles = _a_tiles(e, a, a_type, element, transposed[0])
    if sign < 0:
        a_tiles = [e.c(f"fneg {vec(element.compute, 8 * element.per_register)} {tile}") for tile in a_tiles]
    descriptor = e.uniform(b, "b64", "the descriptor differs between lanes")
    for group in range(columns // 8):
        b_tiles = [
            widen_value(e, _block(e, descriptor, str(group), step, transposed[1], other), b_type, other)
            for step in range(2)
        ]
        regs = targets[4 * group : 4 * group + 4] if d_type != "f16" else targets[2 * group : 2 * group + 2]
        before = [accumulator(e, regs, half, d_type) for half in range(2)]
        for half in range(2):
            start = _scaled(e, before[half], scale_d, element.compute)
            total = sum_of_tiles(e, element, start, a_tiles[half::2], b_tiles, "satfinite" in op.words)
            store_accumulator(e, regs, half, total, d_type)


def _operands(e: Emitter, op: Op) -> tuple[Source, Source, Source, int, tuple[bool, bool]]:
    """(a, b, scale-d, sign of the product, whether a and b are transposed)."""
    a, b, scale_d, *flags = op.operands[1:]
    numbers = []
    for flag in flags:
        if not isinstance(flag, nodes.Immediate):
            raise e.error(f"operand {flag}: must be a number")
        numbers.append(int(flag.value))
    sign = numbers[0] * numbers[1] if len(numbers) >= 2 else 1
    turned = [bool(n) for n in numbers[2:]]
    if isinstance(a, nodes.Vector):  # only b can be transposed then
        turned = [False, *turned]
    return a, b, scale_d, sign, (turned[0] if turned else False, turned[1] if len(turned) > 1 else False)


def _a_tiles(e: Emitter, a: Source, kind: str, element: Element, transposed: bool) -> list[str]:
    """Tiles (rows 0-7, rows 8-15) of k's first half, then of its second."""
    if isinstance(a, nodes.Vector):
        return [widen(e, reg, kind, element) for reg in a.items]
    descriptor = e.uniform(a, "b64", "the descriptor differs between lanes")
    warp = e.c(f"and i32 {e.c.load('i32', '%w', WARP['id'])}, 3")
    first = e.c(f"shl i32 {warp}, 1")
    tiles = []
    for step in range(2):
        for half in range(2):
            group = e.c(f"add i32 {first}, {half}")
            tiles.append(widen_value(e, _block(e, descriptor, group, step, transposed, element), kind, element))
    return tiles


def _block(e: Emitter, descriptor: str, group: str, step: int, transposed: bool, element: Element) -> str:
    """Eight rows (of a) or columns (of b) by 16 bytes of k, as a fragment register."""
    major = "mn" if transposed else "k"
    if transposed and element.per_register != 8:
        raise e.unsupported("transposed")
    return e.c(f"call {_I32} @wgmma_block.{major}(ptr %w, i32 {e.new_site(_REMARK)}, i64 {descriptor}, i32 {group}, "
               f"i32 {step})")  # fmt: skip


def _scaled(e: Emitter, before: str, scale_d: Source, compute: str) -> str:
    """d as it was, or zero where scale-d does not hold (it is the same for the whole warp)."""
    kind = vec(compute, 64)
    if isinstance(scale_d, nodes.Immediate):
        return before if scale_d.value else "zeroinitializer"
    held = e.c(f"icmp ne i32 {e.pred(scale_d)}, 0")
    return e.c(f"select i1 {held}, {kind} {before}, {kind} zeroinitializer")
