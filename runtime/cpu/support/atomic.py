"""Read-modify-write, lane after lane: `atom.SPACE.OP.TYPE(w, addresses, offset, mask, site, align, b[, c])`."""

from __future__ import annotations

from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.access import address_type
from ptxgen.runtime.cpu.support.faults import FAULT_ALIGN, FAULT_BOUNDS, resolver

_PLAIN = {
    "add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg", "inc": "uinc_wrap", "dec": "udec_wrap",
}  # fmt: skip


@support("atom")
def atom(space: str, operation: str, kind: str, check: str = "") -> str:
    """The old values; lanes that may not access get zero. `align` is the alignment that a vector needs. `check` "late":
    a reduction of global memory that happens later, and has no value."""
    bits, address = bits_of(kind), address_type(space)
    element, vector, size = f"i{bits}", vec(f"i{bits}"), bits // 8
    name = ".".join(["atom", space, operation, kind] + ([check] if check else []))
    third = f", {vector} %c" if operation == "cas" else ""
    c = Code(
        f"define internal {vector} @{name}(ptr %w, {vec(address)} %a, i64 %off, i32 %m, i32 %site, i32 %align, "
        f"{vector} %b{third}) noinline"
    )
    places, values = c.var(vec(address), "%a", align=64), c.var(vector, "%b", align=64)
    others = c.var(vector, "%c", align=64) if third else ""
    result = c.var(vector, "zeroinitializer", align=64)
    low, most = c("trunc i64 %off to i32"), c(f"sub i64 {c('zext i32 %align to i64')}, 1")
    with c.each_bit("%m") as lane:
        mine = c.load(address, c(f"getelementptr {address}, ptr {places}, i32 {lane}"))
        narrow = address == "i32"
        mine = c(f"zext i32 {c(f'add i32 {mine}, {low}')} to i64") if narrow else c(f"add i64 {mine}, %off")
        pointer = c(f"call ptr @{resolver(space, True)}(ptr %w, i32 %site, i32 {lane}, i64 {mine}, i64 {size})")
        bit = c(f"shl i32 1, {lane}")
        missing = c(f"icmp eq ptr {pointer}, null")
        over = c(f"and i64 {mine}, {most}")
        crooked = c(f"icmp ne i64 {over}, 0")
        with c.if_(c(f"or i1 {missing}, {crooked}"), likely=False):
            fault = c(f"select i1 {crooked}, i32 {FAULT_ALIGN}, i32 {FAULT_BOUNDS}")
            c.do(f"call void @fault(ptr %w, i32 %site, i32 {fault}, i32 {bit}, i32 %align, i64 {mine}, i64 0)")
        with c.else_():
            if check:
                c.do(
                    f"call void @shadow.atomic.{space}(ptr %w, i32 %site, i32 {lane}, i32 {size}, ptr {pointer}, "
                    f"i64 {mine}, i64 {size})"
                )
            value = c.load(element, c(f"getelementptr {element}, ptr {values}, i32 {lane}"))
            if operation == "cas":
                new = c.load(element, c(f"getelementptr {element}, ptr {others}, i32 {lane}"))
                pair = c(f"cmpxchg ptr {pointer}, {element} {value}, {element} {new} seq_cst seq_cst")
                old = c(f"extractvalue {{ {element}, i1 }} {pair}, 0")
            elif check == "late":
                old = "0"
                wide = value if bits == 64 else c(f"zext {element} {value} to i64")
                tail = f"ptr @late.apply.{operation}.{kind}, i64 {wide}, i64 {size}"
                c.do(f"call void @late.append(ptr %w, ptr {pointer}, {tail})")
            else:
                old = modify(c, operation, kind, pointer, value)
            c.store(element, old, c(f"getelementptr {element}, ptr {result}, i32 {lane}"))
    c.ret(f"{vector} " + c.load(vector, result))
    return c.text()


def modify(c: Code, operation: str, kind: str, pointer: str, value: str) -> str:
    """One read-modify-write at a host address, of anything but `cas`; the old value."""
    bits = bits_of(kind)
    element = f"i{bits}"
    if kind == "f64" and operation == "add":
        number = c(f"bitcast {element} {value} to double")
        return c(f"bitcast double {c(f'atomicrmw fadd ptr {pointer}, double {number} seq_cst')} to {element}")
    if kind[0] in "fb" and kind not in ("b16", "b32", "b64", "b128") and operation in ("add", "min", "max"):
        return _float_loop(c, operation, kind, pointer, value)
    if operation in ("min", "max"):
        name = operation if kind[0] == "s" else "u" + operation
        return c(f"atomicrmw {name} ptr {pointer}, {element} {value} seq_cst")
    return c(f"atomicrmw {_PLAIN[operation]} ptr {pointer}, {element} {value} seq_cst")


def _float_loop(c: Code, operation: str, kind: str, pointer: str, value: str) -> str:
    """Compare and swap until it holds: 16-bit floats, their pairs, and minima of floats."""
    element = f"i{bits_of(kind)}"
    seen = c.var(element, c(f"load atomic {element}, ptr {pointer} seq_cst, align {bits_of(kind) // 8}"))
    with c.loop() as out:
        old = c.load(element, seen)
        new = c(f"call {element} @combine.{operation}.{kind}({element} {old}, {element} {value})")
        pair = c(f"cmpxchg ptr {pointer}, {element} {old}, {element} {new} seq_cst seq_cst")
        c.store(element, c(f"extractvalue {{ {element}, i1 }} {pair}, 0"), seen)
        c.leave(out, c(f"extractvalue {{ {element}, i1 }} {pair}, 1"))
    return c.load(element, seen)


@support("combine")
def combine(operation: str, kind: str) -> str:
    """`combine.add.f16x2(old, value)` on bits: sum, minimum or maximum of one or two small floats, or of f32/f64."""
    bits = bits_of(kind)
    element = f"i{bits}"
    c = Code(f"define internal {element} @combine.{operation}.{kind}({element} %a, {element} %b) noinline")
    if kind in ("f32", "f64"):
        real = "float" if kind == "f32" else "double"
        x, y = (c(f"bitcast {element} {v} to {real}") for v in ("%a", "%b"))
        if operation == "add":
            both = c(f"fadd {real} {x}, {y}")
        else:
            both = c(f"call {real} @llvm.{operation}imumnum.{kind}({real} {x}, {real} {y})")
        image = c(f"bitcast {real} {both} to {element}")
        if kind == "f32":  # PTX has one NaN
            nan = c(f"fcmp uno {real} {both}, {both}")
            image = c(f"select i1 {nan}, {element} {0x7FFFFFFF}, {element} {image}")
        c.ret(f"{element} {image}")
        return c.text()
    # through vectors of 64, for which the conversions exist; only the first elements count
    small, single = vec("i16", 64), vec("float", 64)
    pair = kind.endswith("x2")
    sides = []
    for value in ("%a", "%b"):
        filled = c(f"insertelement {vec('i32') if pair else small} zeroinitializer, {element} {value}, i64 0")
        sides.append(c(f"bitcast {vec('i32')} {filled} to {small}") if pair else filled)
    form = "e5m10" if kind.startswith("f16") else "e8m7"
    wide = vec("i32", 64)
    x, y = (c(f"call {single} @unpack.{form}.64({wide} {c(f'zext {small} {s} to {wide}')})") for s in sides)
    if operation == "add":
        total = c(f"fadd {single} {x}, {y}")
    else:
        total = c(f"call {single} @llvm.{operation}imumnum.v64f32({single} {x}, {single} {y})")
    packed = c(f"call {wide} @pack.{form}.rn.64({single} {total})")
    short = c(f"trunc {wide} {packed} to {small}")
    whole = c(f"bitcast {small} {short} to {vec('i32')}") if pair else short
    c.ret(f"{element} " + c(f"extractelement {vec('i32') if pair else small} {whole}, i64 0"))
    return c.text()
