"""An activation function of every element, or of a gate that multiplies another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import f32
from ptxgen.idioms import activation
from ptxgen.idioms.dot import multiply
from ptxgen.idioms.row_kernel import RowKernel
from ptxgen.idioms.rows import RowShare
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Param

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


@kernel_type
class Activation(RowKernel, KernelType):
    """out = kind(x), element by element; `gated`: out = kind(gate) · up.

    x, out f32 `[rows, dim]`; gated: x `[rows, 2 · dim]`, in every row the gate first; `apart`: x is the gate, and `up`,
    f32 `[rows, dim]`, what it multiplies. Absolute error 2e-7 of the element's magnitude. out may be x itself, where x
    is as large.
    """

    dim: int = field(doc="elements of a row of out")
    kind: str = field(default="silu", doc="silu, gelu (by the error function), gelu_tanh or relu2 (relu squared)")
    gated: bool = field(default=False, doc="the activation of the first half multiplies the second")
    apart: bool = field(default=False, doc="with gated: the gate is x, and what it multiplies another array")
    programmatic: bool = False

    sizes = {"rows": 2}
    goldens = (
        dict(dim=64),
        dict(dim=77, kind="gelu"),
        dict(dim=5000, kind="gelu_tanh", gated=True, programmatic=True),
        dict(dim=33, kind="relu2", gated=True),
        dict(dim=1537, gated=True, apart=True),
    )

    def rules(self) -> Iterator[str]:
        yield from rules.between("dim", self.dim, 1, 1 << 20)
        yield from rules.one_of("kind", self.kind, activation.KINDS)
        if self.apart and not self.gated:
            yield "apart: says where the second half of a gate lies (got apart=True, gated=False; nearest: gated=True)"

    @property
    def may_alias(self) -> Mapping[str, str]:  # type: ignore[override]
        """Where no gate lies beside what it multiplies, out is as large as x."""
        return {} if self._halves else {"out": "x"}

    @property
    def _halves(self) -> bool:
        """Whether a row of x is a gate and what it multiplies."""
        return self.gated and not self.apart

    @property
    def share(self) -> RowShare:
        """Every CTA takes a part of a row."""
        return RowShare.spread(self.dim, f32.bytes)

    def params(self) -> tuple[Param, ...]:
        x = self.row("x", elements=2 * self.dim if self._halves else self.dim)
        return x, *((self.row("up"),) if self.apart else ()), self.row("out", access="out")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        values = rows.array("value")
        with b.fragment("load", f"load the thread's elements{' of both halves' if self.gated else ''}"):
            rows.step()
            rows.load("x", values)
            if self.gated:
                others = rows.array("other")
                rows.load(*(("up", others) if self.apart else ("x", others, self.dim)))
        with b.fragment("activate", f"activate the {'first half, times the second' if self.gated else 'elements'}"):
            activation.activate(b, self.kind, values)
            if self.gated:
                multiply(b, values, others)
        with b.fragment("store", "store the thread's elements"):
            rows.store("out", values)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out = activation.reference(self.kind, a["x"][:, : self.dim])
        if self.gated:
            out = out * (a["up"] if self.apart else a["x"][:, self.dim :])
        return {"out": out.astype(np.float32)}
