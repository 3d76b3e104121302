"""Mix heads of rows: a kernel type whose fields have names of ours, and other meanings and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import f32
from ptxgen.kernel import KernelType, kernel_type
from ptxgen.launch import Launch, Param, buffer

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.kernel import Arrays
    from ptxgen.targets import Target


@kernel_type
class MixHeads(KernelType):
    """out = factor · x + (1 − factor) · y + bias; x, y, out f32 `[rows, n_heads, head_dim]`.

    `factor`: share of x. `bias`: added to every element. `window`: the head that is not mixed; n_heads: none.
    """

    head_dim: int
    n_heads: int
    window: int
    factor: float = 0.5
    bias: float = 0.0

    sizes = {"rows": 2}
    goldens = (dict(head_dim=64, n_heads=2, window=2), dict(head_dim=100, n_heads=3, window=1, factor=0.25, bias=1.0))

    def rules(self) -> Iterator[str]:
        yield from rules.between("head_dim", self.head_dim, 1, 1024)
        yield from rules.one_of("n_heads", self.n_heads, (1, 2, 3))
        yield from rules.between("window", self.window, 0, 3)
        yield from rules.between("factor", self.factor, 0.0, 1.0)
        yield from rules.between("bias", self.bias, -1e6, 1e6)

    def params(self) -> tuple[Param, ...]:
        heads = ("rows", self.n_heads, self.head_dim)
        return buffer("x", f32, *heads), buffer("y", f32, *heads), buffer("out", f32, *heads, access="out")

    def launch(self, target: Target) -> Launch:
        return Launch(("rows", self.n_heads, 1), (-(-self.head_dim // 32) * 32, 1, 1))

    def build(self, b: Builder) -> None:
        with b.fragment("locate"):
            row = b.op("mov.u32", "row", b.special("ctaid.x"))
            head = b.op("mov.u32", "head", b.special("ctaid.y"))
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            b.op("setp.lt.u32", "inside", thread, self.head_dim)
            mixed = b.op("setp.ne.u32", "mixed", head, self.window)
        with b.fragment("mix"):
            x, y, out = b.ld_param("x"), b.ld_param("y"), b.ld_param("out")
            at = b.op("mul.wide.u32", "at", row, self.n_heads * self.head_dim * 4)
            b.op("mad.wide.u32", at, head, self.head_dim * 4, at)
            b.op("mad.wide.u32", at, thread, 4, at)
            value = b.op("ld.global.nc.f32", "value", b.op("add.u64", x, x, at)[0])
            other = b.op("ld.global.nc.f32", "other", b.op("add.u64", y, y, at)[0])
            b.op("mul.f32", value, value, self.factor, pred=mixed)
            b.op("fma.rn.f32", value, other, 1 - self.factor, value, pred=mixed)
            b.op("add.f32", value, value, self.bias)
            b.op("st.global.f32", b.op("add.u64", out, out, at)[0], value)

    def reference(self, **arguments: Any) -> Arrays:
        out = self.factor * arguments["x"] + (1 - self.factor) * arguments["y"]
        if self.window < self.n_heads:
            out[:, self.window] = arguments["x"][:, self.window]
        return {"out": out + self.bias}
