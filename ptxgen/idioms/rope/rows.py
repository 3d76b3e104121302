"""What the kernel types that rotate rows of heads share: their geometry, and a thread's chunk from load to rotation.

Owns the fragments `load_frequencies`, `depends`, `widen` and `rotate`; where chunks lie and go is the kernel types'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.dtypes import DType
from ptxgen.idioms import convert, kv_cache
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.idioms.threads import CHUNK, HeadMap, Place
from ptxgen.kernel import Spread
from ptxgen.launch import Launch
from ptxgen.spec.fields import Said

if TYPE_CHECKING:
    from ptxgen.targets import Target


STYLE = Said(doc="pairs that rotate together: norm (adjacent) or neox (halves)")
PRECISE = Said(doc="sine and cosine by polynomials instead of the hardware's approximations")
IN_PLACE = Said(doc="results replace the inputs")
ROPE_FIELDS = Spread(RopeSettings, {"theta": 10000.0, "rotary_dim": None})


class RotatingRows:
    """Base, beside `KernelType`, of a kernel type with these fields, those of a `Rotation`, and a `map` of threads."""

    style: str
    in_place: bool
    indirect: bool
    batched: bool
    programmatic: bool

    @property
    def map(self) -> HeadMap:
        """Threads of a row."""
        raise NotImplementedError

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""
        return rotary.Rotation.of(self)

    @property
    def exchanges(self) -> bool:
        """Whether threads read what others of their CTA overwrite."""
        return self.in_place and self.style == "neox"

    def rotation_rules(self) -> Iterator[str]:
        """Reasons against the fields named here and those of the rotation."""
        yield from self.rotation.rules()
        yield from kv_cache.position_rules(self.batched, self.indirect)

    def target_rules(self, target: Target) -> Iterator[str]:
        """griddepcontrol needs sm_90."""
        yield from programmatic_rules(self.programmatic, target)

    def launch(self, target: Target) -> Launch:
        """A row's CTAs side by side."""
        return Launch(("rows", self.map.ctas, 1), (self.map.threads, 1, 1), programmatic=self.programmatic)

    def rotating_chunk(self, b: Builder, place: Place, rotates: Reg, dtype: DType) -> RotatingChunk:
        """Ask for the frequencies of this thread's chunk, which wait for no kernel before this one."""
        with b.fragment("load_frequencies"):
            rotor = rotary.load_turns(b, self.rotation, place.chunk, rotates, dtype)
        wait_for_producer(b, self.programmatic)
        return RotatingChunk(rotor, place, rotates, dtype)


@dataclass(frozen=True)
class RotatingChunk:
    """A thread's 8 elements of `dtype`; `rotates`: they do."""

    rotor: rotary.Rotor
    place: Place
    rotates: Reg
    dtype: DType

    def load(self, b: Builder, source: Reg, *, cleared: bool = False) -> tuple[RegArray, RegArray]:
        """Load the chunk at `source` and the elements that pair with it; part of an open fragment. The f32 values to
        be, and the words loaded; `cleared`: zeros in a lane without a chunk."""
        values = b.array("value", "f32", CHUNK)
        words = convert.word_array(b, "word", values, self.dtype)
        if cleared:
            b.note("lanes without a chunk add nothing to what those of a head find together")
            convert.clear(b, words)
        convert.load_words(b, words, source, pred=self.place.has_chunk)
        rotary.load_partners(b, self.rotor, source, self.dtype, self.rotates)
        return values, words

    def widen(self, b: Builder, values: RegArray, words: RegArray) -> None:
        """Fragment `widen`: the words as f32."""
        with b.fragment("widen", "the chunk as f32"):
            convert.unpack(b, values, words, self.dtype)

    def turn(self, b: Builder, values: RegArray, position: Reg) -> None:
        """Fragment `rotate`: the values rotated by the angles of `position`."""
        with b.fragment("rotate", "rotate the chunk by its angles at the position"):
            rotary.rotate(b, self.rotor, values, position, self.dtype)
