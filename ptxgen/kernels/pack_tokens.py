"""Rows of f32 into the tiles that PackedGemm reads, normalised on the way where that is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import bf16, e4m3, f16, f32
from ptxgen.idioms.division import split
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.kernel import Reading, kernel_type
from ptxgen.launch import Launch, Param, buffer
from ptxgen.parity import LIMITS
from ptxgen.products.problem.readings import EXACT, digit_readings
from ptxgen.products.problem.reference import normed
from ptxgen.products.problem.rows_given import n_rows_given, n_rows_param, rows_counted, rows_of
from ptxgen.products.wgmma.tokens import layout
from ptxgen.products.wgmma.tokens.packing import OWN, PackedRows, Packing
from ptxgen.products.wgmma.tokens.scaled_packing import RowPacking, ScaledPacking

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target


@kernel_type
class PackTokens(PackedRows):
    """Pack the first n_rows rows of x `[rows, dim]` as the tiles that PackedGemm reads.

    out `[ceil(rows / tokens), blocks of 64 columns, digits, tokens, 64]`. Rows of a tile from n_rows on are zero; tiles
    without a row are not written. n_rows is a scalar, or `[1]` in device memory when `indirect`.

    `dim`: columns. `tokens`: rows of a tile. `dtype`: of out. `src_dtype`: of x. `precision`: "fast": x rounded to
    dtype once; "exact": three bf16 digits that add up to x. `norm`: "" or "rms": x / sqrt(mean(x²) + eps) ·
    (norm_offset + norm_weight) is packed. `eps`: added to the mean square. `norm_offset`: added to the norm's weights.
    In e4m3 out is `[…, blocks of 128 columns, 1, tokens, 128]` of x / scale. With `group` 0 scales are f32 `[…, 1,
    tokens]`, max|x| / 448 of each row, as in Quantize. With `group` 128 they are `[…, blocks, tokens]`, for each block
    the smallest power of four that is at least max|x| / 448.
    `by_row`: out in f16 is x / scale. It is one number ("fast") or two ("exact"); these add up to 22 bits of x down to
    2^-17 of a row's largest, and smaller elements have errors within 2^-39 of the largest. scales f32 `[…, 1, tokens]`
    are powers of two that make a row's largest, except NaN, 2^14 to 2^15. sums f16 `[…, units of 256 columns, 2,
    tokens, 8]` are those of every 32 columns (`ptxgen.products.wgmma.tokens.layout`).
    """

    sizes = {"rows": 5, "n_rows": -1}  # -1: all
    golden_targets = ("sm_80", "sm_90")
    goldens = (
        dict(dim=256, tokens=8, precision="fast"),
        dict(dim=5000, tokens=16, precision="exact", norm="rms", norm_offset=1.0, indirect=True),
        dict(dim=66, tokens=64, dtype="f16", precision="fast", norm="rms", programmatic=True),
        dict(dim=72, tokens=8, src_dtype="f16", precision="fast"),
        dict(dim=300, tokens=8, dtype="e4m3", precision="fast", norm="rms", group=128),
        dict(dim=17000, tokens=16, dtype="e4m3", precision="fast", norm="rms", indirect=True),
        dict(dim=136, tokens=8, dtype="e4m3", src_dtype="bf16", precision="fast"),
        dict(dim=700, tokens=16, dtype="f16", by_row=True, norm="rms", programmatic=True),
        dict(dim=17000, tokens=8, dtype="f16", by_row=True, precision="fast", indirect=True),
    )
    lowest_target = "sm_80"

    def rules(self) -> Iterator[str]:
        yield from rules.between("dim", self.dim, 1, 1 << 17)
        yield from rules.one_of("tokens", self.tokens, layout.TOKENS)
        yield from rules.one_of("dtype", self.dtype.name, ("bf16", "f16", "e4m3"))
        yield from rules.one_of("precision", self.precision, tuple(layout.DIGITS))
        yield from rules.one_of("norm", self.norm, ("", "rms"))
        yield from rules.between("eps", self.eps, 1e-12, 1.0)
        yield from rules.between("norm_offset", self.norm_offset, -16.0, 16.0)
        yield from rules.one_of("src_dtype", self.src_dtype.name, ("f32", "f16", "bf16"))
        if self.src_dtype != f32 and self.dim % OWN:
            yield f"src_dtype: rows of 16-bit numbers are a multiple of {OWN} long (got dim={self.dim}; nearest: f32)"
        if self.by_row and self.dtype != f16:
            yield f"by_row: is for f16 (got dtype={self.dtype.name}; nearest: dtype=f16)"
        if self.precision == "exact" and self.dtype != bf16 and not self.by_row:
            yield f"dtype: exact digits are bf16 (got {self.dtype.name}; nearest: bf16)"
        yield from rules.one_of("group", self.group, layout.SCALE_GROUPS)
        if self.group and self.dtype != e4m3:
            yield f"group: must be 0 with dtype {self.dtype}, which has no scales of blocks (got {self.group})"

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)
        if not target.includes_any(("sm_80",)):
            yield f"pack_tokens: needs sm_80 or later (got {target}; nearest: sm_80)"

    def params(self) -> tuple[Param, ...]:
        wide = 16 if self.dim % OWN == 0 else 4
        source = self.src_dtype.bytes * OWN if self.dim % OWN == 0 else 4
        out = [buffer("x", self.src_dtype, "rows", self.dim, align=source)]
        if self.norm:
            out.append(buffer("norm_weight", f32, self.dim, align=wide))
        tiles = layout.shape(self.dim, self.tokens, self.digits, self.dtype)
        out.append(buffer("out", self.dtype, *tiles, access="out", align=128))
        if self.scaled:
            scales = layout.scale_shape(self.dim, self.tokens, self.group)
            out.append(buffer("scales", f32, *scales, access="out", align=16))
        if self.by_row:
            out.append(buffer("sums", f16, *layout.sum_shape(self.dim, self.tokens), access="out", align=16))
        out.append(n_rows_param(self.indirect))
        return tuple(out)

    def launch(self, target: Target) -> Launch:
        grid = f"ceil_div(rows, {self.tokens}) * {self.tokens}"
        return Launch((grid, 1, 1), (self.threads, 1, 1), programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        wait_for_producer(b, self.programmatic)
        with b.fragment("locate", "a CTA takes a row; rows past the last, in the last tile, are zero"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            row = b.op("mov.u32", "row", b.special("ctaid.x"))
        with b.fragment("count", "how many rows there are, and whether this is one"):
            count = rows_counted(b, self.indirect)
            exists = b.op("setp.lt.u32", "row_exists", row, count)
            tile, token = split(b, "tile", "token", row, self.tokens)
            first = b.op("sub.u32", "first_row", row, token)
            b.op("setp.lt.u32", "in_a_tile", first, count)
        kind = RowPacking if self.by_row else ScaledPacking if self.scaled else Packing
        kind(b, self).build(thread, row, tile, token, exists)
        b.expose(repeats=self.columns > self.reach, largest_of_rows=self.scaled and not self.group)

    def readings(self, output: str, values: np.ndarray) -> Iterator[Reading]:
        """Without a norm, scales and sums numbers are exact on every device: x is given, `cvt.rn` is one rounding to
        nearest even, and what a digit leaves of an f32 is an f32."""
        if not (self.norm or self.scaled or self.by_row):
            yield Reading(output, values, 0.0)
        elif self.digits > 1 and output in ("out", "sums"):
            yield from digit_readings(output, values, 2, EXACT, self.dtype)
        else:
            yield Reading(output, values, LIMITS["f32"] if output == "scales" else None)

    # -- example and reference -----------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), "n_rows": (0, sizes["rows"])}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        given: dict[str, Any] = {"n_rows": n_rows_given(sizes, self.indirect)}
        if self.group:
            given["x"] = layout.uneven(rng, sizes["rows"], self.dim, self.group).astype(self.src_dtype.numpy)
        return given

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        count = rows_of(a)
        x = a["x"][:count].astype(np.float64)
        if self.norm:
            x = normed(x, self.eps, self.norm_offset, a["norm_weight"])
        out, tiles = np.array(a["out"]), -(-count // self.tokens)
        if self.by_row:
            found = layout.pack_by_row(x.astype(np.float32), self.tokens, self.digits)
            given = {"out": out, "scales": np.array(a["scales"]), "sums": np.array(a["sums"])}
            for array, rows in zip(given.values(), found, strict=True):
                array[:tiles] = rows
            return given
        if self.scaled:
            scales = np.array(a["scales"])
            out[:tiles], scales[:tiles] = layout.pack_scaled(x.astype(np.float32), self.tokens, self.dtype, self.group)
            return {"out": out, "scales": scales}
        out[:tiles] = layout.pack(x.astype(np.float32), self.tokens, self.dtype, self.digits)
        return {"out": out}
