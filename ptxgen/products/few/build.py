"""The code of a product of up to eight tokens, put together: fragments in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.idioms.programmatic import release_and_wait
from ptxgen.products.few.columns import FewColumns
from ptxgen.products.few.fetch import fetch
from ptxgen.products.few.geometry import FewRuns
from ptxgen.products.few.results import FewResults
from ptxgen.products.few.rows import FewRows
from ptxgen.products.product import Tokens
from ptxgen.products.rows_given import rows_counted
from ptxgen.products.stream import Stream

if TYPE_CHECKING:
    from ptxgen.kernels.gemm import Gemm

MOST_TILES = 1 << 19  # of eight tokens


def build_few(b: Builder, spec: Gemm, at: FewRuns) -> None:
    """All fragments of a Gemm that is `few`."""
    vector = b.shared("vector", at.shared, align=128, dynamic=True)
    stream = Stream(b, spec, at, FewColumns(b, spec.kind, at.digits, vector))
    stream.locate("ctaid.x", split=at.split)
    requests = stream.request()
    rows = FewRows(b, spec, at, vector)
    rows.request_norm(stream.thread)
    fetch(b, stream, at)
    release_and_wait(b, spec.programmatic)
    with b.fragment("rows", "this CTA's first token, and how many there are"):
        cta = b.op("mov.u32", "cta_of_rows", b.special("ctaid.y"))
        first = b.op("mul.lo.u32", "first_row", b.op("min.u32", "row_group", cta, MOST_TILES), at.tokens)
        tokens = Tokens(first, rows_counted(b, spec.indirect, "n_rows_given"))
    results = FewResults(b, spec, at, vector, rows)
    results.read_early(stream, tokens)
    rows.build(stream, tokens)
    slots = results.locate(stream)
    turns = stream.build(requests, None, slots)
    results.build_results(stream, tokens)
    b.expose(
        geometry=at,
        turns=turns,
        again=stream.more,
        stage_repeats=rows.passes > 1,
        joins=results.joins,
        results_repeat=results.turns > 1,
    )
