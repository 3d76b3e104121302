"""Products in e4m3 by weights with a scale for every block of 128 columns, in tiles of whole blocks: additions to the
totals alternate with a stage's products.

The first weights of the next stage are read while the last products of a stage run, if there are registers for both,
otherwise while their sums are added to the totals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ptxgen.builder import Fragment
from ptxgen.builder.values import Reg, RegArray
from ptxgen.products.wgmma.mainloop.multiplier import PER_CHUNK
from ptxgen.products.wgmma.mainloop.promoted import PromotedMultiplier, Turn, Unit
from ptxgen.products.wgmma.tokens.layout import ROW_BYTES


class Step(NamedTuple):
    """A unit's fragments: its products; on to the next stage, and that one's first weights where there is one (either
    None but behind the last); `early`: these go before the wait; the wait, the next unit's weights, and the sums."""

    products: Fragment | None
    unpack: Fragment | None
    advance: Fragment | None
    load: Fragment | None
    early: bool
    finish: Fragment
    promote: Fragment


class Stage(NamedTuple):
    """The fragments of a stage; the n-th of those that follow each other in the text."""

    number: int
    steps: list[Step]


class PipelinedMultiplier(PromotedMultiplier):
    """The same fragments, for `Geometry.pipelined`, and `load_first`; `stages`: of a loop's turn."""

    unpacks: Reg | None = None

    def _unreleased(self) -> Reg | None:
        b = self.b
        self.more = b.reg("multiplies_more", "pred")
        b.op("setp.eq.u32", self.more, 0, 0)
        if self._unpacks():
            self.unpacks = b.op("setp.ne.u32", "has_products", b.known("tiles_in_all"), 0)
        return None

    def _release(self, has_released: Reg | None, arrives: Reg) -> None:
        self.b.without("release", "multiplied")

    def _stage(self) -> Iterator[Fragment | Turn]:
        b = self.b
        with b.fragment("load_first", "the tile's first weights"):
            self._read_straight(self._part_of(self.units[0]), self.sets[0])
        b.expose(unpacks=self.unpacks, stages=[Stage(n, self._steps(n)) for n in range(len(self.sets))])
        return iter(())

    def _steps(self, stage: int) -> list[Step]:
        b, units, found = self.b, self.units, []
        own, following = self.sets[stage], self.sets[(stage + 1) % len(self.sets)]
        ahead = len(self.shorts) - 1  # units whose products run while the sums of one go to the totals
        early = len(self.sets) > 1
        goes_on = len(units) - 1 - (ahead if early else 0)
        for unit in units:
            number, name = unit.number, f"{stage}_{unit.number}"
            issued = units[: ahead + 1] if number == 0 else units[number + ahead : number + ahead + 1]
            products = None
            if issued:
                with b.fragment(f"products{name}", "; ".join(map(self._named, issued))) as products:
                    for each in issued:
                        self._products(each, own)
            unpack = None
            if self._unpacks():
                with b.fragment(f"unpack{name}", "its tokens' factors") as unpack:
                    self._unpack(unit)
            advance = load = None
            if number == goes_on:
                with b.fragment(f"advance{stage}", "on to the next stage") as advance:
                    self._advance()
                with b.fragment(f"load{stage}", "its first weights") as load:
                    self._read_straight(self._part_of(units[0]), following)
            with b.fragment(f"finish{name}", "its products are done") as finish:
                b.op("wgmma.wait_group.sync.aligned", min(ahead, len(units) - 1 - number))
            with b.fragment(f"promote{name}", f"sums of tokens {unit.first} on to the totals") as promote:
                self._promote(unit, 0)
                if unit is units[-1]:
                    self.arrive(self.arrives)
            found.append(Step(products, unpack, advance, load, early, finish, promote))
        return found

    def _products(self, unit: Unit, own: RegArray) -> None:
        b = self.b
        b.op("wgmma.fence.sync.aligned")
        for chunk in self._part_of(unit).chunks:
            self._describe(self._chunk_of_tokens(unit.tile, chunk) + unit.first * ROW_BYTES)
            a = own[PER_CHUNK * chunk : PER_CHUNK * (chunk + 1)]
            b.op(self.product, self._short(unit).regs, a, self.descriptor, int(chunk > 0), 1, 1)
        b.op("wgmma.commit_group.sync.aligned")
        self._read_scales(unit)

    def _advance(self) -> None:
        b, ring = self.b, self.ring
        b.op("mov.u32", self.released, ring.empty)
        ring.turn()
        b.op("sub.u32", self.step, self.step, 1)
        b.op("setp.ne.u32", self.more, self.step, 0)

    def _unpacks(self) -> bool:
        """Whether the tokens' factors are prepared while a unit's products run."""
        return False

    def _unpack(self, unit: Unit) -> None:
        """The factors of a unit's tokens."""

    def _read_scales(self, unit: Unit) -> None:
        """The scales of a unit whose products have begun."""
        raise NotImplementedError
