"""One launch between the QKV projection and attention: rotate q and k, append k and v to the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths, rules
from ptxgen.builder.values import Reg, RegArray
from ptxgen.dtypes import DType, bf16, f16, f32, s8
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.idioms import convert, kv_cache
from ptxgen.idioms.dot import dot
from ptxgen.idioms.reduce import WARP, halves, over_lanes
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.idioms.rope.rows import IN_PLACE, PRECISE, ROPE_FIELDS, STYLE, RotatingRows
from ptxgen.idioms.row_kernel import EPS
from ptxgen.idioms.threads import CHUNK, HeadMap, Place, chunk_address, row_index
from ptxgen.kernel import KernelType, Spread, kernel_type
from ptxgen.launch import Param, buffer
from ptxgen.spec.cache_fields import (
    CAPACITY,
    HEAD_SCALES,
    INDIRECT,
    KEPT,
    KV_HEADS,
    PAGE_LAYOUT,
    PAGE_SIZE,
    RING_ROWS,
    given_head_scales,
    head_scales_rules,
    kept_rules,
)
from ptxgen.spec.fields import field

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


def can_norm_heads(head_dim: int, style: str) -> bool:
    """Whether this kernel can norm heads of so many elements before it rotates them: lanes of a warp share a head, and
    a lane has both elements of a pair."""
    lanes = head_dim // CHUNK
    return style == "norm" and head_dim % CHUNK == 0 and lanes in (1, 2, 4, 8, 16, WARP)


@kernel_type
class RopeKvAppend(RotatingRows, KernelType):
    """Rotate rows of q and k, and append the rotated k and v to every KV head's cache.

    q `[rows, n_heads, head_dim]` (`in_place`, or to q_out), k, v `[rows, n_kv_heads, head_dim]`, all `src_dtype`;
    with `stacked` heads of one row: qkv `[rows, n_heads + 2 n_kv_heads, head_dim]`, or qk beside v. Caches, positions,
    pages and scales as `KvCacheScatter` has them, the rotation as `Rope` has it. A row whose position is outside the
    cache, or `kept`, appends nothing; its q is rotated all the same. `qk_norm`: before that every head of q and k is
    normalised as `RmsNorm` does it, with weights `[head_dim]` each.
    """

    bundled_as = "rope_append"

    max_len: int = field(like=CAPACITY)
    head_dim: int
    n_heads: int
    n_kv_heads: int = field(like=KV_HEADS)
    kv_dtype: DType = f32
    src_dtype: DType = field(default=f32, doc="element type of what is rotated and appended")
    style: str = field(default="neox", like=STYLE)
    rope: ClassVar[Spread] = ROPE_FIELDS
    precise: bool = field(default=False, like=PRECISE)
    in_place: bool = field(default=True, like=IN_PLACE)
    indirect: bool = field(default=False, like=INDIRECT)
    batched: bool = field(default=False, doc="row r is of sequence r, at positions[r]")
    page_size: int = field(default=0, like=PAGE_SIZE)
    programmatic: bool = False
    page_layout: str = field(default="hnd", like=PAGE_LAYOUT)
    ring: int = field(default=0, like=RING_ROWS)
    out_dtype: str = field(default="", doc="element type of q_out; empty: src_dtype")
    stacked: str = field(default="", doc="heads that lie in one row: qkv, or qk beside rows of v; empty for none")
    head_scales: bool = field(default=False, like=HEAD_SCALES)
    qk_norm: bool = field(
        default=False,
        draws=lambda drawn: tuple({False, can_norm_heads(drawn["head_dim"], drawn.get("style", "neox"))}),
        doc="heads of q and k are normalised first",
    )
    eps: float = field(default=1e-6, like=EPS, doc="added to the mean of squares of qk_norm")
    norm_offset: float = field(default=0.0, draws=(0.0, 1.0), doc="added to the weights of qk_norm: 1 in Gemma")
    kept: bool = field(default=False, like=KEPT)

    sizes = {"rows": 1, "pages": 8, "position": -1, "n_kept": -1}  # -1: one at random; half of the rows
    early = ("q_norm_weight", "k_norm_weight")
    trials = ({"rows": 3, "position": 20},)
    goldens = (
        dict(max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, style="norm", in_place=False),
        dict(max_len=64, head_dim=64, n_heads=2, n_kv_heads=1, kv_dtype=f16, src_dtype=f16, indirect=True),
        dict(
            max_len=64,
            head_dim=40,
            n_heads=2,
            n_kv_heads=1,
            kv_dtype=s8,
            src_dtype=bf16,
            style="norm",
            rotary_dim=16,
            page_size=16,
        ),
        dict(
            max_len=64,
            head_dim=16,
            n_heads=2,
            n_kv_heads=1,
            kv_dtype="e4m3",
            style="norm",
            batched=True,
            programmatic=True,
        ),
        dict(
            max_len=64,
            head_dim=16,
            n_heads=2,
            n_kv_heads=1,
            style="norm",
            in_place=False,
            stacked="qk",
            out_dtype="f16",
        ),
        dict(max_len=64, head_dim=16, n_heads=2, n_kv_heads=1, kv_dtype="e4m3", batched=True, head_scales=True),
        dict(max_len=64, head_dim=16, n_heads=2, n_kv_heads=1, in_place=False, indirect=True, kept=True),
        dict(
            max_len=64,
            head_dim=32,
            n_heads=4,
            n_kv_heads=2,
            style="norm",
            in_place=False,
            stacked="qkv",
            batched=True,
            programmatic=True,
            qk_norm=True,
            norm_offset=1.0,
        ),
    )

    def rules(self) -> Iterator[str]:
        yield from kv_cache.cache_rules(self)
        yield from head_scales_rules(self.head_scales, self.kv_dtype.name)
        yield from rules.between("n_heads", self.n_heads, 1, 1024)
        yield from rules.divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        yield from rules.one_of("src_dtype", self.src_dtype.name, ("f32", "f16", "bf16"))
        yield from rules.one_of("stacked", self.stacked, ("", "qk", "qkv"))
        yield from rules.one_of("out_dtype", self.out_dtype, ("", "f32", "f16", "bf16"))
        if self.out_dtype and self.in_place:
            yield f"out_dtype: needs in_place=False (got out_dtype={self.out_dtype!r}, in_place=True; nearest: '')"
        if self.stacked and self.in_place:
            yield f"stacked: needs in_place=False (got stacked={self.stacked!r}, in_place=True; nearest: '')"
        yield from self.rotation_rules()
        yield from rules.between("eps", self.eps, 1e-12, 1.0)
        yield from rules.between("norm_offset", self.norm_offset, -1e3, 1e3)
        if self.qk_norm and not can_norm_heads(self.head_dim, self.style):
            got = f"head_dim={self.head_dim}, style={self.style!r}"
            yield f"qk_norm: needs style='norm' and a head_dim of 8, 16, 32, 64, 128 or 256 (got {got}; nearest: False)"
        yield from kept_rules(self.kept, self.indirect)

    @property
    def map(self) -> HeadMap:
        """Threads of a row: q's heads, then k's, then v's."""
        parts = (("q", self.n_heads), ("k", self.n_kv_heads), ("v", self.n_kv_heads))
        return HeadMap(self.head_dim, parts, self.kv_dtype == s8)

    @property
    def query_dtype(self) -> DType:
        """The element type of the rotated q."""
        return to_dtype(self.out_dtype) if self.out_dtype else self.src_dtype

    @property
    def stack_heads(self) -> int:
        """Heads of a row of those that are stacked."""
        return self.n_heads + self.stacked.count("k") * self.n_kv_heads + self.stacked.count("v") * self.n_kv_heads

    def params(self) -> tuple[Param, ...]:
        q_row, kv_row = (("rows", n, self.head_dim) for n in (self.n_heads, self.n_kv_heads))
        params = []
        if self.stacked:
            params.append(buffer(self.stacked, self.src_dtype, "rows", self.stack_heads, self.head_dim))
        else:
            params.append(buffer("q", self.src_dtype, *q_row, access="inout" if self.in_place else "in"))
        params += [buffer(x, self.src_dtype, *kv_row) for x in "kv" if x not in self.stacked]
        if not self.in_place:
            params.append(buffer("q_out", self.query_dtype, *q_row, access="out"))
        if self.qk_norm:
            params += [buffer(f"{x}_norm_weight", f32, self.head_dim, align=16) for x in "qk"]
        positions = kv_cache.position_params(self.batched, self.indirect, self.kept)
        return (*params, *kv_cache.cache_params(self), *positions)

    def build(self, b: Builder) -> None:
        with b.fragment("locate"):
            row, place = self.map.locate_row(b)
            limit = self.rotation.rotary_dim // CHUNK
            rotates = b.op("setp.lt.and.u32", "rotates", place.chunk, limit, place.has_chunk)
            b.op("and.pred", rotates, rotates, ~place.since[1])
        gains = self._gains(b, place) if self.qk_norm else None
        chunk = self.rotating_chunk(b, place, rotates, self.src_dtype)
        with b.fragment("load", "load the thread's chunk of 8 elements of q, k or v"):
            row_head = row_index(b, "row_head", row, place.part_heads, place.head)
            source = self._stacked_source(b, row, place, row_head) if self.stacked else self._source(b, place, row_head)
            values, words = chunk.load(b, source, cleared=self.kv_dtype == s8 or self.qk_norm)
        with b.fragment("read_position", "the row's position, and whether the cache has it"):
            position = kv_cache.load_position(b, row, self.batched, self.indirect)
            kv_cache.position_inside(b, self, position, self.kept)
        chunk.widen(b, values, words)
        if gains is not None:
            self._norm_heads(b, place, values, gains)
        else:
            b.without("load_gains", "norm_heads")
        chunk.turn(b, values, position)
        with b.fragment("store_query", "store the rotated chunk of q"):
            if self.query_dtype != self.src_dtype:
                words = convert.word_array(b, "query_word", values, self.query_dtype)
            convert.pack(b, words, values, self.query_dtype)
            out = source
            if not self.in_place:
                out = self._chunk(b, b.ld_param("q_out"), row_head, place.chunk, self.query_dtype)
            convert.store_words(b, out, words, pred=place.has_chunk)
        self._append(b, place, row, position, values)

    def _gains(self, b: Builder, place: Place) -> RegArray:
        """Fragment `load_gains`: the weights of the thread's elements, of q or k; a thread of v has k's."""
        gains = b.array("gain", "f32", CHUNK)
        with b.fragment("load_gains", "load the weights of the heads' norm"):
            q, k = (b.ld_param(f"{x}_norm_weight") for x in "qk")
            source = b.op("selp.b64", "gains", k, q, place.since[0])
            b.op("mad.wide.u32", source, place.chunk, CHUNK * f32.bytes, source)
            convert.clear(b, gains)
            convert.load_words(b, gains, source, pred=place.has_chunk)
        return gains

    def _norm_heads(self, b: Builder, place: Place, values: RegArray, gains: RegArray) -> None:
        """Fragment `norm_heads`: the values of q and k normed, head by head; those of v times one."""
        is_v = place.since[1]
        with b.fragment("norm_heads", "the root mean square of the head, over its lanes; v stays as it is"):
            total = dot(b, b.op("mov.f32", "total", 0.0), values, values)
            over_lanes(b, "add.f32", total, halves(self.map.lanes))
            b.op("fma.rn.f32", total, total, 1 / self.head_dim, self.eps)
            b.op("rsqrt.approx.f32", total, total)
            b.op("selp.f32", total, 1.0, total, is_v)
            for value, gain in zip(values, gains, strict=True):
                if self.norm_offset:
                    b.op("add.f32", gain, gain, self.norm_offset)
                b.op("selp.f32", gain, 1.0, gain, is_v)
                b.op("mul.f32", value, value, total)
                b.op("mul.f32", value, value, gain)

    def _append(self, b: Builder, place: Place, row: Reg, position: Reg, values: RegArray) -> None:
        is_v = place.since[1]
        if self.kv_dtype == s8:
            with b.fragment("quantise"):
                scale = kv_cache.quantise(b, values)
        else:
            b.without("quantise")
        with b.fragment("append"):
            cache_row = kv_cache.cache_row(b, self, row, place.head, position, place.has_chunk)
            if self.head_scales:
                kv_cache.over_head_scale(b, is_v, place.head, values, place.has_chunk)
            kv_cache.store_chunk(b, self, is_v, cache_row, place.chunk, values, place.has_chunk)
            if self.kv_dtype == s8:
                b.note("the first of four lanes stores the scale of their 32 values")
                kv_cache.store_scale(b, self, is_v, cache_row, place.chunk, scale, place.has_chunk)

    def _source(self, b: Builder, place: Place, row_head: Reg) -> Reg:
        """Address of this thread's chunk in q, k or v."""
        from_k, from_v = place.since
        q, k, v = (b.ld_param(name) for name in "qkv")
        source = b.op("selp.b64", "source", k, q, from_k)
        b.op("selp.b64", source, v, source, from_v)
        return self._chunk(b, source, row_head, place.chunk)

    def _stacked_source(self, b: Builder, row: Reg, place: Place, row_head: Reg) -> Reg:
        """The same where q and k, or all three, are heads of one row."""
        from_k, from_v = place.since
        head = b.op("mov.u32", "stacked_head", place.head)
        b.op("add.u32", head, head, self.n_heads, pred=from_k)
        source = b.ld_param(self.stacked)
        index = row_index(b, "stacked_row", row, self.stack_heads, head)
        if "v" in self.stacked:
            b.op("add.u64", index, index, self.n_kv_heads, pred=from_v)
        else:
            b.op("selp.b64", index, row_head, index, from_v)
            b.op("selp.b64", source, b.ld_param("v"), source, from_v)
        return self._chunk(b, source, index, place.chunk)

    def _chunk(self, b: Builder, address: Reg, row_head: Reg, chunk: Reg, dtype: DType | None = None) -> Reg:
        row_bytes, chunk_bytes = (n * (dtype or self.src_dtype).bytes for n in (self.head_dim, CHUNK))
        return chunk_address(b, address, row_head, row_bytes, chunk, chunk_bytes)

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), **lengths.written_rows(self.max_len, self.batched, sizes, self.ring)}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return kv_cache.given(self, rng, sizes) | (given_head_scales(rng, self.n_kv_heads) if self.head_scales else {})

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        if self.stacked:
            parts = np.split(a[self.stacked], np.cumsum((self.n_heads, self.n_kv_heads))[: len(self.stacked) - 1], 1)
            a |= dict(zip(self.stacked, parts, strict=True))
        if self.qk_norm:
            a |= {x: self._normed(a[x], a[f"{x}_norm_weight"]) for x in "qk"}
        positions = kv_cache.row_positions(self.batched, a, a["q"].shape[0])
        out = {name: a[name].copy() for name in a if name.endswith(("_cache", "_scales"))}
        rows = {"k": rotary.rotate_rows(self.rotation, a["k"], positions), "v": a["v"]}
        kv_cache.append_rows(self, out, rows, positions, a)
        query = "q" if self.in_place else "q_out"
        rotated = rotary.rotate_rows(self.rotation, a["q"], positions).astype(self.query_dtype.numpy)
        return {query: rotated, **out}

    def _normed(self, heads: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Heads normalised in float64, in f32."""
        import numpy as np

        wide = heads.astype(np.float64)
        factor = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + self.eps)
        normed: np.ndarray = (wide * factor * (self.norm_offset + weight)).astype(np.float32)
        return normed
