"""min and max of floats: what a host's own instructions do not give for NaN and signed zeros."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.support import support

_TYPES = {"f32": ("float", "i32"), "f64": ("double", "i64")}


@support("extreme")
def extreme(name: str, lanes: str, kind: str, nan: str = "") -> str:
    """`extreme.min|max.N.TYPE[.nan](a, b)`: a NaN loses (with `nan` it wins), −0 is below +0."""
    element, integer = _TYPES[kind]
    vector, whole, bools = (f"<{lanes} x {word}>" for word in (element, integer, "i1"))
    full_name = ".".join(["extreme", name, lanes, kind] + ([nan] if nan else []))
    c = Code(f"define internal {vector} @{full_name}({vector} %a, {vector} %b) noinline")

    def choose(condition: str, a: str, b: str) -> str:
        return c(f"select {bools} {condition}, {vector} {a}, {vector} {b}")

    result = choose(c(f"fcmp {'olt' if name == 'min' else 'ogt'} {vector} %a, %b"), "%a", "%b")
    bits = [c(f"bitcast {vector} {value} to {whole}") for value in ("%a", "%b")]
    merged = c(f"{'or' if name == 'min' else 'and'} {whole} {bits[0]}, {bits[1]}")
    result = choose(c(f"fcmp oeq {vector} %a, %b"), c(f"bitcast {whole} {merged} to {vector}"), result)
    if nan:
        result = choose(c(f"fcmp uno {vector} %a, %b"), c(f"fadd {vector} %a, %b"), result)
    else:
        result = choose(c(f"fcmp uno {vector} %b, %b"), "%a", result)
    c.ret(f"{vector} {result}")
    return c.text()
