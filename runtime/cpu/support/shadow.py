"""Check mode's shadow of memory: what was written, and by which warp in which epoch. (begun below)"""

from __future__ import annotations

from ptxgen.runtime.cpu.ir import Code
from ptxgen.runtime.cpu.support import support


@support("shadow")
def shadow(what: str, space: str = "") -> str:
    """`shadow.begin(cta)`, `shadow.read.SPACE(…)`, `shadow.write.SPACE(…)`."""
    if what == "begin":
        c = Code("define internal void @shadow.begin(ptr %cta) noinline")
    else:
        c = Code(f"define internal void @shadow.{what}.{space}(ptr %w, i32 %site, i32 %lane, ptr %p, i64 %a, i64 %n) noinline")
    c.ret()
    return c.text()
