"""setp and set: comparisons of every type, combined with a predicate."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.floating import flush
from ptxgen.runtime.cpu.emit.families.half import widen
from ptxgen.runtime.cpu.emit.llvm_types import SIGNED, splat_float, vector_of
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec

_FLOAT = {
    "eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "equ": "ueq", "neu": "une",
    "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge", "num": "ord", "nan": "uno",
}  # fmt: skip
_ORDER = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_BOOLEAN = frozenset({"and", "or", "xor"})


def compare(e: Emitter, operator: str, kind: str, a: str, b: str, ftz: bool) -> str:
    """One comparison as `<32 x i1>`."""
    if kind in ("f32", "f64", "f16", "bf16"):
        vector = vector_of(kind)
        if kind in ("f16", "bf16"):
            a, b, vector = widen(e, a, kind), widen(e, b, kind), vec("float")
        elif ftz:
            a, b = flush(e, a), flush(e, b)
        return e.c(f"fcmp {_FLOAT[operator]} {vector} {a}, {b}")
    if operator in ("eq", "ne"):
        return e.c(f"icmp {operator} {vector_of(kind)} {a}, {b}")
    if operator not in _ORDER:
        raise e.unsupported()
    sign = "s" if kind in SIGNED and operator not in ("lo", "ls", "hi", "hs") else "u"
    return e.c(f"icmp {sign}{_ORDER[operator]} {vector_of(kind)} {a}, {b}")


def _combined(e: Emitter, lanes: str, boolean: str, operand: object) -> str:
    """A comparison's i32 of lanes, combined with the predicate operand."""
    return e.c(f"{boolean} i32 {lanes}, {e.pred(operand)}") if boolean else lanes  # type: ignore[arg-type]


@emits("setp")
def setp(e: Emitter, op: Op) -> None:
    """p = a ⋛ b (op c); `p|q` also q = !(a ⋛ b) (op c), or for pairs of halves the upper half's comparison."""
    operator, kind = op.words[1], op.words[-1]
    boolean = op.words[2] if op.words[2] in _BOOLEAN else ""
    a, b = (e.src(o, kind) for o in op.operands[1:3])
    extra = op.operands[3] if boolean else None
    target = op.operands[0]
    if kind in ("f16x2", "bf16x2"):
        low, high = _pairs(e, operator, kind, a, b)
        assert isinstance(target, nodes.Pair)
        results = [_combined(e, lanes, boolean, extra) for lanes in (low, high)]
        e.dst_pred(target.first, results[0])
        e.dst_pred(target.second, results[1])
        return
    lanes = e.bits(compare(e, operator, kind, a, b, "ftz" in op.words))
    known = e.so_far()
    other, known_other = (e.pred(extra), e.so_far()) if extra is not None else ("", None)
    places = (target.first, target.second) if isinstance(target, nodes.Pair) else (target,)
    for n, place in enumerate(places):
        held = e.c(f"xor i32 {lanes}, -1") if n else lanes
        e.only_defined(e.decided(boolean, held, known, other, known_other) if boolean else known)
        e.dst_pred(place, e.c(f"{boolean} i32 {held}, {other}") if boolean else held)


def _pairs(e: Emitter, operator: str, kind: str, a: str, b: str) -> tuple[str, str]:
    """Comparisons of lower and upper halves as i32s of lanes."""
    x, y = widen(e, a, kind), widen(e, b, kind)
    both = e.c(f"fcmp {_FLOAT[operator]} {vec('float', 64)} {x}, {y}")
    halves = []
    for first in (0, 1):
        picks = "<" + ", ".join(f"i32 {2 * n + first}" for n in range(32)) + ">"
        part = e.c(f"shufflevector {vec('i1', 64)} {both}, {vec('i1', 64)} poison, {vec('i32')} {picks}")
        halves.append(e.bits(part))
    return halves[0], halves[1]


@emits("set")
def set_(e: Emitter, op: Op) -> None:
    """All ones, or 1.0, where the comparison holds, else zero."""
    operator, result, kind = op.words[1], op.words[-2], op.words[-1]
    boolean = next((w for w in op.words[2:-2] if w in _BOOLEAN), "")
    a, b = (e.src(o, kind) for o in op.operands[1:3])
    extra = op.operands[3] if boolean else None
    if kind in ("f16x2", "bf16x2"):
        one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(result, 0xFFFF)
        whole = "zeroinitializer"
        for shift, held in zip((0, 16), _pairs(e, operator, kind, a, b), strict=True):
            lanes = e.lanes(_combined(e, held, boolean, extra))
            value = splat("i32", one << shift)
            part = e.c(f"select {vec('i1')} {lanes}, {vec('i32')} {value}, {vec('i32')} zeroinitializer")
            whole = e.c(f"or {vec('i32')} {whole}, {part}")
        e.dst(op.operands[0], whole, "b32")
        return
    held = e.bits(compare(e, operator, kind, a, b, "ftz" in op.words))
    lanes = e.lanes(_combined(e, held, boolean, extra))
    vector = vector_of(result)
    if result == "f32":
        one_text = splat_float(1.0)
    else:
        pattern = {"f16": 0x3C00, "bf16": 0x3F80}.get(result, -1)
        one_text = splat(f"i{bits_of(result)}", pattern)
    value = e.c(f"select {vec('i1')} {lanes}, {vector} {one_text}, {vector} zeroinitializer")
    e.dst(op.operands[0], value, result)
