"""From slots to the output: a thread has a result of a token; what a cluster shares is added up in the order of k."""

from __future__ import annotations

from functools import cached_property

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.division import split
from ptxgen.products.digits_s8.geometry import TokenRuns
from ptxgen.products.digits_s8.roots import Roots
from ptxgen.products.epilogue.results import Epilogue
from ptxgen.products.mainloop.stream import Stream
from ptxgen.products.problem.product import Tokens
from ptxgen.products.problem.weighted import Surrounded
from ptxgen.products.split_k.slots import RunSlots, add_in_pairs
from ptxgen.weights.format import TILE_ROWS


class TokenResults(Epilogue):
    """Fragments `first_result`, `locate_result`, `combine`, `finish`, `store`, `next_result`; of a cluster between
    them `leave_sum`, `first_share`, `take_sums`."""

    at: TokenRuns

    def __init__(self, b: Builder, spec: Surrounded, at: TokenRuns, memory: Shared) -> None:
        super().__init__(b, spec, at, RunSlots(b, at, memory, at.vector_bytes))
        self.joins = at.split > 1
        self.share = -(-self.results // (32 * at.split)) * 32 if self.joins else self.results
        self.memory = memory
        self.units: Reg | int | None = None

    def locate(self, stream: Stream) -> Reg:
        """Build fragment `locate_slot`; the address of the slots, before x is waited for."""
        return self.run_slots.locate(stream)

    def build_results(self, stream: Stream, tokens: Tokens, roots: Roots | None = None) -> None:
        """Build every other fragment: from the warps' sums to stored results, which are multiplied by `roots`."""
        b, at, spec = self.b, self.at, self.spec
        self.tokens, self.values = tokens, b.array("result", "f32", spec.parts)
        self.result, has_result = b.reg("result_index", "u32"), b.reg("has_result", "pred")
        self.inside, self.out_row = b.reg("row_in_matrix", "pred"), b.reg("out_row", "u32")
        self.build_early(stream)
        with b.fragment("first_result", "results of the CTA, one a thread"):
            b.op("mov.u32", self.result, stream.thread)
            b.op("setp.lt.u32", has_result, self.result, self.results)
            self._count_units(stream)
        with b.fragment("locate_result", "the unit of the CTA, the token, the row, and their slots"):
            self._find(stream, "result")
            self.run_slots.find(stream, self.owner, self.row, self.token)
        with b.fragment("combine", "add the sums of the warps along k"):
            self.run_slots.combine(self.values.regs)
        if self.joins:
            self._join(stream)
        else:
            b.without("leave_sum", "first_share", "find_share", "take_sums", "next_share")
        with b.fragment("finish", "the result's address"):
            if roots is not None:
                roots.times(self.values.regs, self.token)
            self.place(self.out_row, self.inside)
        with b.fragment("store", "store the result"):
            self.store(self.out_row)
        with b.fragment("next_result"):
            b.op("add.u32", self.result, self.result, at.threads)
            b.op("setp.lt.u32", "more_results", self.result, self.results)

    def build_early(self, stream: Stream) -> None:
        """Fragments `ahead` and `read_early`: what is asked for before a thread has its first result."""
        self.b.without("ahead", "read_early")

    def _count_units(self, stream: Stream) -> None:
        if self.units is None:
            self.units = stream.units_of_cta()

    def _find(self, stream: Stream, name: str) -> None:
        """The unit, token and row of `result`, and whether the matrix has it; `name` begins those of registers."""
        b, at = self.b, self.at
        assert self.units is not None
        rest, self.row = split(b, f"{name}_rest", f"{name}_row", self.result, TILE_ROWS)
        owner, self.token = split(b, f"{name}_unit", f"{name}_token", rest, at.tokens)
        b.op("setp.lt.u32", self.inside, owner, self.units)
        last = b.op("sub.u32", f"{name}_last", self.units, 1) if isinstance(self.units, Reg) else self.units - 1
        self.owner = b.op("min.u32", f"{name}_owner", owner, last)
        record = b.op("add.u32", f"{name}_record", stream.first_unit, self.owner)
        b.op("mad.lo.u32", self.out_row, record, TILE_ROWS, self.row)
        b.op("setp.lt.and.u32", self.inside, self.out_row, self.spec.n, self.inside)

    def _join(self, stream: Stream) -> None:
        """This CTA's sums to shared memory, and of its share of the results those of all CTAs, the first in k first."""
        b, at = self.b, self.at
        assert stream.rank is not None
        with b.fragment("leave_sum", "this CTA's sum, for the cluster"):
            base = b.op("mov.u32", "cta_sums_at", self.memory)
            b.op("add.u32", base, base, at.vector_bytes + at.slot_bytes)
            own = b.op("mad.lo.u32", "own_sum_at", self.result, 4, base)
            for part, value in enumerate(self.values):
                b.op("st.shared.f32", own[4 * self.results * part], value)
        last = b.reg("share_end", "u32")
        with b.fragment("first_share", "the results of this CTA's share"):
            b.op("mul.lo.u32", last, stream.rank, self.share)
            b.op("add.u32", self.result, last, stream.thread)
            b.op("add.u32", last, last, self.share)
            b.op("min.u32", last, last, self.results)
            b.op("setp.lt.u32", "takes_share", self.result, last)
        with b.fragment("find_share", "its unit, token and row"):
            self._find(stream, "share")
        with b.fragment("take_sums", "add up over the cluster"):
            own = b.op("mad.lo.u32", "share_at", self.result, 4, base)
            theirs = convert.scratch(b, "theirs", "u32")
            ones = b.array("of_cta", "f32", at.parts * at.split)
            for peer in range(at.split):
                b.op("mapa.shared::cluster.u32", theirs, own, peer)
                for part in range(at.parts):
                    one = ones[at.split * part + peer]
                    b.op("ld.shared::cluster.f32", one, theirs[4 * self.results * part])
            for part, value in enumerate(self.values):
                b.op("mov.f32", value, add_in_pairs(b, ones[at.split * part : at.split * (part + 1)]))
        with b.fragment("next_share"):
            b.op("add.u32", self.result, self.result, at.threads)
            b.op("setp.lt.u32", "more_shares", self.result, last)


class EarlyResults(TokenResults):
    """`TokenResults` that read something beside the sums: `sources`. It comes to the L2 while tiles are multiplied, and
    where a thread has one result at most to registers before the warps meet."""

    early: bool

    @cached_property
    def params(self) -> dict[str, Reg]:
        """Addresses that parameters have, by name, as far as they were asked for."""
        return {}

    def param(self, name: str) -> Reg:
        """The address that a parameter has, loaded once."""
        if name not in self.params:
            self.params[name] = self.b.ld_param(name)
        return self.params[name]

    def sources(self, name: str) -> dict[str, tuple[Reg, Reg]]:
        """What the result of a thread reads: addresses, and who has them; `name` begins those of registers."""
        raise NotImplementedError

    def read(self, name: str) -> None:
        """Read it."""
        raise NotImplementedError

    def build_early(self, stream: Stream) -> None:
        b, most = self.b, self.share if self.joins else self.results
        self.early = most <= self.at.threads
        with b.fragment("ahead", "what results read beside the sums comes to the L2"):
            self._first(stream, "ahead")
            for address, has in self.sources("ahead").values():
                b.op("prefetch.global.L2", address[0], pred=has)
        if not self.early:
            b.without("read_early")
            return
        with b.fragment("read_early", "what the thread's result reads beside the sums"):
            self._first(stream, "early")
            self.read("early")

    def _first(self, stream: Stream, name: str) -> None:
        """The thread's first result, of a cluster's that of its share."""
        b = self.b
        self._count_units(stream)
        b.op("mov.u32", self.result, stream.thread)
        if self.joins:
            b.op("mad.lo.u32", self.result, stream.rank, self.share, self.result)
        self._find(stream, name)
