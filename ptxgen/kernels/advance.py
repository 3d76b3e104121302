"""Count positions: what a decode step does at its end, so that the next one needs nothing from the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import s32
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Launch, Param, buffer, grid3

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target


@kernel_type
class Advance(KernelType):
    """position[r] += by and length[r] += by where 0 ≤ position[r] < max_len; both s32 `[rows]`.

    `history`: there, too, history[r, position[r] + by] = tokens[r] where it is below `history`; tokens s32 `[rows]`,
    history s32 `[rows, history]`.
    """

    max_len: int = field(local=True, silent="no result depends on it within the capacity")
    by: int = field(default=1, draws=(1, 3), refuses=(0,), doc="positions that were taken")
    history: int = field(default=0, draws=(0, 64), refuses=(-1,), doc="tokens of a row that are kept; 0: none")
    programmatic: bool = False

    sizes = {"rows": 3}
    goldens = (dict(max_len=64), dict(max_len=4096, by=4, programmatic=True), dict(max_len=64, history=64))

    def rules(self) -> Iterator[str]:
        yield from rules.between("max_len", self.max_len, 1, 1 << 24)
        yield from rules.between("by", self.by, 1, 1 << 24)
        yield from rules.between("history", self.history, 0, 1 << 24)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)

    def params(self) -> tuple[Param, ...]:
        counters = tuple(buffer(name, s32, "rows", access="inout", align=4) for name in ("position", "length"))
        if not self.history:
            return counters
        history = buffer("history", s32, "rows", self.history, access="inout", align=4)
        return (*counters, buffer("tokens", s32, "rows", align=4), history)

    def launch(self, target: Target) -> Launch:
        return Launch(grid3("rows"), (1, 1, 1), programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        wait_for_producer(b, self.programmatic)
        with b.fragment("locate", "addresses of the row's position and length"):
            row = b.op("mov.u32", "row", b.special("ctaid.x"))
            places = [b.ld_param(name) for name in ("position", "length")]
            for place in places:
                b.op("mad.wide.u32", place, row, s32.bytes, place)
        with b.fragment("count", "add to position and length, where the position is inside"):
            values = [b.reg(name, "s32") for name in ("position_now", "length_now")]
            for value, place in zip(values, places, strict=True):
                b.op("ld.global.s32", value, place[0])
            b.note("one unsigned comparison refuses negative positions too")
            counts = b.op("setp.lt.u32", "counts", values[0], self.max_len)
            for value, place in zip(values, places, strict=True):
                b.op("add.s32", value, value, self.by)
                b.op("st.global.s32", place[0], value, pred=counts)
        if self.history:
            with b.fragment("remember", "write the token to its position in the history"):
                tokens, history = b.ld_param("tokens"), b.ld_param("history")
                b.op("mad.wide.u32", tokens, row, s32.bytes, tokens)
                token = b.op("ld.global.s32", "token", tokens[0])
                b.op("setp.lt.and.u32", counts, values[0], self.history, counts)
                index = b.op("cvt.u64.u32", "wide_position", values[0])
                wide_row = b.op("cvt.u64.u32", "wide_row", row)
                b.op("mad.lo.u64", index, wide_row, self.history, index)
                b.op("mad.lo.u64", history, index, s32.bytes, history)
                b.op("st.global.s32", history[0], token, pred=counts)

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        import numpy as np

        positions = rng.integers(-1, self.max_len, sizes["rows"], np.int32, endpoint=True)
        out = {"position": positions, "length": positions + np.int32(1)}
        if self.history:
            out["tokens"] = rng.integers(0, 1000, sizes["rows"], np.int32)
            out["history"] = rng.integers(0, 1000, (sizes["rows"], self.history), np.int32)
        return out

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        position = a["position"]
        step = self.by * ((position >= 0) & (position < self.max_len)).astype(position.dtype)
        out = {name: a[name] + step for name in ("position", "length")}
        if self.history:
            out["history"] = a["history"].copy()
            for row, (moved, now) in enumerate(zip(step, out["position"], strict=True)):
                if moved and now < self.history:
                    out["history"][row, now] = a["tokens"][row]
        return out
