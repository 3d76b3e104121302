"""Branches, returns, exits, calls' jumps, traps."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.llvm_types import integer_vector
from ptxgen.runtime.cpu.flow.calls import ASSERTION
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.recursion import STACK_BYTES
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import Reg, bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.native.layout import WARP
from ptxgen.runtime.cpu.support.faults import FAULT_TRAP

_I32 = vec("i32")


@emits("bra", outputs=0)
def bra(e: Emitter, op: Op) -> None:
    """To the label, for the lanes whose guard holds."""
    target = e.blocks[op.targets[0]]
    if op.guard is None:
        e.spill()
        e.goto(target, e.mask)
        return
    taken = e.exec_mask()
    e.spill()
    other = e.block.next
    assert other is not None
    if other is target:
        e.goto(target, e.mask)
    else:
        e.branch(taken, target, other)


def _scatter(e: Emitter, index: str, op: Op, first: int = 0) -> None:
    """Lanes of the i32 `mask` go to the target their index names; returns through the dispatcher."""
    here = e.exec_mask()
    for number, key in enumerate(op.targets, first):
        matching = e.bits(e.c(f"icmp eq {_I32} {index}, {splat('i32', number)}"))
        lanes = e.c(f"and i32 {here}, {matching}")
        with e.c.if_(e.c(f"icmp ne i32 {lanes}, 0")):
            e.enqueue(e.blocks[key], lanes)
    if op.guard is not None:
        assert e.block.next is not None
        rest = e.c(f"and i32 {e.mask}, {e.c(f'xor i32 {here}, -1')}")
        with e.c.if_(e.c(f"icmp ne i32 {rest}, 0")):
            e.enqueue(e.block.next, rest)
    left = e.c(f"sub i32 {e.c.load('i32', '%w', WARP['budget'])}, 1")
    e.c.store("i32", left, "%w", WARP["budget"])
    e.to_dispatch()


@emits("brx", outputs=0)
def brx(e: Emitter, op: Op) -> None:
    """To the label of the list that the index names; an index outside it is a finding."""
    index = e.src(op.operands[0], "u32")
    outside = e.bits(e.c(f"icmp uge {_I32} {index}, {splat('i32', len(op.targets))}"))
    e.fault_if(e.c(f"and i32 {e.exec_mask()}, {outside}"), FAULT_TRAP, remark="index outside the list of targets")
    e.spill()
    _scatter(e, index, op)


@emits("$go", outputs=0)
def go(e: Emitter, op: Op) -> None:
    """Into a called function, noting the call site; an indirect call sends each lane into its own."""
    numbers = op.words[1:]
    for site, number in zip(op.operands, numbers, strict=False):
        e.dst(site, splat("i32", number), "u32")
    lanes = [e.pred(o) for o in op.operands[len(numbers) :]]
    if not lanes:
        e.spill()
        e.goto(e.blocks[op.targets[0]], e.mask)
        return
    lost = e.mask
    for held in lanes:
        lost = e.c(f"and i32 {lost}, {e.c(f'xor i32 {held}, -1')}")
    e.fault_if(lost, FAULT_TRAP, remark="the pointer is not of a function that this call may reach")
    e.spill()
    for key, held in zip(op.targets, lanes, strict=True):
        going = e.c(f"and i32 {e.mask}, {held}")
        with e.c.if_(e.c(f"icmp ne i32 {going}, 0")):
            e.enqueue(e.blocks[key], going)
    e.to_dispatch()


@emits("$push", outputs=0)
def push(e: Emitter, op: Op) -> None:
    """Registers to the stack of each lane, and its pointer up."""
    pointer, *kept = (reg for reg in op.operands if isinstance(reg, Reg))
    top = e.read(pointer, _I32)
    words = [(reg, n) for reg in kept for n in range(max(reg.bits // 32, 1))]
    full = e.bits(e.c(f"icmp ugt {_I32} {top}, {splat('i32', STACK_BYTES - 4 * len(words))}"))
    late = e.c(f"and i32 {e.mask}, {full}")
    e.fault_if(late, FAULT_TRAP, remark=f"the recursion is deeper than {STACK_BYTES:,} bytes a thread hold")
    room = e.c(f"and i32 {e.mask}, {e.c(f'xor i32 {full}, -1')}")
    for place, (reg, n) in enumerate(words):
        head = f"ptr %w, {_I32} {top}, i64 {e.flow.stack_base + 4 * place}, i32 {room}, i32 {e.new_site()}"
        e.c.do(f"call void @st.local.v1.b32({head}, {_I32} {_word(e, reg, n)})")
    e.write(pointer, e.c(f"add {_I32} {top}, {splat('i32', 4 * len(words))}"), _I32)


@emits("$enter", outputs=0)
def enter(e: Emitter, op: Op) -> None:
    """Memory of an activation: the stack's end is kept, and moves up."""
    stack, before, begin = (reg for reg in op.operands if isinstance(reg, Reg))
    e.write(before, e.read(stack, _I32), _I32)
    place = _taken(e, stack, splat("i64", int(op.words[1])), int(op.words[2]))
    e.write(begin, place, _I32)


def _taken(e: Emitter, stack: Reg, size: str, align: int) -> str:
    """The address in local memory of so many bytes more (i64) on the stack."""
    i64, base = vec("i64"), e.flow.stack_base
    top = e.c(f"zext {_I32} {e.read(stack, _I32)} to {i64}")
    up = e.c(f"add {i64} {top}, {splat('i64', base + align - 1)}")
    place = e.c(f"and {i64} {up}, {splat('i64', -align)}")
    short = e.c(f"call {i64} @llvm.umin.v32i64({i64} {size}, {i64} {splat('i64', 2 * STACK_BYTES)})")
    end = e.c(f"sub {i64} {e.c(f'add {i64} {place}, {short}')}, {splat('i64', base)}")
    full = e.bits(e.c(f"icmp ugt {i64} {end}, {splat('i64', STACK_BYTES)}"))
    remark = f"the stack is full: it has {STACK_BYTES:,} bytes a thread"
    e.fault_if(e.c(f"and i32 {e.exec_mask()}, {full}"), FAULT_TRAP, remark=remark)
    e.write(stack, e.c(f"trunc {i64} {end} to {_I32}"), _I32)
    return e.c(f"trunc {i64} {place} to {_I32}")


@emits("$alloca", outputs=2, inout=(0,))
def alloca(e: Emitter, op: Op) -> None:
    """Bytes of local memory until the function returns, aligned to 8 where nothing is said."""
    stack, target, size, *align = op.operands
    assert isinstance(stack, Reg)
    wanted = int(align[0].value) if align and isinstance(align[0], nodes.Immediate) else 8
    if wanted < 1 or wanted & (wanted - 1) or wanted > STACK_BYTES:
        raise e.error(f"operand {align[0]}: must be a power of two up to {STACK_BYTES:,}")
    kind = op.words[1]
    bytes_ = e.resize(e.src(size, kind), integer_vector(bits_of(kind)), "u64")
    place = _taken(e, stack, bytes_, wanted)
    e.dst(target, e.resize(place, _I32, kind), kind)


@emits("$stacksave", outputs=2, inout=(0,))
def stacksave(e: Emitter, op: Op) -> None:
    """Where the stack ends, as an address of local memory."""
    stack, target = op.operands
    assert isinstance(stack, Reg)
    end = e.c(f"add {_I32} {e.read(stack, _I32)}, {splat('i32', e.flow.stack_base)}")
    e.dst(target, e.resize(end, _I32, op.words[1]), op.words[1])


@emits("$stackrestore", outputs=1)
def stackrestore(e: Emitter, op: Op) -> None:
    """The stack ends where it did when that address was saved."""
    stack, saved = op.operands
    assert isinstance(stack, Reg)
    low = e.src(saved, "u32")
    e.write(stack, e.c(f"sub {_I32} {low}, {splat('i32', e.flow.stack_base)}"), _I32)


def _word(e: Emitter, reg: Reg, n: int) -> str:
    """The n-th 32 bits of a register, whether it was written or not."""
    if e.defined is not None:
        e.defined.silent = True
    value = e.read(reg, "i32" if reg.bits == 1 else integer_vector(reg.bits))
    if e.defined is not None:
        e.defined.silent = False
    if reg.bits == 1:
        return e.c(f"zext {vec('i1')} {e.lanes(value)} to {_I32}")
    whole = integer_vector(reg.bits)
    if n:
        value = e.c(f"lshr {whole} {value}, {splat(f'i{reg.bits}', 32 * n)}")
    if reg.bits == 32:
        return value
    return e.c(f"{'zext' if reg.bits < 32 else 'trunc'} {whole} {value} to {_I32}")


@emits("$pop", outputs=0)
def pop(e: Emitter, op: Op) -> None:
    """The opposite of `$push`."""
    pointer, *kept = (reg for reg in op.operands if isinstance(reg, Reg))
    count = sum(max(reg.bits // 32, 1) for reg in kept)
    top = e.c(f"sub {_I32} {e.read(pointer, _I32)}, {splat('i32', 4 * count)}")
    e.write(pointer, top, _I32)
    place = 0
    for reg in kept:
        whole, value = integer_vector(reg.bits), ""
        for n in range(max(reg.bits // 32, 1)):
            head = f"ptr %w, {_I32} {top}, i64 {e.flow.stack_base + 4 * place}, i32 {e.mask}, i32 {e.new_site()}"
            word = e.c(f"call {_I32} @ld.local.v1.b32({head})")
            place += 1
            if reg.bits == 1:
                value = e.bits(e.c(f"trunc {_I32} {word} to {vec('i1')}"))
            elif reg.bits == 32:
                value = word
            else:
                part = e.c(f"{'trunc' if reg.bits < 32 else 'zext'} {_I32} {word} to {whole}")
                up = e.c(f"shl {whole} {part}, {splat(f'i{reg.bits}', 32 * n)}") if n else part
                value = e.c(f"or {whole} {value}, {up}") if n else part
        e.write(reg, value, "i32" if reg.bits == 1 else whole)


@emits("$back", outputs=0)
def back(e: Emitter, op: Op) -> None:
    """Out of a called function, to the sites that its lanes came from."""
    if len(op.targets) == 1 and op.guard is None:
        e.spill()
        e.goto(e.blocks[op.targets[0]], e.mask)
        return
    index = e.src(op.operands[0], "u32")
    e.spill()
    _scatter(e, index, op)


@emits("exit", "ret", outputs=0)
def exit_(e: Emitter, op: Op) -> None:
    """The lanes are done."""
    leaving = e.exec_mask()
    e.spill()
    e.c.do(f"call void @leave(ptr %w, i32 {leaving})")
    if op.guard is None:
        e.to_dispatch()
        return
    assert e.block.next is not None
    rest = e.c(f"and i32 {e.mask}, {e.c(f'xor i32 {leaving}, -1')}")
    stem = e.c.fresh("stay")
    e.c.do(f"br i1 {e.c(f'icmp eq i32 {rest}, 0')}, label %dispatch, label %{stem}")
    e.c.label(stem)
    e.goto(e.block.next, rest)


@emits("trap", "brkpt", outputs=0)
def trap(e: Emitter, op: Op) -> None:
    """Ends the launch with a finding."""
    e.fault_if(e.exec_mask(), FAULT_TRAP)


@emits("$printf")
def printf(e: Emitter, op: Op) -> None:
    """vprintf(format, arguments), lane by lane."""
    i64 = vec("i64")
    words = [e.src(word, "b32") for word in op.operands[1:]]
    wide = [e.c(f"zext {_I32} {word} to {i64}") for word in words]
    high = [e.c(f"shl {i64} {wide[n]}, {splat('i64', 32)}") for n in (1, 3)]
    format_, given = (e.c(f"or {i64} {low}, {up}") for low, up in zip((wide[0], wide[2]), high, strict=True))
    head = f"ptr %w, i32 {e.new_site()}, i32 {e.exec_mask()}"
    e.dst(op.operands[0], e.c(f"call {_I32} @printf({head}, {i64} {format_}, {i64} {given})"), "b32")


@emits("$assertfail", outputs=0)
def assertfail(e: Emitter, op: Op) -> None:
    """assert() that did not hold: a trap, with the strings of the first of its lanes."""
    mask = e.exec_mask()
    words = [e.first_lane(e.src(word, "b32"), "i32", mask) for word in op.operands]
    low = [e.c(f"zext i32 {word} to i64") for word in words]
    message, file = (e.c(f"or i64 {low[i]}, {e.c(f'shl i64 {low[i + 1]}, 32')}") for i in (0, 2))
    e.fault_if(mask, FAULT_TRAP, address=message, size=words[4], extra=file, remark=ASSERTION)
