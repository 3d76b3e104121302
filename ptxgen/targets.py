"""GPU architectures as a lattice: which target includes which, and which device runs what. No comparison of names.

Source: PTX ISA 9.0, "PTX Module Directives: .target", and the release history of the same document.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ptxgen.errors import TargetError, brief

IsaVersion = tuple[int, int]

# Lowest PTX ISA version whose `.target` knows the architecture: by suffix "", "f", "a".
_LOWEST_PTX: dict[tuple[int, int], dict[str, IsaVersion]] = {
    (7, 0): {"": (6, 0)},
    (7, 2): {"": (6, 1)},
    (7, 5): {"": (6, 3)},
    (8, 0): {"": (7, 0)},
    (8, 6): {"": (7, 1)},
    (8, 7): {"": (7, 4)},
    (8, 8): {"": (9, 0)},
    (8, 9): {"": (7, 8)},
    (9, 0): {"": (7, 8), "a": (8, 0)},
    (10, 0): {"": (8, 6), "f": (8, 8), "a": (8, 6)},
    (10, 1): {"": (8, 6), "f": (8, 8), "a": (8, 6)},
    (10, 3): {"": (8, 8), "f": (8, 8), "a": (8, 8)},
    (11, 0): {"": (9, 0), "f": (9, 0), "a": (9, 0)},
    (12, 0): {"": (8, 7), "f": (8, 8), "a": (8, 7)},
    (12, 1): {"": (8, 8), "f": (8, 8), "a": (8, 8)},
}

# Shared memory one CTA may use with the opt-in attribute, in bytes (CUDA C++ Programming Guide, technical
# specifications per compute capability); the static limit is 48 KiB everywhere.
_SHARED_LIMIT: dict[tuple[int, int], int] = {
    (7, 0): 96, (7, 2): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 8): 99, (8, 9): 99, (9, 0): 227,
    (10, 0): 227, (10, 1): 227, (10, 3): 227, (11, 0): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
STATIC_SHARED_LIMIT = 48 * 1024

# Driver (as reported by cuDriverGetVersion) that first loads a PTX ISA version.
_DRIVER_OF_PTX: dict[IsaVersion, int] = {
    (6, 0): 9000, (6, 1): 9010, (6, 2): 9020, (6, 3): 10000, (6, 4): 10010, (6, 5): 10020, (7, 0): 11000,
    (7, 1): 11010, (7, 2): 11020, (7, 3): 11030, (7, 4): 11040, (7, 5): 11050, (7, 6): 11060, (7, 7): 11070,
    (7, 8): 11080, (8, 0): 12000, (8, 1): 12010, (8, 2): 12020, (8, 3): 12030, (8, 4): 12040, (8, 5): 12050,
    (8, 6): 12070, (8, 7): 12080, (8, 8): 12090, (9, 0): 13000, (9, 1): 13010, (9, 2): 13020, (9, 3): 13030,
}  # fmt: skip


def driver_for_ptx(version: IsaVersion) -> int | None:
    """Lowest driver version (`13000` is 13.0) that loads PTX of this ISA version; None when it is not known."""
    return _DRIVER_OF_PTX.get(version)


def newest_ptx() -> IsaVersion:
    """The highest PTX ISA version that is known here."""
    return max(_DRIVER_OF_PTX)


def ptx_of_driver(driver: int) -> IsaVersion:
    """Highest PTX ISA version that a driver (`13000` is 13.0) loads."""
    known = [ptx for ptx, needs in _DRIVER_OF_PTX.items() if needs <= driver]
    if not known:
        raise TargetError(f"driver: must be 9.0 or newer (got {driver // 1000}.{driver % 1000 // 10})")
    return max(known)


# CUDA version that each branch of Linux drivers brings (CUDA Toolkit release notes, "CUDA Toolkit and Corresponding
# Driver Versions").
_CUDA_OF_BRANCH: dict[int, tuple[int, int]] = {
    384: (9, 0), 387: (9, 1), 396: (9, 2), 410: (10, 0), 418: (10, 1), 440: (10, 2), 450: (11, 0), 455: (11, 1),
    460: (11, 2), 465: (11, 3), 470: (11, 4), 495: (11, 5), 510: (11, 6), 515: (11, 7), 520: (11, 8), 525: (12, 0),
    530: (12, 1), 535: (12, 2), 545: (12, 3), 550: (12, 4), 555: (12, 5), 560: (12, 6), 565: (12, 7), 570: (12, 8),
    575: (12, 9), 580: (13, 0),
}  # fmt: skip


def cuda_of_driver(branch: int) -> tuple[int, int]:
    """CUDA version of a driver by its branch (`570` of 570.12: CUDA 12.8). Raises `TargetError` for an unknown one."""
    known = [(first, version) for first, version in _CUDA_OF_BRANCH.items() if first <= branch]
    if not known or branch >= max(_CUDA_OF_BRANCH) + 10:
        first, last = min(_CUDA_OF_BRANCH), max(_CUDA_OF_BRANCH)
        raise TargetError(f"must be a branch from {first} to {last}, or a CUDA version such as 12.8 (got {branch})")
    return max(known)[1]


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture: `sm_90` is (9, 0, ""), `sm_90a` (9, 0, "a"), `sm_120f` (12, 0, "f").

    Without a suffix its code runs on that and every later architecture; `f` within the family (same major, same or
    later minor); `a` on that architecture alone.
    """

    major: int
    minor: int
    suffix: str = ""

    @property
    def name(self) -> str:
        """`sm_90a`."""
        return f"sm_{self.major}{self.minor}{self.suffix}"

    @property
    def base(self) -> Target:
        """The same architecture without a suffix."""
        return Target(self.major, self.minor)

    @property
    def lowest_ptx(self) -> IsaVersion:
        """Lowest PTX ISA version whose `.target` accepts this name."""
        return _LOWEST_PTX[self.major, self.minor][self.suffix]

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory one CTA may have, with the dynamic attribute set."""
        return _SHARED_LIMIT[self.major, self.minor] * 1024

    def includes(self, feature: Target) -> bool:
        """Whether this target has everything that a text for `feature` may use."""
        here, there = (self.major, self.minor), (feature.major, feature.minor)
        if feature.suffix == "a":
            return self == feature
        if feature.suffix == "f":
            return self.suffix != "" and self.major == feature.major and here >= there
        return here >= there

    def includes_any(self, features: tuple[str, ...]) -> bool:
        """Whether one of the alternatives (`("sm_90a", "sm_100f")`) is included; no alternative: no demand."""
        return not features or any(self.includes(target(f)) for f in features)

    def runs_on(self, compute_capability: tuple[int, int]) -> bool:
        """Whether PTX of this target can be compiled for a device of that compute capability."""
        here = (self.major, self.minor)
        if self.suffix == "a":
            return compute_capability == here
        if self.suffix == "f":
            return compute_capability[0] == self.major and compute_capability >= here
        return compute_capability >= here

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


ALL_TARGETS: tuple[Target, ...] = tuple(
    Target(major, minor, suffix) for (major, minor), row in _LOWEST_PTX.items() for suffix in row
)


@lru_cache(maxsize=256)
def _parse(name: str) -> Target:
    match = re.fullmatch(r"(?:sm|compute)_?(\d{1,3})(\d)([af]?)|(\d{1,3})\.(\d)([af]?)", name, re.ASCII)
    major, minor, suffix = [part for part in match.groups() if part is not None] if match else ("0", "0", "")
    found = Target(int(major), int(minor), suffix)
    if found not in ALL_TARGETS:
        raise TargetError(f"target: must be one of {', '.join(t.name for t in ALL_TARGETS)} (got {brief(name)})")
    return found


def target(value: str | Target) -> Target:
    """The `Target` that a name stands for: `sm_90a`, `sm90a`, `compute_90a` or `9.0a`. Raises `TargetError` with the
    known names for anything else.
    """
    return value if isinstance(value, Target) else _parse(str(value))


def own_target(names: Sequence[str]) -> Target | None:
    """The architecture that a `.target` directive with these words names, or None when it is unknown."""
    try:
        return target(names[0]) if "_" in names[0] else None  # the short names are no PTX
    except TargetError:
        return None


def target_of_capability(major: int, minor: int) -> Target:
    """The most capable target that a device of this compute capability runs (`sm_90a` on 9.0)."""
    fitting = [t for t in ALL_TARGETS if t.runs_on((major, minor))]
    if not fitting:
        raise TargetError(f"compute capability: must be 7.0 or newer (got {major}.{minor})")
    return max(fitting, key=lambda t: (t.major, t.minor, t.suffix == "a", t.suffix == "f"))
