"""Prefill on wgmma, put together: the skeleton `attention/multi_head_attention_wgmma.ptx.j2` places the fragments."""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.wgmma.consumer.loop import Consumer
from ptxgen.attention.prefill.wgmma.consumer.merge import merged
from ptxgen.attention.prefill.wgmma.consumer.output import output
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.producer.by_tensor_maps import WARPS, Boxes
from ptxgen.attention.prefill.wgmma.producer.by_threads import Producer, QueryCopies
from ptxgen.attention.prefill.wgmma.producer.converting import Conversions
from ptxgen.attention.prefill.wgmma.ring import Ring
from ptxgen.attention.prefill.wgmma.tile import (
    WARPGROUP,
    WgmmaTile,
    by_maps,
    converts,
    makes_at_first,
    makes_rows,
    turns,
)
from ptxgen.attention.prefill.wgmma.variants import has_first_maximum
from ptxgen.attention.prefill.wgmma.workspace.rows_16bit import Widened
from ptxgen.attention.prefill.wgmma.workspace.transposed_values import Turned
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, e4m3


def build(b: Builder, spec: Prefill, tile: WgmmaTile, dtype: DType) -> None:
    """Build the fragments of every role."""
    first_maximum_serves = has_first_maximum(spec, tile, dtype)
    maps, converted = by_maps(spec), converts(spec)
    queries = 32 * WARPS if maps else 0  # the first thread that copies q
    items = Items(b, spec, tile)
    threads = tile.producer_threads
    ring = Ring(b, tile, 1 if maps else threads, threads - queries, boxes=maps)
    arena = b.shared("tiles", tile.shared_bytes, align=1024, dynamic=True)
    with b.fragment("begin", "shared memory and its mbarriers"):
        items.thread = b.op("mov.u32", "thread", b.special("tid.x"))
        smem = b.op("mov.u32", "smem", arena)
        ring.begin(smem)
        items.is_producer = b.op("setp.lt.u32", "is_producer", items.thread, threads)
        b.op("setp.eq.u32", "makes_barriers", items.thread, threads)
    with b.fragment("make_barriers"):
        ring.make(smem)
    items.locate()
    widened = (Turned if turns(spec) else Widened)(b, spec, tile, items, dtype) if makes_rows(spec) else None
    with b.fragment("give_registers"):
        b.op("setmaxnreg.dec.sync.aligned.u32", tile.producer_registers)
    with b.fragment("take_registers"):
        b.op("setmaxnreg.inc.sync.aligned.u32", tile.consumer_registers)
    items.find()
    if widened is not None:
        what = "V by element lies" if turns(spec) else "16-bit rows of K and V lie"
        with b.fragment("find_widened", f"where {what}"):
            widened.begin()
    if isinstance(widened, Turned):
        widened.ones(smem)
    else:
        b.without("ones")
    passes = b.reg("pass", "u32") if first_maximum_serves and widened is not None else None
    if maps:
        boxes = Boxes(b, tile, items, ring, e4m3 if spec.fp8 else dtype)
        boxes.build(smem)
        if widened is not None:
            widened.build(boxes.step, passes, boxes.copies_v)
        QueryCopies(b, spec, tile, items, ring, dtype, queries).build(smem)
    else:
        (Conversions if converted else Producer)(b, spec, tile, items, ring, dtype).build(smem)
    consumer = Consumer(b, spec, tile, items, ring, dtype)
    consumer.build(smem)
    if spec.split_keys:
        merged(consumer)
    output(consumer, smem, first_maximum_serves)
    if first_maximum_serves:
        _passes(b, tile, smem, passes or "pass")
    else:
        b.without("first_pass", "look_at_flag")
    b.expose(
        warpgroups=tile.warpgroups, group_threads=WARPGROUP, turn_threads=2 * WARPGROUP, out_over_q=tile.out_over_q,
        checks=first_maximum_serves, fill_part="boxes" if maps else "conversions" if converted else "copies",
        copies_need_fence=not (maps or converted),
        has_tails=tile.tails, widens=makes_rows(spec), widens_at_first=makes_at_first(spec),
        splits_keys=spec.split_keys,
    )  # fmt: skip


def _passes(b: Builder, tile: WgmmaTile, smem: Reg, number_of: Reg | str) -> None:
    """Fragments `first_pass` and `look_at_flag`, for tiles with the maximum of their first keys: a row that it does not
    serve sets a flag, and the CTA's items run once more with running maxima."""
    with b.fragment("first_pass"):
        number = b.op("mov.u32", number_of, 0)
        careful = b.op("setp.ne.u32", "is_careful", number, 0)
    with b.fragment("look_at_flag", "some row needs its running maximum: once more, carefully"):
        flag = b.reg("flag", "b32")
        b.op("ld.shared.b32", flag, smem[tile.flag_at])
        again = b.op("setp.ne.b32", b.reg("runs_again", "pred"), flag, 0)
        b.op("and.pred", again, again, ~careful)
        b.op("add.u32", number, number, 1)
        b.op("setp.ne.u32", careful, number, 0)
