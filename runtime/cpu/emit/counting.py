"""A warp function that counts: how many lanes reached and executed each instruction, and when warps met at barriers.

For `ptxgen check --coverage`; the counters are variables of the object code, which one host thread may use at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.flow.flow import Block, Flow, Op
from ptxgen.runtime.cpu.native.host import Host
from ptxgen.runtime.cpu.native.layout import CTA, WARP

COUNTERS, EVENTS, EVENT_COUNT = "counters", "events", "event_count"
EXPORTS = (COUNTERS, EVENTS, EVENT_COUNT)
MOST_EVENTS = 1 << 16
EVENT_WORDS = 4  # i64: the CTA's number in the grid, the warp's in the CTA, place, lanes
ARRIVES, GOES_ON = 0, 1  # a place is twice an instruction's number, plus this


@dataclass(frozen=True)
class Counted:
    """An instruction that is counted: its line and text; `branch`: it has two ways to go (or a guard); `waits`: warps
    meet there. Instructions that no path leads to have a number, too."""

    line: int
    text: str
    branch: bool
    waits: bool


def waits(words: tuple[str, ...]) -> bool:
    """Whether warps meet at such an instruction."""
    return (words[0] in ("bar", "barrier") and words[1:2] != ("warp",)) or words[:2] == ("mbarrier", "try_wait")


class CountingEmitter(Emitter):
    """Emits the same, with counters; `counted` describes them."""

    def __init__(self, module: nodes.Module, flow: Flow, name: str, check: bool, host: Host) -> None:
        super().__init__(module, flow, name, check, host)
        every = [op for called in flow.functions.values() for block in called.blocks for op in block.ops]
        shown = [op for op in every if op.text and not op.words[0].startswith("$") and op.words[0] != "wake"]
        self.numbers = {id(op): n for n, op in enumerate(shown)}
        self.counted = [Counted(op.line, op.text, op.guard is not None, waits(op.words)) for op in shown]
        self._met = {  # blocks that lanes enter from a barrier, which ends the block before
            block.next.number: self.numbers[id(block.ops[-1])]
            for block in flow.blocks
            if block.next is not None and block.ops and waits(block.ops[-1].words) and id(block.ops[-1]) in self.numbers
        }

    def entered(self, block: Block) -> None:
        """Lanes that waited go on."""
        if block.number in self._met:
            self._event(2 * self._met[block.number] + GOES_ON)

    def before(self, op: Op) -> None:
        """Count the lanes that are here, and those whose guard holds."""
        number = self.numbers.get(id(op))
        if number is None:
            return
        self._add(16 * number, self.mask)
        self._add(16 * number + 8, self.exec_mask())
        if waits(op.words):
            self._event(2 * number + ARRIVES)

    def after(self, op: Op) -> None:
        """Lanes that have passed a wait in the middle of a block."""
        number = self.numbers.get(id(op))
        if number is not None and waits(op.words) and not self.ended and not (op.family and op.family.blocks):
            self._event(2 * number + GOES_ON)

    def variables(self) -> str:
        """The definitions of the counters."""
        sizes = {COUNTERS: 2 * max(len(self.counted), 1), EVENTS: EVENT_WORDS * MOST_EVENTS, EVENT_COUNT: 1}
        return "".join(f"\n@{name} = global [{size} x i64] zeroinitializer, align 64" for name, size in sizes.items())

    def _add(self, offset: int, mask: str) -> None:
        c = self.c
        lanes = c(f"zext i32 {c(f'call i32 @llvm.ctpop.i32(i32 {mask})')} to i64")
        c.store("i64", c(f"add i64 {c.load('i64', f'@{COUNTERS}', offset)}, {lanes}"), f"@{COUNTERS}", offset)

    def _event(self, place: int) -> None:
        c = self.c
        count = c.load("i64", f"@{EVENT_COUNT}")
        with c.if_(c(f"icmp ult i64 {count}, {MOST_EVENTS}")):
            at = c(f"getelementptr i64, ptr @{EVENTS}, i64 {c(f'mul i64 {count}, {EVENT_WORDS}')}")
            warp = c(f"zext i32 {c.load('i32', '%w', WARP['id'])} to i64")
            lanes = c(f"zext i32 {self.mask} to i64")
            for n, value in enumerate((c.load("i64", self.cta, CTA["index"]), warp, str(place), lanes)):
                c.store("i64", value, at, 8 * n)
        c.store("i64", c(f"add i64 {count}, 1"), f"@{EVENT_COUNT}")
