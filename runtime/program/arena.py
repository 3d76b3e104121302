"""Scratch memory of a Program: which bytes each tensor has while it lives. Pure; owns no memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptxgen.models.program import Program

ALIGN = 256


@dataclass(frozen=True)
class Life:
    """The ops, first to last, between which a tensor's bytes are its own."""

    name: str
    first: int
    last: int
    nbytes: int


@dataclass(frozen=True)
class Arena:
    """Offsets of the scratch tensors in one block of `nbytes`; `needed` is what lives at once at most."""

    offsets: Mapping[str, int]
    nbytes: int
    needed: int


def lives(program: Program) -> tuple[Life, ...]:
    """The scratch tensors from the op that first writes them to the last that touches them."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, op in enumerate(program.ops):
        for _, ref in op.buffers():
            first.setdefault(ref.tensor, index)
            last[ref.tensor] = index
    scratch = program.of_kind("scratch")
    return tuple(Life(t.name, first[t.name], last[t.name], -(-t.nbytes // ALIGN) * ALIGN) for t in scratch)


def plan_arena(program: Program) -> Arena:
    """Place the largest first, each at the lowest offset that no tensor alive at the same time has."""
    placed: list[tuple[int, Life]] = []
    for life in sorted(lives(program), key=lambda one: (-one.nbytes, one.first, one.name)):
        taken = sorted(_beside(life, placed))
        offset = 0
        for at, end in taken:
            if offset + life.nbytes <= at:
                break
            offset = max(offset, end)
        placed.append((offset, life))
    nbytes = max((offset + life.nbytes for offset, life in placed), default=0)
    steps = range(len(program.ops))
    alive = [sum(life.nbytes for _, life in placed if life.first <= step <= life.last) for step in steps]
    return Arena({life.name: offset for offset, life in placed}, nbytes, max(alive, default=0))


def _beside(life: Life, placed: list[tuple[int, Life]]) -> list[tuple[int, int]]:
    """Ranges of bytes of those that live when `life` does."""
    return [(at, at + o.nbytes) for at, o in placed if o.first <= life.last and life.first <= o.last]
