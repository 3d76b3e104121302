"""The most likely token: index of the largest logit of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, bf16, f16, f32, s32, u32, u64
from ptxgen.idioms.convert import RUN
from ptxgen.idioms.elements import pieces, widest
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.rows import RowShare, RowWalk
from ptxgen.idioms.sampling.best import Best
from ptxgen.idioms.sampling.order import largest_of_warp, ordered_bits, ordered_key
from ptxgen.idioms.threads import ceil_div
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Launch, Param, buffer, workspace

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

THREADS = 256
WARPS = THREADS // 32
ELEMENTS = 8  # of a thread in one pass, all in flight
MOST_SPLITS = 128  # CTAs of a row: about one a multiprocessor


@kernel_type
class ArgMax(KernelType):
    """out[r] = index of the largest of x[r], the lowest among equals; a NaN counts as largest, as in torch.

    x `[rows, n]`, out s32 `[rows]`, `with_value` also value f32 `[rows]`. Always 0 ≤ out < n. One launch: `splits` CTAs
    of a row leave their best in `best` by an atomic maximum (of value bits that order as integers, and the complement
    of the index); the last to arrive writes the result and leaves both workspaces zero.
    """

    bundled_as = "arg_max"

    n: int = field(doc="elements of a row")
    dtype: DType = f32
    with_value: bool = field(default=False, doc="also write the largest value")
    programmatic: bool = False

    sizes = {"rows": 1}
    trials = ({"rows": 3},)
    unreported = {r" fence .*atom.acq_rel": "found by the reductions that come late: a wrong result"}
    goldens = (
        dict(n=1000),
        dict(n=5003, dtype=bf16, with_value=True),
        dict(n=600000, dtype=f16),
        dict(n=100, programmatic=True),
    )

    def rules(self) -> Iterator[str]:
        yield from rules.between("n", self.n, 1, (1 << 31) - (1 << 20))
        yield from rules.one_of("dtype", self.dtype.name, ("f32", "f16", "bf16"))

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)

    @property
    def splits(self) -> int:
        """CTAs of a row."""
        return min(ceil_div(self.n, THREADS * ELEMENTS), MOST_SPLITS)

    @property
    def share(self) -> RowShare:
        """How threads and CTAs share a row."""
        vector = min(ELEMENTS, widest(self.n, self.dtype.bytes))
        return RowShare(self.n, vector, THREADS, ELEMENTS // vector, self.splits)

    def params(self) -> tuple[Param, ...]:
        params = [buffer("x", self.dtype, "rows", self.n, align=self.share.vector * self.dtype.bytes)]
        params.append(buffer("out", s32, "rows", access="out", align=4))
        if self.with_value:
            params.append(buffer("value", f32, "rows", access="out", align=4))
        if self.splits > 1:
            params += [workspace("best", u64, "rows", align=8, zeroed=True)]
            params += [workspace("arrivals", u32, "rows", align=4, zeroed=True)]
        return tuple(params)

    def launch(self, target: Target) -> Launch:
        return Launch(("rows", self.splits, 1), (THREADS, 1, 1), programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        wait_for_producer(b, self.programmatic)
        walk = RowWalk(b, self.share, name="", guarded=True)
        with b.fragment("locate", "the row, the thread's place in it, and nothing found so far"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            row = b.op("mov.u32", "row", b.special("ctaid.x"))
            walk.begin(thread, b.op("mov.u32", "split", b.special("ctaid.y")))
            source = b.ld_param("x")
            wide_row = b.op("cvt.u64.u32", "wide_row", row)
            b.op("mad.lo.u64", source, wide_row, self.n * self.dtype.bytes, source)
            best, best_index = b.reg("best_key", "u32"), b.reg("best_index", "u32")
            b.op("mov.u32", best, 0)
            b.op("mov.u32", best_index, 0)
        self._scan(b, walk, source, best, best_index)
        with b.fragment("reduce_warp", "the warp's best, in every lane"):
            low = b.op("not.b32", "index_complement", best_index)
            largest_of_warp(b, best, low)
        merge = Best(b, best, low, thread, WARPS)
        merge.over_cta()
        merge.over_ctas(self.splits, row)
        self._store(b, row, best, low)

    def _scan(self, b: Builder, walk: RowWalk, source: Reg, best: Reg, best_index: Reg) -> None:
        """Fragments `load`, `compare` and `advance`: a pass of the CTA over its elements."""
        vector = self.share.vector
        values = b.array("element", "f32", self.share.elements)
        with b.fragment("load", "load a pass of the row"):
            walk.step()
            address = walk.at("address", source, self.dtype.bytes)
            loads = pieces(b, "word", self.dtype, values, vector)
            walk.load(address, loads)
        with b.fragment("compare", "compare the elements with the best so far, as ordered keys"):
            here = b.reg("here", "u32")
            key, better = b.reg("key", "u32"), b.reg("better", "pred")
            for i, (piece, index, exists) in enumerate(zip(loads, walk.index, walk.exists, strict=True)):
                mine = values[i * vector : (i + 1) * vector]
                piece.widen(b, mine)
                for j, value in enumerate(mine):
                    b.note(f"element {j} of vector {i}", after=RUN)
                    ordered_key(b, key, value)
                    b.op("setp.gt.and.u32", better, key, best, exists)
                    b.op("selp.u32", best, key, best, better)
                    b.op("add.u32", here, index, j)
                    b.op("selp.u32", best_index, here, best_index, better)
        if self.share.passes > 1:
            with b.fragment("advance", "on to the next pass"):
                walk.advance("again")

    def _store(self, b: Builder, row: Reg, best: Reg, low: Reg) -> None:
        with b.fragment("store", f"write the index of the best{', and its value' if self.with_value else ''}"):
            out = b.ld_param("out")
            b.op("mad.wide.u32", out, row, 4, out)
            winner = b.op("not.b32", "winner", low)
            b.op("st.global.s32", out[0], winner)
            if self.with_value:
                value = b.ld_param("value")
                b.op("mad.wide.u32", value, row, 4, value)
                b.op("st.global.b32", value[0], ordered_bits(b, "value_bits", best))

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        x = a["x"].astype(np.float32)
        index = np.argmax(x, axis=1).astype(np.int32)  # NumPy's too takes the first NaN for the largest
        out = {"out": index}
        if self.with_value:
            out["value"] = np.take_along_axis(x, index[:, None], 1)[:, 0]
        return out

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {}
