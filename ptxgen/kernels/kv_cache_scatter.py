"""Append positions to a KV cache: convert, or quantise, on the way in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import lengths, rules
from ptxgen.dtypes import DType, bf16, f16, f32, s8
from ptxgen.idioms import convert, kv_cache
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.threads import CHUNK, HeadMap, chunk_address, row_index
from ptxgen.kernel import KernelType, kernel_type
from ptxgen.launch import Launch, Param, buffer
from ptxgen.spec.cache_fields import (
    CAPACITY,
    HEAD_SCALES,
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
    from ptxgen.targets import Target


@kernel_type
class KvCacheScatter(KernelType):
    """Append rows of K and V to every KV head's cache.

    k, v `[rows, n_kv_heads, head_dim]`; k_cache, v_cache `[n_kv_heads, max_len, head_dim]`: row r goes to position + r.
    `batched`: caches `[rows, n_kv_heads, max_len, head_dim]`, row r goes to positions[r] of sequence r. `page_size`:
    caches `[pages, n_kv_heads, page_size, head_dim]`, in the `page_layout` "nhd" `[pages, page_size, n_kv_heads,
    head_dim]`, and a page table `[(rows,) ceil(max_len / page_size)]`. `ring`: caches have so many rows instead of
    max_len, and position p goes to row p % ring. A position outside the cache, or in a page outside 0 … n_pages - 1,
    writes nothing. `indirect`: the position is read from device memory, and with `kept` a row for a position below
    `n_kept [1]` writes nothing. int8 caches have f16 scales `[…, ceil(head_dim / 32)]`: max|x| / 127 over 32 values,
    rounded up; a NaN becomes 0 there. e4m3 saturates at ±448; with `head_scales` it stores values divided by `k_scale`,
    `v_scale [n_kv_heads]`, f32.
    """

    bundled_as = "append"

    max_len: int = field(like=CAPACITY)
    head_dim: int
    n_kv_heads: int = field(like=KV_HEADS)
    kv_dtype: DType = f32
    src_dtype: DType = field(default=f32, doc="element type of what is appended")
    indirect: bool = False
    batched: bool = False
    page_size: int = field(default=0, like=PAGE_SIZE)
    programmatic: bool = False
    page_layout: str = field(default="hnd", like=PAGE_LAYOUT)
    ring: int = field(default=0, like=RING_ROWS)
    head_scales: bool = field(default=False, like=HEAD_SCALES)
    kept: bool = field(default=False, like=KEPT)

    sizes = {"rows": 1, "pages": 8, "position": -1, "n_kept": -1}  # -1: one at random; half of the rows
    trials = ({"rows": 3, "position": 20},)
    goldens = (
        dict(max_len=64, head_dim=64, n_kv_heads=2),
        dict(max_len=64, head_dim=80, n_kv_heads=3, kv_dtype=s8, indirect=True),
        dict(max_len=128, head_dim=128, n_kv_heads=2, kv_dtype=f16, batched=True, page_size=16),
        dict(max_len=96, head_dim=40, n_kv_heads=2, kv_dtype="e4m3", src_dtype=bf16),
        dict(max_len=96, head_dim=40, n_kv_heads=2, src_dtype=f16, programmatic=True),
        dict(max_len=128, head_dim=8, n_kv_heads=2, kv_dtype=s8, page_size=16, page_layout="nhd"),
        dict(max_len=96, head_dim=8, n_kv_heads=2, kv_dtype=f16, batched=True, ring=64),
        dict(max_len=96, head_dim=8, n_kv_heads=2, kv_dtype="e4m3", head_scales=True),
        dict(max_len=96, head_dim=8, n_kv_heads=2, indirect=True, kept=True),
    )

    def rules(self) -> Iterator[str]:
        yield from kv_cache.cache_rules(self)
        yield from head_scales_rules(self.head_scales, self.kv_dtype.name)
        yield from rules.one_of("src_dtype", self.src_dtype.name, ("f32", "f16", "bf16"))
        yield from kv_cache.position_rules(self.batched, self.indirect)
        yield from kept_rules(self.kept, self.indirect)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)

    @property
    def map(self) -> HeadMap:
        """Threads of a row of K and of V."""
        return HeadMap(self.head_dim, (("k", self.n_kv_heads), ("v", self.n_kv_heads)), self.kv_dtype == s8)

    def params(self) -> tuple[Param, ...]:
        row = ("rows", self.n_kv_heads, self.head_dim)
        positions = kv_cache.position_params(self.batched, self.indirect, self.kept)
        return (*(buffer(x, self.src_dtype, *row) for x in "kv"), *kv_cache.cache_params(self), *positions)

    def launch(self, target: Target) -> Launch:
        return Launch(("rows", self.map.ctas, 1), (self.map.threads, 1, 1), programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        wait_for_producer(b, self.programmatic)
        with b.fragment("locate"):
            row, place = self.map.locate_row(b)
            (is_v,) = place.since
        with b.fragment("load", "load the thread's chunk of 8 elements of k or v"):
            k, v = b.ld_param("k"), b.ld_param("v")
            source = b.op("selp.b64", "source", v, k, is_v)
            index = row_index(b, "row_head", row, self.n_kv_heads, place.head)
            row_bytes, chunk_bytes = (n * self.src_dtype.bytes for n in (self.head_dim, CHUNK))
            chunk_address(b, source, index, row_bytes, place.chunk, chunk_bytes)
            values = b.array("value", "f32", CHUNK)
            words = convert.word_array(b, "source_word", values, self.src_dtype)
            if self.kv_dtype == s8:
                b.note("lanes without a chunk must not raise the group's maximum")
                convert.clear(b, words)
            convert.load_words(b, words, source, pred=place.has_chunk)
        with b.fragment("read_position", "the row's position, and whether the cache has it"):
            position = kv_cache.load_position(b, row, self.batched, self.indirect)
            kv_cache.position_inside(b, self, position, self.kept)
        with b.fragment("convert", f"the chunk as f32{', scaled to the range of s8' if self.kv_dtype == s8 else ''}"):
            convert.unpack(b, values, words, self.src_dtype)
            if self.kv_dtype == s8:
                scale = kv_cache.quantise(b, values)
        with b.fragment("store", "store the chunk to the cache"):
            cache_row = kv_cache.cache_row(b, self, row, place.head, position, place.has_chunk)
            if self.head_scales:
                kv_cache.over_head_scale(b, is_v, place.head, values, place.has_chunk)
            kv_cache.store_chunk(b, self, is_v, cache_row, place.chunk, values, place.has_chunk)
        if self.kv_dtype == s8:
            with b.fragment("store_scale"):
                kv_cache.store_scale(b, self, is_v, cache_row, place.chunk, scale, place.has_chunk)
        else:
            b.without("store_scale")

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), **lengths.written_rows(self.max_len, self.batched, sizes, self.ring)}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return kv_cache.given(self, rng, sizes) | (given_head_scales(rng, self.n_kv_heads) if self.head_scales else {})

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        out = {name: a[name].copy() for name in a if name.endswith(("_cache", "_scales"))}
        positions = kv_cache.row_positions(self.batched, a, a["k"].shape[0])
        kv_cache.append_rows(self, out, a, positions, a)
        return out
