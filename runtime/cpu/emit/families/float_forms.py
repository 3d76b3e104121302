"""What all float instructions share: the modifiers of an opcode, and min and max."""

from __future__ import annotations

from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.llvm_types import vector_of
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.native.ir import splat

ROUNDINGS = frozenset({"rn", "rz", "rm", "rp"})
_SIGN = {"f32": ("i32", 31), "f64": ("i64", 63)}


class FloatForm:
    """The modifiers of a float opcode."""

    def __init__(self, op: Op) -> None:
        self.name = op.words[0]
        self.kind = op.words[-1]
        words = op.words[1:-1]
        self.ftz = "ftz" in words
        self.sat = "sat" in words
        self.approximate = next((w for w in ("approx", "full") if w in words), "")
        self.nan = "NaN" in words
        self.xorsign = "xorsign" in words
        self.relu = "relu" in words
        self.rounding = next((w for w in words if w in ROUNDINGS), "rn")


def extreme(e: Emitter, form: FloatForm, a: str, b: str, vector: str = "", element: str = "", bit: int = 0) -> str:
    """min or max: a NaN loses (with `.NaN` it wins), −0 is below +0; `.xorsign.abs` compares magnitudes."""
    if not vector:
        vector = vector_of(form.kind)
        element, bit = _SIGN[form.kind]
    count = vector[1:].partition(" ")[0]
    whole = f"<{count} x {element}>"
    sign = None
    if form.xorsign:
        top = splat(element, -(1 << bit))
        x, y = e.cast(a, vector, whole), e.cast(b, vector, whole)
        sign = e.c(f"and {whole} {e.c(f'xor {whole} {x}, {y}')}, {top}")
        keep = splat(element, (1 << bit) - 1)
        a, b = (e.cast(e.c(f"and {whole} {v}, {keep}"), whole, vector) for v in (x, y))
    name = f"extreme.{form.name}.{count}.{'f64' if element == 'i64' else 'f32'}{'.nan' if form.nan else ''}"
    result = e.c(f"call {vector} @{name}({vector} {a}, {vector} {b})")
    if sign is not None:
        result = e.cast(e.c(f"or {whole} {e.cast(result, vector, whole)}, {sign}"), whole, vector)
    return result
