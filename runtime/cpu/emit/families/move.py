"""mov, the hidden moves of calls, cvta, isspacep, selp, slct, prefetches and other hints."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.defined_bytes import chooses_first
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.llvm_types import integer_vector
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import Var, bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.native.layout import LAUNCH, LOCAL_WINDOW, SHARED_WINDOW, WARP, WINDOW_SHIFT


@emits("mov")
def mov(e: Emitter, op: Op) -> None:
    """Copies, takes addresses, packs `{a, b}` and unpacks into it."""
    target, source, kind = op.operands[0], op.operands[1], op.words[1]
    if kind == "pred":
        e.dst_pred(target, e.pred(source))
    elif isinstance(target, nodes.Vector):
        _unpack(e, target, source, kind)
    elif isinstance(source, nodes.Vector):
        _pack(e, target, source, kind)
    else:
        if bits_of(kind) == 32 and isinstance(source, nodes.Symbol):
            _demand_short(e, source)
        e.dst(target, e.src(source, kind), kind)


def _demand_short(e: Emitter, symbol: nodes.Symbol) -> None:
    """Refuse a 32-bit address of what lies anywhere in the host's memory; windows and the parameter block have some."""
    found = e.op.scope.find(symbol.name)
    if isinstance(found, Var) and (found.space in ("global", "const") or found.words or found.frame is not None):
        space = found.space if found.space in ("global", "const") else "param"
        raise e.unsupported(f"with a 32-bit address of .{space} memory")


def _pack(e: Emitter, target: object, source: nodes.Vector, kind: str) -> None:
    total = bits_of(kind)
    part = total // len(source.items)
    whole, piece = integer_vector(total), f"b{part}"
    result = ""
    for position, item in enumerate(source.items):
        value = e.c(f"zext {integer_vector(part)} {e.src(item, piece)} to {whole}")
        if position:
            value = e.c(f"shl {whole} {value}, {splat(f'i{total}', part * position)}")
            value = e.c(f"or {whole} {result}, {value}")
        result = value
    e.dst(target, result, f"b{total}")  # type: ignore[arg-type]


def _unpack(e: Emitter, target: nodes.Vector, source: object, kind: str) -> None:
    total = bits_of(kind)
    part = total // len(target.items)
    whole = integer_vector(total)
    value = e.src(source, f"b{total}")  # type: ignore[arg-type]
    for position, item in enumerate(target.items):
        if isinstance(item, nodes.Register) and item.name == "_":
            continue
        moved = e.c(f"lshr {whole} {value}, {splat(f'i{total}', part * position)}") if position else value
        e.dst(item, e.c(f"trunc {whole} {moved} to {integer_vector(part)}"), f"b{part}")


@emits("$move")
def hidden_move(e: Emitter, op: Op) -> None:
    """A word of a call's argument or result."""
    target = op.operands[0]
    reg = e.reg(target)
    assert reg is not None
    kind = "pred" if reg.bits == 1 else f"b{reg.bits}"
    e.dst(reg, e.src(op.operands[1], kind), kind)


@emits("cvta")
def cvta(e: Emitter, op: Op) -> None:
    """Between an address of a space and a generic one: shared and local are windows, the others host addresses."""
    towards = op.words[1] == "to"
    space, kind = op.words[2 if towards else 1], op.words[-1]
    space = space.partition("::")[0]
    value = e.src(op.operands[1], kind)
    if space in ("shared", "local") and kind == "u64":
        window = SHARED_WINDOW if space == "shared" else LOCAL_WINDOW
        mask = splat("i64", (1 << WINDOW_SHIFT) - 1)
        value = e.c(
            f"and {vec('i64')} {value}, {mask}" if towards else f"or {vec('i64')} {value}, {splat('i64', window)}"
        )
    elif space == "shared":
        raise e.unsupported("with 32-bit generic addresses")
    elif space == "param" and kind == "u64" and not towards:
        value = whole_parameter_address(e, value)
    e.dst(op.operands[0], value, kind)


def whole_parameter_address(e: Emitter, value: str) -> str:
    """An address of the parameter block that went through a 32-bit register, as it is where parameters have offsets."""
    i64 = vec("i64")
    base = e.c(f"ptrtoint ptr {e.c.load('ptr', e.launch, LAUNCH['params'])} to i64")
    behind = e.c(f"sub {i64} {value}, {e.c.spread('i64', base)}")
    low = e.c(f"and {i64} {behind}, {splat('i64', 0xFFFFFFFF)}")
    short = e.c(f"icmp ult {i64} {value}, {splat('i64', 1 << 32)}")
    whole = e.c(f"add {i64} {low}, {e.c.spread('i64', base)}")
    return e.c(f"select {vec('i1')} {short}, {i64} {whole}, {i64} {value}")


@emits("isspacep")
def isspacep(e: Emitter, op: Op) -> None:
    """Whether a generic address lies in a space."""
    space = op.words[1].partition("::")[0]
    address = e.src(op.operands[1], "u64")
    window = e.c(f"lshr {vec('i64')} {address}, {splat('i64', WINDOW_SHIFT)}")
    number = {"shared": 1, "local": 2}.get(space, 0)
    if space not in ("shared", "local", "global", "const", "param"):
        raise e.unsupported()
    e.dst_pred(op.operands[0], e.bits(e.c(f"icmp eq {vec('i64')} {window}, {splat('i64', number)}")))


@emits("selp")
def selp(e: Emitter, op: Op) -> None:
    """c ? a : b."""
    kind = op.words[1]
    a, b = (e.src(o, _bits(kind)) for o in op.operands[1:3])
    lanes = e.lanes(e.pred(op.operands[3]))
    whole = integer_vector(bits_of(kind))
    e.dst(op.operands[0], e.c(f"select {vec('i1')} {lanes}, {whole} {a}, {whole} {b}"), _bits(kind))


@emits("slct")
def slct(e: Emitter, op: Op) -> None:
    """c ≥ 0 ? a : b; a NaN selects b; with .ftz a negative subnormal is -0, and selects a."""
    kind, _ = [w for w in op.words[1:] if w != "ftz"]
    a, b = (e.src(o, _bits(kind)) for o in op.operands[1:3])
    whole = integer_vector(bits_of(kind))
    lanes = chooses_first(e, op)
    e.dst(op.operands[0], e.c(f"select {vec('i1')} {lanes}, {whole} {a}, {whole} {b}"), _bits(kind))


def _bits(kind: str) -> str:
    return f"b{bits_of(kind)}"


@emits("prefetch", "prefetchu", "discard", "applypriority", "pmevent", outputs=0)
def nothing(e: Emitter, op: Op) -> None:
    """Hints without an effect."""


@emits("createpolicy")
def createpolicy(e: Emitter, op: Op) -> None:
    """A cache policy: any value will do."""
    e.dst(op.operands[0], "zeroinitializer", "b64")


@emits("nanosleep", outputs=0)
def nanosleep(e: Emitter, op: Op) -> None:
    """Time passes for the clocks, and the turn of the warp ends sooner."""
    wide = e.c(f"zext i32 {e.first_lane(e.src(op.operands[0], 'u32'), 'i32')} to i64")
    now = e.c(f"add i64 {e.c.load('i64', '%w', WARP['clock'])}, {wide}")
    e.c.store("i64", now, "%w", WARP["clock"])
    left = e.c(f"ashr i32 {e.c.load('i32', '%w', WARP['budget'])}, 1")
    e.c.store("i32", left, "%w", WARP["budget"])
