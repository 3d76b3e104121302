"""The KV cache as the small kernels see it: its parameters, where a position lies, and rows written to it.

Contiguous caches are `[n_kv_heads, max_len, head_dim]`, with a leading `[rows]` when batched. Paged ones are
`[pages, n_kv_heads, page_size, head_dim]`, or with the layout "nhd" `[pages, page_size, n_kv_heads, head_dim]`, and a
sequence's page table gives its pages in order. A ring has so many rows in place of max_len: position p is row p % ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ptxgen import rules
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.dtypes import DType, f16, f32, s8, s32
from ptxgen.idioms import convert
from ptxgen.idioms.division import split
from ptxgen.idioms.reduce import over_lanes
from ptxgen.idioms.threads import CHUNK, ceil_div, chunk_address, row_index
from ptxgen.launch import Param, buffer, scalar
from ptxgen.scales import SCALE_GROUP, scale_groups
from ptxgen.spec.cache_fields import place_rules

if TYPE_CHECKING:
    import numpy as np

KV_DTYPES = ("f32", "f16", "bf16", "e4m3", "s8")


class CacheSpec(Protocol):
    """Fields that a kernel type on a KV cache has."""

    @property
    def max_len(self) -> int:
        """Positions that the cache has room for."""

    @property
    def head_dim(self) -> int:
        """Elements of a head."""

    @property
    def n_kv_heads(self) -> int:
        """Heads of K and of V."""

    @property
    def kv_dtype(self) -> DType:
        """Element type of the cache."""

    @property
    def batched(self) -> bool:
        """Whether every row is of a sequence of its own, at a position of its own."""

    @property
    def indirect(self) -> bool:
        """Whether the position is read from device memory."""

    @property
    def page_size(self) -> int:
        """Positions of a page; 0: no pages."""

    @property
    def page_layout(self) -> str:
        """Order of a page's axes: "hnd" or "nhd"."""

    @property
    def ring(self) -> int:
        """Rows of a ring; 0: a row for every position."""


def cache_rules(spec: CacheSpec, dtypes: Sequence[str] = KV_DTYPES) -> Iterator[str]:
    """Reasons against a cache of these fields; `dtypes`: what its elements may be."""
    yield from rules.between("max_len", spec.max_len, 1, 1 << 30)
    yield from rules.multiple_of("head_dim", spec.head_dim, 8, 8, 512)
    yield from rules.between("n_kv_heads", spec.n_kv_heads, 1, 1024)
    yield from rules.one_of("kv_dtype", spec.kv_dtype.name, dtypes)
    yield from rules.between("page_size", spec.page_size, 0, 1 << 16)
    yield from place_rules(spec.page_size, spec.page_layout, spec.ring, spec.ring)


def max_pages(spec: CacheSpec) -> int:
    """Entries of a sequence's page table."""
    return ceil_div(spec.max_len, spec.page_size)


def cache_params(spec: CacheSpec) -> list[Param]:
    """k_cache and v_cache, with int8 their scales, with pages the page table and the number of pages."""
    if spec.page_size:
        axes = (spec.n_kv_heads, spec.page_size)
        rows: tuple[int | str, ...] = ("pages", *(axes[::-1] if spec.page_layout == "nhd" else axes))
    else:
        rows = (*(("rows",) if spec.batched else ()), spec.n_kv_heads, spec.ring or spec.max_len)
    params = [buffer(f"{x}_cache", spec.kv_dtype, *rows, spec.head_dim, access="inout") for x in "kv"]
    if spec.kv_dtype == s8:
        groups = scale_groups(spec.head_dim)
        params += [buffer(f"{x}_scales", f16, *rows, groups, access="inout", align=2) for x in "kv"]
    if getattr(spec, "head_scales", False):
        params += [buffer(f"{x}_scale", f32, spec.n_kv_heads, align=4) for x in "kv"]
    if spec.page_size:
        table = (*(("rows",) if spec.batched else ()), max_pages(spec))
        params += [buffer("page_table", s32, *table, align=4), scalar("n_pages", s32)]
    return params


def position_param(batched: bool, indirect: bool) -> Param:
    """Positions of all rows, the first row's in device memory, or the first row's as a scalar."""
    if batched:
        return buffer("positions", s32, "rows", align=4)
    return buffer("position", s32, 1, align=4) if indirect else scalar("position", s32)


def position_params(batched: bool, indirect: bool, kept: bool) -> tuple[Param, ...]:
    """The same, and with `kept` the number of positions that keep their rows."""
    position = position_param(batched, indirect)
    return (position, buffer("n_kept", s32, 1, align=4)) if kept else (position,)


def position_rules(batched: bool, indirect: bool) -> Iterator[str]:
    """Reasons against positions from both places."""
    if batched and indirect:
        yield "indirect: must be False with batched, whose positions are in device memory anyway (got True)"


def load_position(b: Builder, row: Reg, batched: bool, indirect: bool) -> Reg:
    """The position of a row, as `position_param` describes it."""
    if batched:
        source = b.ld_param("positions")
        b.op("mad.wide.u32", source, row, 4, source)
        return b.op("ld.global.s32", "row_position", source[0])  # type: ignore[no-any-return]
    first = b.ld_param("position")
    if indirect:
        first = b.op("ld.global.s32", "first_position", first[0])
    return b.op("add.s32", "row_position", first, row)  # type: ignore[no-any-return]


def position_inside(b: Builder, spec: CacheSpec, position: Reg, kept: bool) -> Reg:
    """Whether the cache has the position, and takes a row for it."""
    # One unsigned comparison refuses negative positions too.
    inside: Reg = b.op("setp.lt.u32", "inside", position, spec.max_len)
    if kept:
        n_kept = b.op("ld.global.s32", "positions_kept", b.ld_param("n_kept")[0])
        b.op("setp.ge.and.s32", inside, position, n_kept, inside)
    return inside


def cache_row(b: Builder, spec: CacheSpec, row: Reg, head: Reg, position: Reg, writes: Reg) -> Reg:
    """Index of a position's row of `head_dim` elements, 64 bits; `writes` is cleared where its page does not exist.
    Of another row later, in the same registers."""
    again = partial(convert.again, b)
    if spec.page_size:
        entry, slot = split(b, again("page_entry"), again("page_slot"), position, spec.page_size)
        table = b.ld_param("page_table", again("page_table"))
        if spec.batched:
            b.op("mad.wide.u32", table, row, 4 * max_pages(spec), table)
        b.op("mad.wide.u32", table, entry, 4, table)
        page = b.op("ld.global.s32", again("page"), table[0])
        # One unsigned comparison refuses negative entries too.
        b.op("setp.lt.and.u32", writes, page, b.ld_param("n_pages", again("n_pages")), writes)
        if spec.page_layout == "nhd":
            wide_slot = b.op("cvt.u64.u32", again("wide_slot"), slot)
            index = b.op("cvt.u64.u32", again("cache_row"), page)
            b.op("mad.lo.u64", index, index, spec.page_size, wide_slot)
            wide_head = b.op("cvt.u64.u32", again("wide_kv_head"), head)
            return b.op("mad.lo.u64", index, index, spec.n_kv_heads, wide_head)  # type: ignore[no-any-return]
        index, length = row_index(b, again("cache_row"), page, spec.n_kv_heads, head), spec.page_size
    else:
        index = row_index(b, again("cache_row"), row, spec.n_kv_heads, head) if spec.batched else None
        index = b.op("cvt.u64.u32", again("cache_row"), head) if index is None else index
        slot, length = position, spec.ring or spec.max_len
        if spec.ring:
            slot = b.op("rem.u32", again("ring_slot"), position, spec.ring)
    wide = b.op("cvt.u64.u32", again("wide_slot"), slot)
    return b.op("mad.lo.u64", index, index, length, wide)  # type: ignore[no-any-return]


def quantise(b: Builder, values: Sequence[Reg]) -> Reg:
    """Scale the values of a group of 32 (four lanes) to int8 range; returns the f16 scale. All lanes must arrive."""
    largest = b.op("abs.f32", "largest", values[0])
    magnitude = b.reg("magnitude", "f32")
    for value in values[1:]:
        b.op("abs.f32", magnitude, value)
        b.op("max.f32", largest, largest, magnitude)
    over_lanes(b, "max.f32", largest, (1, 2), magnitude)
    # Rounded up, so that no value of the group passes ±127.
    b.op("mul.f32", largest, largest, 1 / 127)
    scale: Reg = b.op("cvt.rp.f16.f32", "scale", largest)
    rounded = b.op("cvt.f32.f16", "rounded_scale", scale)
    inverse = b.op("rcp.rn.f32", "inverse_scale", rounded)
    # A group of zeros has scale 0.
    all_zero = b.op("setp.eq.f32", "all_zero", rounded, 0.0)
    b.op("selp.f32", inverse, 0.0, inverse, all_zero)
    for value in values:
        b.op("mul.f32", value, value, inverse)
    return scale


def over_head_scale(b: Builder, is_v: Reg, head: Reg, values: Iterable[Reg], writes: Reg) -> None:
    """Values over the scale of their KV head, of K or of V."""
    k_scale, v_scale = b.ld_param("k_scale"), b.ld_param("v_scale")
    at = b.op("selp.b64", "head_scale_at", v_scale, k_scale, is_v)
    b.op("mad.wide.u32", at, head, f32.bytes, at)
    scale = b.op("mov.f32", "head_scale", 1.0)
    b.op("ld.global.f32", scale, at[0], pred=writes)
    for value in values:
        b.op("div.rn.f32", value, value, scale)


def store_chunk(b: Builder, spec: CacheSpec, is_v: Reg, index: Reg, chunk: Reg, values: RegArray,
                writes: Reg) -> None:  # fmt: skip
    """Convert a chunk of 8 values and store it to its row of K's or V's cache."""
    k_cache, v_cache = b.ld_param("k_cache"), b.ld_param("v_cache")
    cache = b.op("selp.b64", "cache", v_cache, k_cache, is_v)
    row_bytes, chunk_bytes = (n * spec.kv_dtype.bytes for n in (spec.head_dim, CHUNK))
    chunk_address(b, cache, index, row_bytes, chunk, chunk_bytes)
    packed = convert.word_array(b, "packed", values, spec.kv_dtype)
    convert.pack(b, packed, values, spec.kv_dtype)
    convert.store_words(b, cache, packed, pred=writes)


def store_scale(b: Builder, spec: CacheSpec, is_v: Reg, index: Reg, chunk: Reg, scale: Reg, writes: Reg) -> None:
    """Store a group's scale, by the first of its four lanes."""
    k_scales, v_scales = b.ld_param("k_scales"), b.ld_param("v_scales")
    scales = b.op("selp.b64", "scales", v_scales, k_scales, is_v)
    b.op("mad.lo.u64", scales, index, scale_groups(spec.head_dim) * 2, scales)
    group, lane = split(b, "group", "lane_of_group", chunk, SCALE_GROUP // CHUNK)
    b.op("mad.wide.u32", scales, group, 2, scales)
    writes_scale = b.op("setp.eq.and.u32", "writes_scale", lane, 0, writes)
    b.op("st.global.b16", scales[0], scale, pred=writes_scale)


# -- in NumPy --------------------------------------------------------------------------------------------------------


def quantise_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and f16 scales of f32 rows `[…, head_dim]`, a scale per 32 values: max|x| / 127, rounded up."""
    import numpy as np

    dim = rows.shape[-1]
    padded = np.zeros((*rows.shape[:-1], scale_groups(dim) * SCALE_GROUP), np.float32)
    padded[..., :dim] = rows
    grouped = padded.reshape(*rows.shape[:-1], -1, SCALE_GROUP)
    exact = np.fmax.reduce(np.abs(grouped), -1) * np.float32(1 / 127)
    scales = exact.astype(np.float16)
    scales = np.where(scales < exact, np.nextafter(scales, np.float16(np.inf)), scales)
    wide = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)
    with np.errstate(invalid="ignore"):  # infinity times the inverse of an infinite scale counts as 0
        values = np.nan_to_num(np.clip(np.rint(grouped * inverse[..., None]), -128, 127)).astype(np.int8)
    return values.reshape(padded.shape)[..., :dim], scales


def append_rows(spec: CacheSpec, out: dict[str, np.ndarray], rows: Mapping[str, np.ndarray], positions: np.ndarray,
                a: Mapping[str, Any]) -> None:  # fmt: skip
    """Write f32 rows `{"k", "v"}`, or one of them, `[rows, n_kv_heads, head_dim]` to the caches in `out`; for positions
    outside, or that are kept, nothing.

    `a` are the kernel's arguments, of which pages are found in `page_table` and `n_pages`.
    """
    import numpy as np

    first = int(np.ravel(a.get("n_kept", 0))[0])
    for r, position in enumerate(positions):
        if not max(first, 0) <= position < spec.max_len:
            continue
        where: tuple[Any, ...] = (slice(None), position % (spec.ring or spec.max_len))
        if spec.page_size:
            entries = a["page_table"][r] if spec.batched else a["page_table"]
            page = entries[position // spec.page_size]
            if not 0 <= page < a["n_pages"]:
                continue
            where = (page, slice(None), position % spec.page_size)
            if spec.page_layout == "nhd":
                where = (page, position % spec.page_size)
        elif spec.batched:
            where = (r, slice(None), position % (spec.ring or spec.max_len))
        for x in (name for name in "kv" if name in rows):
            row = rows[x][r].astype(np.float32)
            if spec.kv_dtype == s8:
                row, out[f"{x}_scales"][where] = quantise_rows(row)
            elif spec.kv_dtype.name == "e4m3":
                scale = a[f"{x}_scale"][:, None] if f"{x}_scale" in a else np.float32(1)
                row = np.clip(row / scale, -448, 448)
            with np.errstate(over="ignore"):  # to infinity, as the kernel does
                out[f"{x}_cache"][where] = row.astype(spec.kv_dtype.numpy)


def row_positions(batched: bool, arguments: Mapping[str, Any], rows: int) -> np.ndarray:
    """The position of every row, from the arguments that `position_param` describes."""
    import numpy as np

    if batched:
        return np.asarray(arguments["positions"], np.int64)
    return int(np.ravel(arguments["position"])[0]) + np.arange(rows)


def given_positions(
    indirect: bool, rng: np.random.Generator, sizes: Mapping[str, int], limit: int = 4096
) -> dict[str, Any]:
    """Positions of an example: from `position` in `sizes`, or where that is -1 from one at random below `limit`."""
    import numpy as np

    rows, first = sizes["rows"], sizes["position"]
    if first < 0:
        first = int(rng.integers(0, max(1, limit - rows)))
    positions = (first + rng.permutation(rows)).astype(np.int32)
    return {"position": np.array([first], np.int32) if indirect else first, "positions": positions}


def given(spec: CacheSpec, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Positions and page table of an example. A page belongs to one sequence; entries from `pages` on do not exist."""
    import numpy as np

    out = given_positions(spec.indirect, rng, sizes, spec.max_len)
    if getattr(spec, "kept", False):  # half of the rows
        first = int(np.ravel(out["position"])[0])
        kept = sizes["n_kept"] if sizes["n_kept"] >= 0 else first + sizes["rows"] // 2
        out["n_kept"] = np.array([kept], np.int32)
    if spec.page_size:
        shape = (sizes["rows"], max_pages(spec)) if spec.batched else (max_pages(spec),)
        count = int(np.prod(shape))
        out["n_pages"] = sizes["pages"]
        out["page_table"] = rng.permutation(max(count, sizes["pages"]))[:count].astype(np.int32).reshape(shape)
    return out
