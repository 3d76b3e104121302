"""Append positions to a KV cache: convert, or quantise, on the way in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import DType, f16, f32, s8, s32
from ptxgen.idioms import convert
from ptxgen.kernel import KernelType, kernel_type
from ptxgen.launch import Launch, Param, buffer, grid3, scalar

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

CHUNK = 8  # elements a thread moves: 16 bytes of f16
GROUP = 32  # values that share one int8 scale


@kernel_type
class KvCacheScatter(KernelType):
    """Append rows of K and V to every KV head's cache.

    k, v `[rows, n_kv_heads, head_dim]`; k_cache, v_cache `[n_kv_heads, max_len, head_dim]`: row r goes to position + r.
    `batched`: caches `[rows, n_kv_heads, max_len, head_dim]`, row r goes to positions[r] of sequence r. A position
    outside the cache writes nothing. `indirect`: the position is read from device memory. int8 caches carry scales
    `[…, max_len, ceil(head_dim / 32)]` in f16: scale = max|x| / 127 over 32 values, rounded to f16 before dividing.
    """

    max_len: int
    head_dim: int
    n_kv_heads: int
    kv_dtype: DType = f32
    src_dtype: DType = f32
    indirect: bool = False
    batched: bool = False

    sizes = {"rows": 1, "position": 0}
    goldens = (
        dict(max_len=64, head_dim=64, n_kv_heads=2),
        dict(max_len=64, head_dim=80, n_kv_heads=3, kv_dtype=s8, indirect=True),
        dict(max_len=128, head_dim=128, n_kv_heads=2, kv_dtype=f16, batched=True),
    )

    def rules(self) -> Iterator[str]:
        yield from rules.between("max_len", self.max_len, 1, 1 << 30)
        yield from rules.multiple_of("head_dim", self.head_dim, 8, 8, 512)
        yield from rules.between("n_kv_heads", self.n_kv_heads, 1, 1024)
        yield from rules.one_of("kv_dtype", self.kv_dtype.name, ("f32", "f16", "bf16", "e4m3", "s8"))
        yield from rules.one_of("src_dtype", self.src_dtype.name, ("f32", "f16", "bf16"))

    def target_rules(self, target: Target) -> Iterator[str]:
        if self.kv_dtype.name == "e4m3" and not target.includes_any(("sm_89",)):
            yield f"kv_dtype: e4m3 needs sm_89 or later (got {target}; nearest: s8)"

    @property
    def groups(self) -> int:
        """Scales of one int8 row."""
        return -(-self.head_dim // GROUP)

    @property
    def half(self) -> int:
        """Threads for K, and again for V: whole warps, a thread per chunk."""
        return -(-self.head_dim // CHUNK // 32) * 32

    def params(self) -> tuple[Param, ...]:
        row = (self.n_kv_heads, self.head_dim)
        cache = (*(("rows",) if self.batched else ()), self.n_kv_heads, self.max_len, self.head_dim)
        out = [
            buffer("k", self.src_dtype, "rows", *row),
            buffer("v", self.src_dtype, "rows", *row),
            buffer("k_cache", self.kv_dtype, *cache, access="inout"),
            buffer("v_cache", self.kv_dtype, *cache, access="inout"),
        ]
        if self.kv_dtype == s8:
            scales = (*cache[:-1], self.groups)
            out += [buffer(f"{x}_scales", f16, *scales, access="inout", align=2) for x in "kv"]
        if self.batched:
            out.append(buffer("positions", s32, "rows", align=4))
        elif self.indirect:
            out.append(buffer("position", s32, 1, align=4))
        else:
            out.append(scalar("position", s32))
        return tuple(out)

    def launch(self, target: Target) -> Launch:
        return Launch(grid3(self.n_kv_heads, "rows"), (2 * self.half, 1, 1))

    def build(self, b: Builder) -> None:
        quantised = self.kv_dtype == s8
        with b.fragment("locate"):
            head = b.op("mov.u32", "head", b.special("ctaid.x"))
            row = b.op("mov.u32", "row", b.special("ctaid.y"))
            tid = b.op("mov.u32", "tid", b.special("tid.x"))
            if self.batched or self.indirect:
                source = b.ld_param("positions" if self.batched else "position")
                if self.batched:
                    b.op("mad.wide.u32", source, row, 4, source)
                position = b.op("ld.global.s32", "row_position", source[0])
            else:
                position = b.op("mov.s32", "row_position", b.ld_param("position"))
            if not self.batched:
                b.op("add.s32", position, position, row)
            # One unsigned comparison refuses negative positions too.
            inside = b.op("setp.lt.u32", "inside", position, self.max_len)
            is_v = b.op("setp.ge.u32", "is_v", tid, self.half)
            chunk = b.op("and.b32", "chunk", tid, self.half - 1) if self.half & (self.half - 1) == 0 else None
            if chunk is None:
                chunk = b.op("rem.u32", "chunk", tid, self.half)
            has_chunk = b.op("setp.lt.u32", "has_chunk", chunk, self.head_dim // CHUNK)
        values = b.array("value", "f32", CHUNK)
        with b.fragment("load"):
            b.note(f"{CHUNK} elements a thread; the second half of the CTA takes V")
            k, v = b.ld_param("k"), b.ld_param("v")
            source = b.op("selp.b64", "source", v, k, is_v)
            index = b.op("mad.lo.u32", "row_head", row, self.n_kv_heads, head)
            b.op("mad.wide.u32", source, index, self.head_dim * self.src_dtype.bytes, source)
            b.op("mad.wide.u32", source, chunk, CHUNK * self.src_dtype.bytes, source)
            words = b.array("source_word", "b32", convert.words_of(self.src_dtype, CHUNK))
            for word in words:
                b.op("mov.b32", word, 0)
            convert.load_words(b, words, source, pred=has_chunk)
            convert.unpack(b, values, words, self.src_dtype)
        if quantised:
            scale = self._quantise(b, values)
        with b.fragment("store"):
            sequence_head = index if self.batched else head
            b.op("mul.wide.u32", "cache_row", sequence_head, self.max_len)
            cache_row = b.registers["cache_row"]
            b.op("cvt.u64.u32", "wide_position", position)
            b.op("add.u64", cache_row, cache_row, b.registers["wide_position"])
            k_cache, v_cache = b.ld_param("k_cache"), b.ld_param("v_cache")
            cache = b.op("selp.b64", "cache", v_cache, k_cache, is_v)
            b.op("mad.lo.u64", cache, cache_row, self.head_dim * self.kv_dtype.bytes, cache)
            b.op("mad.wide.u32", cache, chunk, CHUNK * self.kv_dtype.bytes, cache)
            packed = b.array("packed", "b32", convert.words_of(self.kv_dtype, CHUNK))
            convert.pack(b, packed, values, self.kv_dtype)
            convert.store_words(b, cache, packed, pred=has_chunk)
        if quantised:
            with b.fragment("store_scale"):
                k_scales, v_scales = b.ld_param("k_scales"), b.ld_param("v_scales")
                scales = b.op("selp.b64", "scales", v_scales, k_scales, is_v)
                b.op("mad.lo.u64", scales, cache_row, self.groups * 2, scales)
                group = b.op("shr.u32", "group", chunk, 2)
                b.op("mad.wide.u32", scales, group, 2, scales)
                first = b.op("and.b32", "lane_of_group", chunk, 3)
                b.op("setp.eq.and.u32", "writes_scale", first, 0, has_chunk)
                b.op("st.global.b16", scales[0], scale, pred=b.registers["writes_scale"])

    def _quantise(self, b: Builder, values: convert.RegArray) -> object:
        """Scale the values of a group of 32 (four threads) to int8 range; returns the f16 scale."""
        with b.fragment("quantise"):
            b.note(f"largest magnitude of {GROUP} values, {GROUP // CHUNK} threads")
            largest = b.op("abs.f32", "largest", values[0])
            magnitude = b.reg("magnitude", "f32")
            for value in values[1:]:
                b.op("abs.f32", magnitude, value)
                b.op("max.f32", largest, largest, magnitude)
            for distance in (1, 2):
                b.op("shfl.sync.bfly.b32", magnitude, largest, distance, 31, -1)
                b.op("max.f32", largest, largest, magnitude)
            b.op("mul.f32", largest, largest, 1 / 127)
            scale = b.op("cvt.rn.f16.f32", "scale", largest)
            rounded = b.op("cvt.f32.f16", "rounded_scale", scale)
            b.op("rcp.rn.f32", "inverse", rounded)
            # An all-zero group has scale 0; its values stay 0 whatever the inverse.
            b.op("setp.eq.f32", "all_zero", rounded, 0.0)
            b.op("selp.f32", b.registers["inverse"], 0.0, b.registers["inverse"], b.registers["all_zero"])
            for value in values:
                b.op("mul.f32", value, value, b.registers["inverse"])
        return scale

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        import numpy as np

        position = sizes["position"]
        return {
            "positions": rng.integers(0, self.max_len, sizes["rows"], np.int32),
            "position": np.array([position], np.int32) if self.indirect else position,
        }

    def reference(self, **a: np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        out = {name: a[name].copy() for name in a if name.endswith(("_cache", "_scales"))}
        for r in range(a["k"].shape[0]):
            position = int(a["positions"][r]) if self.batched else int(np.ravel(a["position"])[0]) + r
            if not 0 <= position < self.max_len:
                continue
            for x in "kv":
                row = a[x][r].astype(np.float32)
                where = (r, slice(None), position) if self.batched else (slice(None), position)
                if self.kv_dtype == s8:
                    row, out[f"{x}_scales"][where] = quantise_rows(row)
                elif self.kv_dtype.name == "e4m3":
                    row = np.clip(row, -448, 448)
                out[f"{x}_cache"][where] = row.astype(self.kv_dtype.numpy)
        return out


def quantise_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and f16 scales of f32 rows `[…, head_dim]`, a scale per 32 values."""
    import numpy as np

    dim = rows.shape[-1]
    padded = np.zeros((*rows.shape[:-1], -(-dim // GROUP) * GROUP), np.float32)
    padded[..., :dim] = rows
    grouped = padded.reshape(*rows.shape[:-1], -1, GROUP)
    scales = (np.abs(grouped).max(-1) * np.float32(1 / 127)).astype(np.float16)
    inverse = np.where(scales == 0, np.float32(0), np.float32(1) / np.where(scales == 0, 1, scales).astype(np.float32))
    values = np.clip(np.rint(grouped * inverse[..., None]), -128, 127).astype(np.int8)
    return values.reshape(padded.shape)[..., :dim], scales
