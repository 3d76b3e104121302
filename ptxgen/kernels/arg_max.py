"""The most likely token: index of the largest logit of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, bf16, f16, f32, s32, u32, u64
from ptxgen.idioms import convert
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
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
    def vector(self) -> int:
        """Elements of a load: 16 bytes, or what keeps every row aligned."""
        return next(v for v in (8, 4, 2, 1) if v * self.dtype.bytes <= 16 and self.n % v == 0)

    @property
    def flight(self) -> int:
        """Loads of a thread in flight."""
        return ELEMENTS // self.vector

    @property
    def reach(self) -> int:
        """Elements that a CTA looks at in one pass."""
        return THREADS * ELEMENTS

    @property
    def splits(self) -> int:
        """CTAs of a row."""
        return min(ceil_div(self.n, self.reach), MOST_SPLITS)

    @property
    def passes(self) -> int:
        """Passes of a CTA."""
        return ceil_div(self.n, self.reach * self.splits)

    def params(self) -> tuple[Param, ...]:
        params = [buffer("x", self.dtype, "rows", self.n, align=self.vector * self.dtype.bytes)]
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
        with b.fragment("locate"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            row = b.op("mov.u32", "row", b.special("ctaid.x"))
            split = b.op("mov.u32", "split", b.special("ctaid.y"))
            first = b.op("mul.lo.u32", "first", split, self.reach)
            offset = b.op("mul.lo.u32", "thread_offset", thread, self.vector)
            source = b.ld_param("x")
            wide_row = b.op("cvt.u64.u32", "wide_row", row)
            b.op("mad.lo.u64", source, wide_row, self.n * self.dtype.bytes, source)
            best, best_index = b.reg("best_key", "u32"), b.reg("best_index", "u32")
            b.op("mov.u32", best, 0)
            b.op("mov.u32", best_index, 0)
        self._scan(b, source, offset, first, best, best_index)
        with b.fragment("reduce_warp"):
            low = b.op("not.b32", "index_complement", best_index)
            _reduce(b, best, low)
        with b.fragment("publish"):
            slots = b.shared("warp_best", 8 * WARPS)
            lane = b.op("and.b32", "lane", thread, 31)
            is_lane0 = b.op("setp.eq.u32", "is_lane0", lane, 0)
            slot = b.op("mov.u32", "slot", slots)
            mine = b.op("shr.u32", "slot_offset", thread, 5)
            b.op("mad.lo.u32", mine, mine, 8, slot)
            b.op("st.shared.v2.b32", mine[0], (low, best), pred=is_lane0)
            b.op("setp.lt.u32", "in_first_warp", thread, 32)
        with b.fragment("reduce_cta"):
            has_slot = b.op("setp.lt.u32", "has_slot", thread, WARPS)
            b.op("mad.lo.u32", slot, thread, 8, slot)
            b.op("mov.u32", best, 0)
            b.op("mov.b32", low, 0)
            b.op("ld.shared.v2.b32", (low, best), slot[0], pred=has_slot)
            _reduce(b, best, low)
            b.op("setp.eq.u32", "is_first", thread, 0)
        if self.splits > 1:
            self._merge(b, row, best, low)
        self._store(b, row, best, low)

    def _scan(self, b: Builder, source: Reg, offset: Reg, first: Reg, best: Reg, best_index: Reg) -> None:
        """Fragments `load`, `compare` and `advance`: a pass of the CTA over `reach` elements."""
        flight, vector = self.flight, self.vector
        values = b.array("element", "f32", flight * vector)
        index, exists = b.array("index", "u32", flight), b.array("exists", "pred", flight)
        with b.fragment("load"):
            address = b.reg("address", "u64")
            b.op("add.u32", index[0], first, offset)
            b.op("mad.wide.u32", address, index[0], self.dtype.bytes, source)
            loads = self._loads(b, values)
            for i in range(flight):
                if i:
                    b.op("add.u32", index[i], index[0], i * THREADS * vector)
                b.op("setp.lt.u32", exists[i], index[i], self.n)
                self._load(b, loads[i], address, i * THREADS * vector * self.dtype.bytes, exists[i])
        with b.fragment("compare"):
            here = b.reg("here", "u32")
            key, better = b.reg("key", "u32"), b.reg("better", "pred")
            for i in range(flight):
                mine = values[i * vector : (i + 1) * vector]
                self._widen(b, mine, loads[i])
                for j, value in enumerate(mine):
                    _ordered_key(b, key, value)
                    b.op("setp.gt.and.u32", better, key, best, exists[i])
                    b.op("selp.u32", best, key, best, better)
                    b.op("add.u32", here, index[i], j)
                    b.op("selp.u32", best_index, here, best_index, better)
        if self.passes > 1:
            with b.fragment("advance"):
                b.op("add.u32", first, first, self.splits * self.reach)
                b.op("setp.lt.u32", "again", first, self.n)

    def _loads(self, b: Builder, values: Sequence[Reg]) -> list[Sequence[Reg]]:
        """Registers that the loads fill: f32 values themselves, words, or single halves."""
        if self.dtype == f32:
            return [values[i * self.vector : (i + 1) * self.vector] for i in range(self.flight)]
        size = self.vector * self.dtype.bytes
        words = b.array("word", "b32" if size >= 4 else "b16", self.flight * max(1, size // 4))
        return [words[i * len(words) // self.flight : (i + 1) * len(words) // self.flight] for i in range(self.flight)]

    def _load(self, b: Builder, words: Sequence[Reg], address: Reg, offset: int, exists: Reg) -> None:
        convert.clear(b, words)
        if words[0].type == "b16":
            b.op("ld.global.b16", words[0], address[offset], pred=exists)
        else:
            convert.load_words(b, words, address, offset, pred=exists)

    def _widen(self, b: Builder, values: Sequence[Reg], words: Sequence[Reg]) -> None:
        if words[0].type != "b16":
            convert.unpack(b, values, words, self.dtype)
        elif self.dtype == f16:
            b.op("cvt.f32.f16", values[0], words[0])
        else:  # a bf16 is the upper half of its f32
            zero = convert.scratch(b, "zero", "b16")
            b.op("mov.b16", zero, 0)
            b.op("mov.b32", values[0], (zero, words[0]))

    def _merge(self, b: Builder, row: Reg, best: Reg, low: Reg) -> None:
        """Fragments `arrive` and `collect`: the row's maximum over CTAs, and who is the last of them."""
        with b.fragment("arrive"):
            packed = b.op("mov.b64", "packed", (low, best))
            row_best, arrivals = b.ld_param("best"), b.ld_param("arrivals")
            b.op("mad.wide.u32", row_best, row, 8, row_best)
            b.op("mad.wide.u32", arrivals, row, 4, arrivals)
            b.op("red.relaxed.gpu.global.max.u64", row_best[0], packed)
            b.note("counts to splits - 1 and then back to 0; acq_rel: all maxima before it are seen by the last")
            order = b.op("atom.acq_rel.gpu.global.inc.u32", "order", arrivals[0], self.splits - 1)
            b.op("setp.eq.u32", "is_last", order, self.splits - 1)
        with b.fragment("collect"):
            b.op("atom.relaxed.gpu.global.exch.b64", packed, row_best[0], 0)
            b.op("mov.b64", (low, best), packed)

    def _store(self, b: Builder, row: Reg, best: Reg, low: Reg) -> None:
        with b.fragment("store"):
            out = b.ld_param("out")
            b.op("mad.wide.u32", out, row, 4, out)
            winner = b.op("not.b32", "winner", low)
            b.op("st.global.s32", out[0], winner)
            if self.with_value:
                value = b.ld_param("value")
                b.op("mad.wide.u32", value, row, 4, value)
                b.note("back from the ordered key to the bits of the value")
                mask = b.op("shr.s32", "sign_mask", best, 31)
                b.op("not.b32", mask, mask)
                b.op("or.b32", mask, mask, 0x80000000)
                bits = b.op("xor.b32", "value_bits", best, mask)
                b.op("st.global.b32", value[0], bits)

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


def _ordered_key(b: Builder, key: Reg, value: Reg) -> None:
    """Bits that order as unsigned integers as the values do; -0 as +0, every NaN above all."""
    sign, is_nan = convert.scratch(b, "sign", "b32"), convert.scratch(b, "is_nan", "pred")
    b.op("add.f32", value, value, 0.0)
    b.op("mov.b32", key, value)
    b.op("shr.s32", sign, key, 31)
    b.op("or.b32", sign, sign, 0x80000000)
    b.op("xor.b32", key, key, sign)
    b.op("setp.nan.f32", is_nan, value, value)
    b.op("selp.b32", key, 0xFFFFFFFF, key, is_nan)


def _reduce(b: Builder, key: Reg, low: Reg) -> None:
    """The warp's largest (key, low) in every lane."""
    if b.target.includes_any(("sm_80",)):
        top, holds = convert.scratch(b, "top_key", "u32"), convert.scratch(b, "holds_top", "pred")
        b.op("redux.sync.max.u32", top, key, 0xFFFFFFFF)
        b.op("setp.eq.u32", holds, key, top)
        b.op("selp.b32", low, low, 0, holds)
        b.op("redux.sync.max.u32", low, low, 0xFFFFFFFF)
        b.op("mov.u32", key, top)
        return
    mine, theirs = convert.scratch(b, "mine", "b64"), convert.scratch(b, "theirs", "b64")
    other_key, other_low = convert.scratch(b, "other_key", "b32"), convert.scratch(b, "other_low", "b32")
    for distance in (16, 8, 4, 2, 1):
        b.op("shfl.sync.bfly.b32", other_key, key, distance, 31, 0xFFFFFFFF)
        b.op("shfl.sync.bfly.b32", other_low, low, distance, 31, 0xFFFFFFFF)
        b.op("mov.b64", theirs, (other_low, other_key))
        b.op("mov.b64", mine, (low, key))
        b.op("max.u64", mine, mine, theirs)
        b.op("mov.b64", (low, key), mine)
