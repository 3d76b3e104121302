"""How lanes leave a block: jumps, branches, waiting, and the dispatcher that picks the next block."""

from __future__ import annotations

from ptxgen.runtime.cpu.emit.operands import Operands
from ptxgen.runtime.cpu.flow.flow import Block
from ptxgen.runtime.cpu.native.ir import vec
from ptxgen.runtime.cpu.native.layout import DONE, FAULTED, PARKED, READY, WARP, YIELDED
from ptxgen.runtime.cpu.support.faults import FAULT_DIVERGED


class Jumps(Operands):
    """How blocks end: jumps, branches, returns, waits."""

    def enqueue(self, block: Block, mask: str) -> None:
        """Lanes continue at a block at the next dispatch."""
        self.c.do(f"call void @enqueue(ptr %w, i32 {block.number}, i32 {mask})")

    def goto(self, block: Block, mask: str) -> None:
        """All of the block's lanes go on at `block`: at once if no ready block comes before it."""
        c = self.c
        c.store("i32", mask, "%w", WARP["mask"])
        number = block.number
        if self.shape.words == 1:
            earlier = c(f"and i64 {c.load('i64', '%w', READY)}, {_signed((2 << number) - 1 & (1 << 64) - 1)}")
        else:
            earlier = c(f"and i64 {c.load('i64', '%w', WARP['summary'])}, {_signed((2 << number // 64) - 1)}")
        direct = c(f"icmp eq i64 {earlier}, 0")
        if number <= self.block.number:
            left = c(f"sub i32 {c.load('i32', '%w', WARP['budget'])}, 1")
            c.store("i32", left, "%w", WARP["budget"])
            direct = c(f"and i1 {direct}, {c(f'icmp sge i32 {left}, 0')}")
        c.do(f"br i1 {direct}, label %b{number}, label %enq{number}")
        self.ended = True

    def branch(self, taken: str, target: Block, other: Block) -> None:
        """The lanes in `taken` go to `target`, the block's other lanes to `other`."""
        c = self.c
        rest = c(f"and i32 {self.mask}, {c(f'xor i32 {taken}, -1')}")
        stem = c.fresh("")
        c.do(f"br i1 {c(f'icmp eq i32 {rest}, 0')}, label %all{stem}, label %notall{stem}")
        c.label(f"all{stem}")
        self.goto(target, self.mask)
        c.label(f"notall{stem}")
        c.do(f"br i1 {c(f'icmp eq i32 {taken}, 0')}, label %none{stem}, label %both{stem}")
        c.label(f"none{stem}")
        self.goto(other, self.mask)
        c.label(f"both{stem}")
        self.enqueue(target, taken)
        self.enqueue(other, rest)
        if min(target.number, other.number) <= self.block.number:
            left = c(f"sub i32 {c.load('i32', '%w', WARP['budget'])}, 1")
            c.store("i32", left, "%w", WARP["budget"])
        c.do("br label %dispatch")

    def to_dispatch(self) -> None:
        """End the block: its lanes have been enqueued, parked or have exited."""
        self.c.do("br label %dispatch")
        self.ended = True

    # waiting ----------------------------------------------------------------------------------------------------
    def resume_block(self) -> int:
        """Number of the block at which lanes that wait here continue."""
        assert self.block.next is not None
        return self.block.next.number

    def converge(self, members: str) -> None:
        """Wait until all lanes of `members` (an i32) that have not exited are here. First in a block."""
        self._converge("converge", f"i32 {members}")

    def converge_each(self, members: str) -> None:
        """As `converge`, where each lane has `members` (a vector of i32) of its own."""
        self._converge("converge.each", f"{vec('i32')} {members}")

    def converge_whole(self) -> None:
        """As `converge` of all lanes, of which some may be at another `bar.warp.sync` of the whole warp."""
        self._converge("converge.whole")

    def _converge(self, function: str, *members: str) -> None:
        c = self.c
        stem = c.fresh("here")
        pending = self.shape.pending + 4 * self.block.number
        given = ", ".join((f"ptr %w, i64 {pending}, i32 {self.mask}", *members))
        joined = c(f"call i32 @{function}({given})")
        c.do(f"br i1 {c(f'icmp eq i32 {joined}, 0')}, label %dispatch, label %{stem}")
        c.label(stem)
        if self.waits:
            c.do(f"call void @late_lanes.meet(ptr %w, i32 {joined})")
        self.mask = joined
        self._mask_vector = ""
        self._guards.clear()

    def wait_here(self, ready: str, kind: int, number: str, argument: str, count: int = 0) -> None:
        """Lanes of `ready` (an i32) go on; the others park and run this block again when woken. First in a block."""
        c = self.c
        site = self.new_site()
        late = c(f"and i32 {self.mask}, {c(f'xor i32 {ready}, -1')}")
        with c.if_(c(f"icmp ne i32 {late}, 0")):
            c.do(
                f"call void @park(ptr %w, i32 {kind}, i32 {number}, i32 {late}, i32 {self.block.number}, i32 {site}, "
                f"i32 {count}, i64 {argument})"
            )
        stem = c.fresh("")
        passing = c(f"and i32 {self.mask}, {ready}")
        c.do(f"br i1 {c(f'icmp eq i32 {passing}, 0')}, label %dispatch, label %pass{stem}")
        c.label(f"pass{stem}")
        self.mask = passing
        self._mask_vector = ""
        self._guards.clear()

    def left_behind(self, barriers: tuple[Block, ...]) -> None:
        """A finding if lanes of the warp wait at one of these barriers: lanes that are here never come there again."""
        c, here, this, places = self.c, self.exec_mask(), self.new_site(), []
        some = "0"
        for barrier in barriers:
            first = barrier.ops[0]
            self.sites.append((first.line, first.text, ""))
            waiting = c.load("i32", "%w", self.shape.pending + 4 * barrier.number)
            places.append((waiting, len(self.sites) - 1))
            some = c(f"or i32 {some}, {waiting}")
        with c.if_(c(f"icmp ne i32 {some}, 0"), likely=False), c.if_(c(f"icmp ne i32 {here}, 0")):
            wide = c(f"zext i32 {here} to i64")
            for waiting, site in places:
                with c.if_(c(f"icmp ne i32 {waiting}, 0")):
                    what = f"i32 {site}, i32 {FAULT_DIVERGED}, i32 {waiting}, i32 {this}, i64 0, i64 {wide}"
                    c.do(f"call void @fault(ptr %w, {what})")

    # the dispatcher ---------------------------------------------------------------------------------------------
    def _emit_dispatch(self) -> None:
        """Pick the lowest ready block, or return: faulted, out of budget, or nothing ready."""
        c = self.c
        c.label("enqueue")  # lanes that may not go on at once
        late = c.load("i32", self.next)
        c.do(f"call void @enqueue(ptr %w, i32 {late}, i32 {c.load('i32', '%w', WARP['mask'])})")
        c.do("br label %dispatch")
        c.label("dispatch")
        out_of_budget = c(f"icmp slt i32 {c.load('i32', '%w', WARP['budget'])}, 0")
        if self.shape.words == 1:
            ready = c.load("i64", "%w", READY)
            rotated = c(f"icmp ne i32 {c.load('i32', '%w', WARP['start'])}, 0")
            special = c(f"or i1 {out_of_budget}, {rotated}")
            c.do(f"br i1 {special}, label %search, label %lowest")
            c.label("lowest")
            c.do(f"br i1 {c(f'icmp eq i64 {ready}, 0')}, label %idle, label %found")
            c.label("found")
            wide = c(f"call i64 @llvm.cttz.i64(i64 {ready}, i1 true)")
            c.store("i64", c(f"and i64 {ready}, {c(f'sub i64 {ready}, 1')}"), "%w", READY)
            low = c(f"trunc i64 {wide} to i32")
            c.do("br label %chosen")
        else:
            c.do("br label %search")
        c.label("search")
        searched = c("call i32 @next.block(ptr %w)")
        c.do("switch i32 " + searched + ", label %chosen [i32 -1, label %idle i32 0, label %faulted]")
        c.label("chosen")
        number = c(f"phi i32 [{searched}, %search]" + (f", [{low}, %found]" if self.shape.words == 1 else ""))
        c.store("i32", number, "%w", WARP["block"])
        slot = c(f"getelementptr i32, ptr {c.at('%w', self.shape.pending)}, i32 {number}")
        budget_gone = c(f"icmp slt i32 {c.load('i32', '%w', WARP['budget'])}, 0")
        c.do(f"br i1 {budget_gone}, label %yield, label %go")
        c.label("go")
        c.store("i32", c.load("i32", slot), "%w", WARP["mask"])
        c.store("i32", 0, slot)
        cases = " ".join(f"i32 {b.number}, label %b{b.number}" for b in self.flow.blocks)
        c.do(f"switch i32 {number}, label %faulted [{cases}]")
        c.label("yield")
        c.do(f"call void @enqueue(ptr %w, i32 {number}, i32 0)")
        c.do(f"ret i32 {YIELDED}")
        c.label("faulted")
        c.do(f"ret i32 {FAULTED}")
        c.label("idle")
        everyone = c(f"icmp eq i32 {c.load('i32', '%w', WARP['exited'])}, -1")
        c.do("ret i32 " + c(f"select i1 {everyone}, i32 {DONE}, i32 {PARKED}"))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
