"""Programmatic dependent launch: a kernel that starts while the one before it still runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ptxgen.builder import Builder

if TYPE_CHECKING:
    from ptxgen.targets import Target


def programmatic_rules(programmatic: bool, target: Target) -> Iterator[str]:
    """griddepcontrol needs sm_90."""
    if programmatic and not target.includes_any(("sm_90",)):
        yield f"programmatic: needs sm_90 or later (got {target}; nearest: False)"


def depend(b: Builder, releases: bool = True) -> None:
    """Let the next kernel start, if this one `releases` it, and wait until the one before has ended and its writes are
    visible."""
    if releases:
        b.op("griddepcontrol.launch_dependents")
    b.op("griddepcontrol.wait")


def wait_for_producer(b: Builder, programmatic: bool, releases: bool = True) -> None:
    """Fragment `depends`, which waits in a kernel that is `programmatic` and is absent from others."""
    if programmatic:
        with b.fragment("depends"):
            depend(b, releases)
    else:
        b.without("depends")


def release_and_wait(b: Builder, programmatic: bool, releases: bool = True) -> None:
    """The same in two fragments: `release`, where the kernel `releases`, lets the next one start, `depends` waits for
    the one before."""
    if not programmatic:
        b.without("release", "depends")
        return
    if releases:
        with b.fragment("release", "the next kernel may start"):
            b.op("griddepcontrol.launch_dependents")
    else:
        b.without("release")
    with b.fragment("depends"):
        b.op("griddepcontrol.wait")
