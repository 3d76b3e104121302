"""What the tensor-core loop leaves in registers, divided by the sums and written out: `out`, and the log-sum-exp."""

from __future__ import annotations

from ptxgen.attention.prefill.loops.mma.registers import TensorRegisters
from ptxgen.attention.prefill.loops.queries import QueryTile
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch


def output(loop: TensorRegisters, queries: QueryTile, base: Reg) -> None:
    """Fragments `finish`, `stage_out` where out has the type of the tile in shared memory, `store_out`, `store_lse`."""
    b, staged = loop.b, loop.spec.attention.problem.q_dtype == loop.dtype
    with b.fragment("finish", "accumulators over their sums"):
        loop.own()
        if loop.tile.column_groups > 1:
            loop.own_column_group()
        loop.softmax.finish(loop.accumulators)
    if staged:
        _stage(loop, base)
        queries.store_out(base)
    else:
        b.without("stage_out")
        _store(loop)
    if loop.spec.lse:
        _store_lse(loop)
    else:
        b.without("store_lse")


def _stage(loop: TensorRegisters, base: Reg) -> None:
    """The tile's rows over those of q: every lane two columns, later read in 16-byte pieces."""
    b, cvt = loop.b, f"cvt.rn.{loop.dtype.name}x2.f32"
    with b.fragment("stage_out", "the rows of out to shared memory"):
        at = b.op("mul.lo.u32", "out_at", loop.quad_row, loop.pitch)
        b.op("mad.lo.u32", at, loop.first_column, 2, at)
        b.op("add.u32", at, at, base)
        _to_column_group(loop, at, 16)
        word = b.reg("out_pair", "b32")
        for m in range(loop.tile.m_tiles):
            for n in range(loop.columns):
                for half in range(2):
                    low, high = loop.acc_of(m, n)[2 * half : 2 * half + 2]
                    b.op(cvt, word, high, low)
                    b.op("st.shared.b32", at[(16 * m + 8 * half) * loop.pitch + 16 * n], word, pred=_owner(loop, n))


def _store(loop: TensorRegisters) -> None:
    """Out in a type of its own: every quad of lanes writes 8 columns of a row."""
    b, type = loop.b, loop.spec.attention.problem.q_dtype
    with b.fragment("store_out", "store the rows of out"):
        out, exists, writes = b.ld_param("out"), b.reg("out_exists", "pred"), b.reg("out_writes", "pred")
        for r, skip in enumerate(loop.row_steps()):
            row = b.op("add.s32", scratch(b, "out_row", "s32"), loop.thread_row, skip)
            b.op("setp.lt.s32", exists, row, loop.rows.n_rows)
            _, at = loop.rows.address("out_row_at", row, out, loop.spec.attention.problem.output_bytes)
            b.op("mad.wide.u32", at, loop.first_column, type.bytes, at)
            _to_column_group(loop, at, 8 * type.bytes)
            for n in range(loop.columns):
                owner, pred = _owner(loop, n), exists
                if owner is not None:
                    pred = b.op("and.pred", writes, exists, owner)
                low, high = loop.accumulators[r][2 * n : 2 * n + 2]
                if type.bytes == 4:
                    b.op("st.global.v2.f32", at[8 * n * 4], (low, high), pred=pred)
                else:
                    packed = scratch(b, "out_pair", "b32")
                    b.op(f"cvt.rn.{type.name}x2.f32", packed, high, low)
                    b.op("st.global.b32", at[8 * n * 2], packed, pred=pred)


def _to_column_group(loop: TensorRegisters, at: Reg, tile_bytes: int) -> None:
    """Move an address to this warp's first accumulator tile."""
    b = loop.b
    if loop.tile.column_groups == 1:
        return
    kind = "mad.wide.u32" if at.type == "u64" else "mad.lo.u32"
    b.op(kind, at, loop.column_group, loop.second_group() * tile_bytes, at)
    if loop.owns_first is None and _overlaps(loop):
        loop.owns_first = b.op("setp.eq.u32", "owns_first", loop.column_group, 0)


def _overlaps(loop: TensorRegisters) -> bool:
    """Whether both column groups hold the tile in the middle."""
    return loop.tile.column_groups > 1 and loop.second_group() < loop.columns


def _owner(loop: TensorRegisters, n: int) -> Reg | None:
    """The predicate that this warp writes its tile n; the tile in the middle is written by the first group."""
    return loop.owns_first if n == 0 and _overlaps(loop) else None


def _store_lse(loop: TensorRegisters) -> None:
    b = loop.b
    with b.fragment("store_lse", "store the rows' log-sum-exp"):
        lse, writes = b.ld_param("lse"), b.reg("writes_lse", "pred")
        first = b.op("setp.eq.s32", "first_of_quad", loop.first_column, 0)
        if loop.tile.column_groups > 1:
            b.op("setp.eq.and.u32", first, loop.column_group, 0, first)
        for r, skip in enumerate(loop.row_steps()):
            row = b.op("add.s32", scratch(b, "out_row", "s32"), loop.thread_row, skip)
            b.op("setp.lt.and.s32", writes, row, loop.rows.n_rows, first)
            _, at = loop.rows.address("lse_at", row, lse, 4)
            b.op("st.global.f32", at[0], loop.softmax.log_sum(r), pred=writes)
