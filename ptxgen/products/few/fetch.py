"""Weights on their way to the L2 before x is waited for, beyond the tiles that registers have room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.idioms import convert

if TYPE_CHECKING:
    from ptxgen.products.few.geometry import FewRuns
    from ptxgen.products.stream import Stream

LINE = 128  # bytes that a lane asks for


def fetch(b: Builder, stream: Stream, at: FewRuns) -> None:
    """Fragment `fetch`: the warp's next `at.fetched` tiles after those that are requested. For formats whose lanes
    read whole lines."""
    if not at.fetched:
        b.without("fetch")
        return
    (pattern, address), *_ = stream.reader.at.items()
    lanes = pattern.step // LINE  # of a tile
    with b.fragment("fetch", "the tiles after those come to the L2"):
        tile = b.op("shr.u32", "fetch_tile", stream.lane, lanes.bit_length() - 1)
        there, place = b.reg("fetches", "pred"), b.reg("fetch_at", "u64")
        line = b.op("mad.wide.u32", "fetch_from", stream.lane, LINE - pattern.stride, address)
        wraps = stream.reader.pitch - pattern.step * at.tiles
        index = convert.scratch(b, "fetch_index", "u32")
        for first in range(0, at.fetched, 32 // lanes):
            b.op("mov.u64", place, line)
            if stream.ahead is not None and wraps:
                b.op("add.u32", index, stream.ahead, first)
                b.op("add.u32", index, index, tile)
                b.op("setp.ge.u32", there, index, at.tiles)
                b.op("add.u64", place, place, wraps, pred=there)
            b.op("add.u32", index, tile, at.stages + first)
            b.op("setp.gt.u32", there, stream.left, index)
            b.op("prefetch.global.L2", place[pattern.step * first], pred=there)
