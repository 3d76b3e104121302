"""What check mode asks of the warp function that is being emitted; `Operands` has it all."""

from __future__ import annotations

from typing import Protocol

from ptxgen.runtime.cpu.flow.blocks import Op, Source
from ptxgen.runtime.cpu.flow.flow import Flow
from ptxgen.runtime.cpu.flow.symbols import Reg
from ptxgen.runtime.cpu.native.ir import Code


class WarpCode(Protocol):
    """The present instruction, its lanes, its operands; masks of lanes are i32 values, by their names in the code."""

    c: Code
    flow: Flow
    op: Op
    mask: str

    def place(self, index: int, size: int) -> int:
        """Offset in a warp of a file slot, made when first asked for."""

    def exec_mask(self) -> str:
        """The lanes that execute the instruction: the block's mask and the guard."""

    def held(self, reg: Reg) -> str:
        """The lanes in which a predicate holds, read without a check."""

    def bits(self, lanes: str) -> str:
        """`<32 x i1>` as an i32."""

    def reg(self, operand: Source) -> Reg | None:
        """The register that an operand names; None for the sink and for special registers."""

    def src(self, operand: Source, kind: str) -> str:
        """A source operand as the vector of a PTX type."""

    def predicate(self, reg: Reg) -> str:
        """The lanes in which a predicate holds."""

    def fault_if(
        self, mask: str, kind: int, *, address: str = "0", size: object = 0, extra: str = "0", remark: str = ""
    ) -> None:
        """Report a finding for these lanes, where there are any."""
