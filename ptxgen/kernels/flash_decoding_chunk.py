"""One chunk of decode attention: the partial softmax over a part of each sequence's cache, reached through pointers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen import lengths, rules
from ptxgen.attention.attention import Attention
from ptxgen.attention.cache import Cache
from ptxgen.attention.decode.chunks import MAX_CHUNKS, STEP, Cut
from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.loops.choice import choose
from ptxgen.attention.decode.merge import cta as merge
from ptxgen.attention.decode.parts import place_loop
from ptxgen.attention.decode.place import CacheRows
from ptxgen.attention.decode.plan import CtaPlan, chip_of, cta_plan
from ptxgen.attention.decode.slots import Slots
from ptxgen.attention.problem import Problem
from ptxgen.attention.reference import attend, widen
from ptxgen.attention.variant import SCALE, SOFT_CAP, WINDOW, Variant
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, f16, f32, s8, s32
from ptxgen.idioms.log2 import LOG2E
from ptxgen.idioms.programmatic import programmatic_rules
from ptxgen.kernel import KernelType, kernel_type
from ptxgen.launch import Launch, Param, buffer
from ptxgen.spec.cache_fields import CAPACITY, KV_DTYPES, KV_HEADS, Q_DTYPES, RING_ROWS, head_rules, place_rules
from ptxgen.spec.fields import field
from ptxgen.targets import STATIC_SHARED_LIMIT, Target

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.kernel import Arrays

WARPS = 8  # of a CTA
IN_FLIGHT = 8192  # bytes of K and V that a warp has on their way
LEAST_OF_WARP = 16  # positions of a chunk, or of a cache, that a warp is worth


@dataclass(frozen=True)
class Where:
    """Registers: the CTA's sequence and chunk, and the index of its first query head among all sequences'."""

    sequence: Reg
    chunk: Reg
    query: Reg


@dataclass(frozen=True)
class Bounds:
    """Registers: chunks that were launched, and whether this one has positions."""

    chunks: Reg
    has_positions: Reg


@kernel_type
class FlashDecodingChunk(KernelType):
    """The partials of `max_chunks` chunks of every sequence, for `FlashDecodingReduce`.

    q `[batch, n_heads, head_dim]`; `k_ptrs`, `v_ptrs ["batch"]` point to caches `[n_kv_heads, max_len, head_dim]`
    (int8: also `k_scale_ptrs`, `v_scale_ptrs`, to `[n_kv_heads, max_len, ceil(head_dim / 32)]` in f16); `seq_lens
    ["batch"]` in device memory, clamped to 0 … max_len. The grid depends on capacities alone: a sequence is cut into as
    many chunks as keep `ctas` CTAs busy, at most max_chunks; if the batch alone keeps them busy, only long sequences
    are cut (`attention.decode.chunks`). A chunk with visible positions stores stats (log2 Σ exp(score), 1) and
    partials = its attention output; all other slots get (−inf, 0) and no partials. Layouts and merging as in
    `FlashDecodingReduce`. `scale`, `soft_cap`, `window`, `programmatic` as in `IncrementalAttention`.
    """

    bundled_as = "decode_split"

    max_len: int = field(like=CAPACITY)
    head_dim: int
    n_heads: int
    n_kv_heads: int = field(like=KV_HEADS)
    max_chunks: int = field(default=64, like=MAX_CHUNKS)
    ctas: int = field(default=132, doc="CTAs that keep the GPU busy: sequences are cut for no more")
    q_dtype: DType = f32
    kv_dtype: DType = f32
    scale: float | None = field(default=None, like=SCALE)
    soft_cap: float = field(default=0.0, like=SOFT_CAP)
    window: int = field(default=0, like=WINDOW)
    programmatic: bool = False
    ring: int = field(default=0, like=RING_ROWS)

    sizes = {"batch": 2, "seq_len": -1}  # of the first sequence; −1: the whole cache
    trials = ({}, {"seq_len": 19})
    goldens = (
        dict(max_len=32, head_dim=16, n_heads=2, n_kv_heads=2, max_chunks=2, q_dtype=f16, kv_dtype=f16),
        dict(max_len=32, head_dim=8, n_heads=1, n_kv_heads=1, max_chunks=2, kv_dtype=s8, window=20),
    )

    @classmethod
    def that_fills(cls, target: Target, **fields: Any) -> FlashDecodingChunk:
        """The spec whose chunks keep all of a target's multiprocessors busy; the other fields are given."""
        return cls(ctas=chip_of(target).sms, **fields)

    # -- what is legal -------------------------------------------------------------------------------------------------

    def rules(self) -> Iterator[str]:
        yield from rules.between("max_len", self.max_len, 1, 1 << 24)
        yield from rules.multiple_of("head_dim", self.head_dim, 8, 8, 512)
        yield from head_rules(self.n_heads, self.n_kv_heads, 4096)
        yield from rules.between("max_chunks", self.max_chunks, 1, 4096)
        yield from rules.between("ctas", self.ctas, 1, 65536)
        yield from rules.one_of("q_dtype", self.q_dtype.name, Q_DTYPES)
        yield from rules.one_of("kv_dtype", self.kv_dtype.name, KV_DTYPES)
        yield from rules.between("window", self.window, 0, max(self.max_len, 0))
        yield from rules.softmax_factors(self.scale, self.soft_cap)
        yield from place_rules(0, "hnd", self.ring, self.window)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)
        chosen = choose(self.attention, target)
        if isinstance(chosen, str):
            yield chosen

    # -- parameters and geometry ---------------------------------------------------------------------------------------

    @property
    def attention(self) -> Attention:
        """The attention of which this computes parts."""
        dims, dtypes = (self.head_dim, self.head_dim), (self.q_dtype, self.kv_dtype)
        problem = Problem(self.n_heads, self.n_kv_heads, *dims, *dtypes)
        return Attention(Variant.of(self, self.head_dim), Cache(problem, self.max_len, ring=self.ring))

    @property
    def cut(self) -> Cut:
        """How sequences are cut into chunks."""
        positions = min(self.max_len, self.window + STEP) if self.window else self.max_len
        return Cut(self.max_chunks, positions, self.n_kv_heads, self.ctas)

    def chunks(self, batch: int) -> int:
        """Chunks that are launched for each sequence; the slots of all others up to max_chunks are only marked."""
        return self.cut.launched(batch)

    def plan(self, target: Target) -> CtaPlan:
        """The geometry of a CTA: there is one per chunk and KV head, or part of its group."""
        warps = max(1, min(WARPS, self.cut.least // LEAST_OF_WARP, self.max_len // LEAST_OF_WARP))
        chosen = choose(self.attention, target, warps)
        assert not isinstance(chosen, str), "target_rules refuses what no loop can run"
        loop, shape = chosen
        cache = self.attention.cache
        tile_bytes = shape.tile * (cache.k.bytes + cache.v.bytes)
        return cta_plan(self.attention, loop, shape._replace(in_flight=max(1, IN_FLIGHT // tile_bytes)))

    def params(self) -> tuple[Param, ...]:
        slots = ("batch", self.n_heads, self.max_chunks)
        return (
            self.attention.problem.q("batch"),
            *(param for param, _ in self._pointers()),
            buffer("seq_lens", s32, "batch", align=4),
            buffer("partials", f32, *slots, self.head_dim, access="out"),
            buffer("stats", f32, *slots, 2, access="out", align=8),
        )

    def _pointers(self) -> list[tuple[Param, int]]:
        """The tables of pointers, and the elements of a row of what they point to."""
        sides = self.attention.cache.sides
        out = [(Param(f"{x}_ptrs", self.kv_dtype, "pointers", "in", ("batch",), 8), r.dim) for x, r in sides.items()]
        if self.kv_dtype == s8:
            out += [
                (Param(f"{x}_scale_ptrs", f16, "pointers", "in", ("batch",), 8), r.scale_groups)
                for x, r in sides.items()
            ]
        return out

    def launch(self, target: Target) -> Launch:
        plan = self.plan(target)
        shared = plan.arena_bytes if plan.arena_bytes > STATIC_SHARED_LIMIT else 0
        grid = (self.n_kv_heads * plan.parts, "batch", self.cut.grid)  # the chunks that may be empty start last
        return Launch(grid, (plan.shape.threads, 1, 1), shared, programmatic=self.programmatic)

    # -- code ----------------------------------------------------------------------------------------------------------

    def template(self, target: Target) -> str:
        return "attention/flash_decoding_chunk"

    def build(self, b: Builder) -> None:
        plan = self.plan(b.target)
        arena = b.shared("arena", plan.arena_bytes, dynamic=self.launch(b.target).shared > 0)
        task, where = self._locate(b, plan)
        bounds = self._bounds(b, plan, task, where)
        slots = Slots(b, task, where.query, where.chunk, max_chunks=self.max_chunks, head_dim=self.head_dim)
        stats = slots.leave_empty(plan, bounds.chunks, bounds.has_positions)
        b.expose(plan=plan)
        place_loop(b, plan.loop.build(b, self.attention, plan.shape, task, plan.partials, arena))
        elements = merge.Elements(b, plan.shape.heads, self.head_dim, plan.shape.threads, task.tid)
        merged = merge.partial(b, "merged")
        if self.programmatic:  # no sooner: CTAs of the kernels that follow would take room from those still to start
            with b.fragment("let_go"):
                b.op("griddepcontrol.launch_dependents")
        else:
            b.without("let_go")
        with b.fragment("warps_start", "the thread's first quad of the output"):
            elements.start(task.tid, elements.count)
            partials = b.ld_param("partials")
        with b.fragment("warps_merge"):
            elements.locate()
            merge.merge_warps(b, elements, plan.partials, arena, merged)
        with b.fragment("store_chunk"):
            slots.store(elements, merged, partials, stats)
        with b.fragment("warps_next"):
            elements.advance(elements.count)

    def _locate(self, b: Builder, plan: CtaPlan) -> tuple[Task, Where]:
        """Fragment `locate`: the chunk, its KV head and sequence, and where their rows lie."""
        attention = self.attention
        with b.fragment("locate", "the chunk, its KV head and sequence, and where their rows lie"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            lane, warp = b.op("and.b32", b.reg("lane", "u32"), thread, 31), b.op("shr.u32", "warp", thread, 5)
            column = b.op("mov.u32", "column", b.special("ctaid.x"))
            sequence = b.op("mov.u32", "sequence", b.special("ctaid.y"))
            chunk = b.op("mov.u32", "chunk", b.special("ctaid.z"))
            kv_head = b.op("div.u32", "kv_head", column, plan.parts) if plan.parts > 1 else column
            first_head = b.op("mul.lo.u32", "group_first_head", kv_head, attention.problem.group)
            heads_left = None
            if plan.parts > 1:
                part = b.op("rem.u32", "part", column, plan.parts)
                first_head = b.op("mad.lo.u32", "first_head", part, plan.shape.heads, first_head)
                if attention.problem.group % plan.shape.heads:
                    heads_left = b.op("mad.lo.s32", "heads_left", part, -plan.shape.heads, attention.problem.group)
            query = b.op("mul.wide.u32", "query", sequence, self.n_heads)
            wide = b.op("cvt.u64.u32", "wide_head", first_head)
            b.op("add.u64", query, query, wide)
            q_row = b.ld_param("q")
            b.op("mad.lo.u64", q_row, query, self.head_dim * self.q_dtype.bytes, q_row)
            rows = self._cache_rows(b, kv_head, sequence)
        task = Task(
            tid=thread, lane=lane, warp=warp, kv_head=kv_head, first_head=first_head, heads_left=heads_left,
            q_row=q_row, k_rows=rows.k, v_rows=rows.v, k_scales=rows.k_scales, v_scales=rows.v_scales,
            page_row=None, per_head={}, length=b.reg("length", "s32"),
            start=b.reg("start", "s32") if self.window else None, tile=b.reg("tile", "s32"),
            tile_end=b.reg("tile_end", "s32"), tile_step=b.reg("tile_step", "s32"),
        )  # fmt: skip
        return task, Where(sequence, chunk, query)

    def _cache_rows(self, b: Builder, kv_head: Reg, sequence: Reg) -> CacheRows:
        """Addresses of the KV head's first rows, behind the sequence's pointers."""
        first = b.op("mul.wide.u32", "first_of_cache", kv_head, self.attention.cache.rows)

        def rows(param: Param, width: int) -> Reg:
            table = b.ld_param(param.name)
            b.op("mad.wide.u32", table, sequence, 8, table)
            now: Reg = b.op("ld.global.u64", f"{param.name}_now", table[0])
            b.op("cvta.to.global.u64", now, now)
            b.op("mad.lo.u64", now, first, width * param.dtype.bytes, now)
            return now

        k, v, *scales = (rows(param, width) for param, width in self._pointers())
        return CacheRows(k, v, *(scales or (None, None)))

    def _bounds(self, b: Builder, plan: CtaPlan, task: Task, where: Where) -> Bounds:
        """Fragment `lengths`: the positions of this chunk, as tiles of its warps."""
        tile = plan.shape.tile
        assert STEP % tile == 0, "chunks begin where tiles do"
        with b.fragment("lengths", "the sequence's length, and this chunk's part of it"):
            if self.programmatic:
                b.op("griddepcontrol.wait")
            lengths = b.ld_param("seq_lens")
            b.op("mad.wide.u32", lengths, where.sequence, 4, lengths)
            b.op("ld.global.s32", task.length, lengths[0])
            b.op("max.s32", task.length, task.length, 0)
            b.op("min.s32", task.length, task.length, self.max_len)
            begin, span = b.op("mov.s32", "chunk_begin", 0), task.length
            if task.start is not None:
                b.note(f"window={self.window}: earlier positions are not visible")
                b.op("sub.s32", task.start, task.length, self.window)
                b.op("max.s32", task.start, task.start, 0)
                b.op("and.b32", begin, task.start, -STEP)
                span = b.op("sub.s32", "span", task.length, begin)
            size, chunks = self.cut.emit_size(b, span)
            b.op("mad.lo.s32", begin, where.chunk, size, begin)
            has_positions = b.op("setp.lt.s32", "has_positions", begin, task.length)
            end = b.op("add.s32", "chunk_end", begin, size)
            b.op("min.s32", end, end, task.length)
            b.op("add.s32", task.tile_end, end, tile - 1)
            b.op("shr.u32", task.tile_end, task.tile_end, tile.bit_length() - 1)
            if task.start is not None:  # a tile holds at least one visible position
                b.op("max.s32", begin, begin, task.start)
            b.op("shr.u32", task.tile, begin, tile.bit_length() - 1)
            b.op("add.s32", task.tile, task.tile, task.warp)
            b.op("mov.s32", task.tile_step, plan.shape.warps)
        return Bounds(chunks, has_positions)

    # -- example and reference -----------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), **dict.fromkeys(("seq_len", "seq_lens"), (0, self.max_len))}

    def past(self, arguments: Arrays) -> lengths.Past:
        for caches in (value for value in arguments.values() if isinstance(value, list)):
            for cache, length in zip(caches, arguments["seq_lens"], strict=True):
                yield from lengths.past_lengths([cache[None]], [max(0, length)])

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Caches a sequence, NaN past each length; lengths from 0 to max_len, the first as told."""
        import numpy as np

        from ptxgen.spec.examples import poison, random_values

        lengths = rng.integers(0, self.max_len, sizes["batch"], np.int32, endpoint=True)
        lengths[0] = self.max_len if sizes["seq_len"] < 0 else sizes["seq_len"]
        out: dict[str, Any] = {"seq_lens": lengths}
        for param, width in self._pointers():
            shape = (self.n_kv_heads, self.attention.cache.rows, width)
            caches = [random_values(rng, shape, param.dtype) for _ in lengths]
            for cache, length in zip(caches, lengths, strict=True):
                if "scale" in param.name:
                    cache[...] = rng.uniform(0.005, 0.02, shape)
                past = cache[:, max(0, length) :]
                past[...] = poison(past.shape, param.dtype)
            out[param.name] = caches
        return out

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        partials, stats = a["partials"].copy(), a["stats"].copy()
        for s, given in enumerate(a["seq_lens"]):
            length = min(max(int(given), 0), self.max_len)
            start = max(0, length - self.window) if self.window else 0
            begin = start // STEP * STEP
            size = self.cut.size(length - begin, len(a["seq_lens"]))
            for c in range(self.max_chunks):
                first, end = max(start, begin + c * size), min(length, begin + (c + 1) * size)
                if begin + c * size >= length:
                    stats[s, :, c] = (-np.inf, 0.0)
                    continue
                values, level = self._attend(a, s, first, end, length - 1)
                partials[s, :, c], stats[s, :, c, 0], stats[s, :, c, 1] = values, level, 1.0
        return {"partials": partials, "stats": stats}

    def _attend(
        self, a: Mapping[str, Any], sequence: int, first: int, end: int, newest: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Output and log2-sum-exp of every head over positions first … end of a sequence."""
        import numpy as np

        attention = self.attention
        part = np.arange(first, end) % attention.cache.rows
        rows = [
            widen(attention, x, a[f"{x}_ptrs"][sequence][:, part], scales[sequence][:, part] if scales else None)
            for x, scales in ((x, a.get(f"{x}_scale_ptrs")) for x in "kv")
        ]
        values, lse = attend(attention, a["q"][sequence][:, None], rows[0], rows[1], newest, a, first)
        return values[:, 0], lse[:, 0] * LOG2E
