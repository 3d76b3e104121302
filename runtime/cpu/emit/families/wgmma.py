"""wgmma: a warp computes its 16 of the 64 rows when the instruction is issued; operands in shared memory by descriptor.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": register fragments, matrix descriptor, layouts.
"""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.matrix import items_of, known, lanes_in_memory, whole_warp
from ptxgen.runtime.cpu.emit.llvm_types import vector_of
from ptxgen.runtime.cpu.emit.wgmma_products import LATE_READ
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import Reg
from ptxgen.runtime.cpu.native.ir import vec
from ptxgen.runtime.cpu.native.layout import WARP
from ptxgen.runtime.cpu.support.tiles import ACCUMULATORS, ELEMENTS, Element

_I32 = vec("i32")
_BYTES = 128  # of a register of all lanes
_REMARK = "the descriptor must lead to shared memory"


@emits("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group", outputs=0, converges=True)
def order(e: Emitter, op: Op) -> None:
    """Products are there when they are issued. They order no accesses of lanes: that takes a bar.warp.sync."""
    e.converge("-1")
    if not e.defined:
        return
    products = e.defined.products
    if op.words[1] == "fence":
        products.fence()
    elif op.words[1] == "commit_group":
        products.commit()
    else:
        if not isinstance(op.operands[0], nodes.Immediate):
            raise e.error(f"operand {op.operands[0]}: must be a number")
        products.wait(int(op.operands[0].value))
        e.c.do("call void @async.land_products(ptr %w)")


@emits("wgmma.mma_async", outputs=0, inout=(0,), converges=True)
def wgmma(e: Emitter, op: Op) -> None:
    """d = a·b, or a·b + d where scale-d holds."""
    known(e, op)
    whole_warp(e)
    if e.defined:
        e.defined.products.issue(op)
    shape = op.words[4]
    columns = int(shape.partition("n")[2].partition("k")[0])
    d_type, a_type, b_type = [w for w in op.words[5:] if w not in ("satfinite", "and", "popc")]
    a, b, scale_d, sign, transposed = _operands(e, op)
    element, other = ELEMENTS[a_type], ELEMENTS[b_type]
    targets = items_of(op.operands[0])
    a_regs, a_descriptor = _a_registers(e, a, element, transposed[0])
    descriptor = e.uniform(b, "b64", "the descriptor differs between lanes")
    if e.check:
        majors = [("mn" if turned else "k") for turned in transposed]
        if not a_descriptor:
            majors[0] = "registers"
        e.c.do(f"call void @wgmma_later.{majors[0]}.{majors[1]}.{columns}(ptr %w, i32 {e.new_site(LATE_READ)}, "
               f"i64 {a_descriptor or 0}, i64 {descriptor})")  # fmt: skip
    name = f"wgmma_tiles.{'mn' if transposed[1] else 'k'}.{d_type}.{a_type}.{b_type}.m16k{2 * element.per_register}"
    name += "".join(f".{word}" for word in ("satfinite", "and") if word in op.words) + (".minus" if sign < 0 else "")
    keep = str(bool(scale_d.value)).lower() if isinstance(scale_d, nodes.Immediate) else (
        e.c(f"icmp ne i32 {e.pred(scale_d)}, 0"))  # fmt: skip
    sums = _sums(e, targets, columns // 8 * (2 if d_type == "f16" else 4), ACCUMULATORS[d_type][0], keep)
    _refuse_transposed(e, transposed[1], other)
    e.c.do(f"call void @{name}(ptr %w, i32 {e.new_site(_REMARK)}, i64 {descriptor}, i32 {columns // 8}, "
           f"{', '.join(f'ptr {pointer}' for pointer in a_regs)}, ptr {sums}, i1 {keep})")  # fmt: skip


def _sums(e: Emitter, targets: tuple[Source, ...], count: int, kind: str, keep: str) -> str:
    """Name of the table of the accumulators' places in the register file, where they are now; what the product adds to
    must have been written where scale-d (`keep`, an i1) holds. All lanes are here: the product sets all of them."""
    if len(targets) != count:
        raise e.error(f"operand d: must have {count} registers (has {len(targets)})")
    places = []
    for target in targets:
        reg = e.reg(target)
        if reg is None or reg.bits != 32:
            raise e.error(f"operand {target}: must be a register of 32 bits")
        if keep != "false":
            _settled(e, target, reg, kind, keep)
        e.overwrite(reg)
        places.append(e.place(reg.index, _BYTES))
    return e.table(places)


def _settled(e: Emitter, target: Source, reg: Reg, kind: str, keep: str) -> None:
    """The register's value goes into the file, where this block has given it another."""
    if e.defined:
        e.defined.silent = keep != "true"
    if not e.in_file(reg):
        e.c.store(vector_of(kind), e.src(target, kind), e.slot(reg), align=64)
    if not e.defined:
        return
    e.defined.silent = False
    written = None if keep == "true" else e.defined.lanes(reg)
    if written is not None:
        missing = e.c(f"and i32 {e.mask}, {e.c(f'xor i32 {written}, -1')}")
        e.defined.report(reg, e.c(f"select i1 {keep}, i32 {missing}, i32 0"))


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


def _a_registers(e: Emitter, a: Source, element: Element, transposed: bool) -> tuple[list[str], str]:
    """(pointers to fragment registers (rows 0-7, rows 8-15) of k's first half, then of its second; the descriptor)."""
    if isinstance(a, nodes.Vector):
        return [lanes_in_memory(e, reg, "b32", _BYTES * n) for n, reg in enumerate(a.items)], ""
    descriptor = e.uniform(a, "b64", "the descriptor differs between lanes")
    warp = e.c(f"and i32 {e.c.load('i32', '%w', WARP['id'])}, 3")
    first = e.c(f"shl i32 {warp}, 1")
    groups = [e.c(f"add i32 {first}, {half}") for half in range(2)]
    for n, (step, group) in enumerate((step, group) for step in range(2) for group in groups):
        e.c.store(_I32, _block(e, descriptor, group, step, transposed, element), e.scratch, _BYTES * n, align=64)
    return [e.c.at(e.scratch, _BYTES * n) for n in range(4)], descriptor


def _block(e: Emitter, descriptor: str, group: str, step: int, transposed: bool, element: Element) -> str:
    """Eight rows of a by 16 bytes of k, as a fragment register."""
    _refuse_transposed(e, transposed, element)
    return e.c(f"call {_I32} @wgmma_block.{'mn' if transposed else 'k'}(ptr %w, i32 {e.new_site(_REMARK)}, "
               f"i64 {descriptor}, i32 {group}, i32 {step})")  # fmt: skip


def _refuse_transposed(e: Emitter, transposed: bool, element: Element) -> None:
    """Only elements of 16 bits may run along M or N in memory."""
    if transposed and element.per_register != 8:
        raise e.unsupported("transposed")
