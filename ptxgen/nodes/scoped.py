"""What names of registers mean in a scope and in those around it. `%r<n>` is one entry, never n of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ptxgen.nodes import Variable

T = TypeVar("T")
_MOST_DIGITS = 10  # of a register's number


class Scoped(Generic[T]):
    """The names of one scope; `find` looks in it first and then outwards."""

    __slots__ = ("counted", "named", "outer")

    def __init__(self, outer: Scoped[T] | None = None) -> None:
        self.outer = outer
        self.named: dict[str, T] = {}
        self.counted: dict[str, tuple[int, T]] = {}  # stem of %r<n> -> n, meaning

    def declare(self, variable: Variable, meaning: T) -> None:
        """Enter a declaration of registers."""
        if variable.count:
            self.counted[variable.name] = (variable.count, meaning)
        else:
            self.named[variable.name] = meaning

    def find(self, name: str) -> T | None:
        """The meaning of a register's name; None where no scope declares it."""
        scope: Scoped[T] | None = self
        while scope is not None:
            found = scope.named.get(name)
            if found is None and scope.counted:
                found = among(scope.counted, name)
            if found is not None:
                return found
            scope = scope.outer
        return None

    def __bool__(self) -> bool:
        """Whether anything is declared."""
        scope: Scoped[T] | None = self
        while scope is not None:
            if scope.named or scope.counted:
                return True
            scope = scope.outer
        return False


def among(counted: dict[str, tuple[int, T]], name: str) -> T | None:
    """The meaning of a register such as `%r3`, which a declaration `%r<n>` holds if 3 is below n; None where none does.
    `counted`: of such declarations, stem → n and meaning."""
    stem = name.rstrip("0123456789")
    declared = counted.get(stem)
    if declared is not None:  # all its digits are the number, as a rule
        digits = name[len(stem) :]
        if 0 < len(digits) <= _MOST_DIGITS and (digits[0] != "0" or digits == "0") and int(digits) < declared[0]:
            return declared[1]
    if stem == name:
        return None
    for stem, number in _splits(name):
        declared = counted.get(stem)
        if declared is not None and number < declared[0]:
            return declared[1]
    return None


def _splits(name: str) -> Iterator[tuple[str, int]]:
    """The ways in which a name is a stem and a number; the stem itself may end in digits (`%kv2<4>` has `%kv23`)."""
    first = max(len(name.rstrip("0123456789")), len(name) - _MOST_DIGITS)
    for at in range(max(first, 1), len(name)):
        if name[at] != "0" or at == len(name) - 1:  # no register has a number such as 07
            yield name[:at], int(name[at:])
