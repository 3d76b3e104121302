"""The code of a product, put together: how x comes, the loop over tiles, and an epilogue, fragments in order."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.builder import Builder
from ptxgen.idioms.programmatic import depend, release_and_wait
from ptxgen.products.epilogue.results import Epilogue
from ptxgen.products.geometry.groups import Geometry
from ptxgen.products.geometry.runs import Runs, tiles_before_x
from ptxgen.products.mainloop import mma
from ptxgen.products.mainloop.fma import FmaLoop
from ptxgen.products.mainloop.stream import Stream
from ptxgen.products.problem.product import Product
from ptxgen.products.prologue.prepare import Prepare
from ptxgen.products.prologue.squares import Squares
from ptxgen.products.prologue.stage import Stage

MakeEpilogue = Callable[[Builder, Product, Geometry | Runs], Epilogue]


def build_product(
    b: Builder, spec: Product, make_epilogue: MakeEpilogue = Epilogue, at: Geometry | Runs | None = None,
    first_cta: int = 0, weight: str = "weight",
) -> None:  # fmt: skip
    """All fragments, with a kind of epilogue; where this is a part of a launch, with its geometry `at`, from a CTA on,
    and with the parameter `weight`."""
    at = at or spec.geometry(b.target)
    if isinstance(at, Runs):
        _build_stream(b, spec, make_epilogue, at, first_cta, weight)
        return
    stage = Stage(b, spec, at) if spec.stages(b.target) else None
    loop = mma.TokenLoop(b, spec, at) if stage is None else FmaLoop(b, spec, at, stage.vector)
    loop.locate(spec.group_axis, first_cta, weight)
    if spec.programmatic:
        with b.fragment("depends"):
            depend(b)
    else:
        b.without("depends")
    tokens = spec.tokens_of(b, at)
    norm: Stage | Squares | None = stage if spec.norm else None
    inputs = None
    if stage is not None:
        stage.build(tokens, loop)
    elif spec.norm:
        norm = Squares(b, spec, at, tokens)
        inputs = norm.build(loop.lane, loop.warp)
    loop.build(tokens, inputs)
    epilogue = make_epilogue(b, spec, at)
    epilogue.build(loop, norm, tokens)
    x_part = "staged" if stage is not None else "squares" if spec.norm else ""
    b.expose(
        geometry=at,
        x_parts=[f"products/{x_part}.ptx.j2"] if x_part else [],
        in_shared=stage is not None,
        stage_repeats=stage is not None and stage.passes > 1,
        tile_part="products/late_tile.ptx.j2" if loop.late else "products/tile.ptx.j2",
        again=loop.more,
        results_repeat=epilogue.turns > 1,
        endings=epilogue.end(loop),
    )


def _build_stream(
    b: Builder, spec: Product, make_epilogue: MakeEpilogue, at: Runs, first_cta: int, weight: str
) -> None:
    """All fragments of one token on tensor cores."""
    stream = Stream(b, spec, at)
    stream.locate(spec.group_axis, first_cta, weight, at.split)
    requests = stream.request()
    stage = Prepare(b, spec, at)
    stage.request_norm(stream.thread)
    release_and_wait(b, spec.programmatic)
    items = stage.build(stream)
    epilogue = make_epilogue(b, spec, at)
    turns = epilogue.build_stream(stream, requests, stage)
    b.expose(
        geometry=at,
        x_parts=["products/prepared.ptx.j2"],
        x_items=items,
        stage_repeats=stage.passes > 1,
        endings=epilogue.end(stream),
        turns=turns,
        again=stream.more,
        results_repeat=epilogue.turns > 1,
        joins=at.split > 1,
        before_x=tiles_before_x(at, spec.k, chained=spec.programmatic and bool(spec.norm)),
        x_first=at.x_first and not spec.programmatic and not spec.norm and stage.passes == 1,
    )
