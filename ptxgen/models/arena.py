"""Scratch memory of a Program: which bytes each tensor has while it lives. Pure; owns no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


_ORDERS: tuple[Callable[[Life], tuple[object, ...]], ...] = (
    lambda life: (-life.nbytes, life.first, life.name),
    lambda life: (life.first - life.last, -life.nbytes, life.first, life.name),
    lambda life: (life.first, -life.nbytes, life.name),
    lambda life: (-life.nbytes * (1 + life.last - life.first), life.first, life.name),
)


def plan_arena(program: Program) -> Arena:
    """Place tensors one by one, each at the lowest offset that none alive at the same time has; of several orders (the
    largest first, the longest, the earliest, …) that which needs least."""
    alive = lives(program)
    placed = min((_place(sorted(alive, key=order)) for order in _ORDERS), key=_end)
    at_once = [sum(life.nbytes for life in alive if life.first <= i <= life.last) for i in range(len(program.ops))]
    return Arena({life.name: offset for offset, life in placed}, _end(placed), max(at_once, default=0))


def _place(alive: Sequence[Life]) -> list[tuple[int, Life]]:
    placed: list[tuple[int, Life]] = []
    for life in alive:
        taken = sorted(_beside(life, placed))
        offset = 0
        for at, end in taken:
            if offset + life.nbytes <= at:
                break
            offset = max(offset, end)
        placed.append((offset, life))
    return placed


def _end(placed: Sequence[tuple[int, Life]]) -> int:
    """The bytes that a placement needs."""
    return max((offset + life.nbytes for offset, life in placed), default=0)


def _beside(life: Life, placed: list[tuple[int, Life]]) -> list[tuple[int, int]]:
    """Ranges of bytes of those that live when `life` does."""
    return [(at, at + o.nbytes) for at, o in placed if o.first <= life.last and life.first <= o.last]
