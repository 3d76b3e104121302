"""Rotary position embedding of queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths, rules
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, bf16, f16, f32
from ptxgen.idioms import convert, kv_cache
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.idioms.rope.rows import IN_PLACE, PRECISE, ROPE_FIELDS, STYLE, RotatingRows
from ptxgen.idioms.threads import CHUNK, HeadMap, chunk_address, row_index
from ptxgen.kernel import KernelType, Spread, field, kernel_type
from ptxgen.launch import Param, buffer

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


@kernel_type
class Rope(RotatingRows, KernelType):
    """Rotate rows of query and key heads to their positions.

    q `[rows, n_heads, head_dim]`, and k `[rows, n_kv_heads, head_dim]` where `n_kv_heads` is not 0; `in_place`, or to
    q_out and k_out. Row r is at position + r; `indirect`: position is read from device memory; `batched`: row r is at
    positions[r]. The first `rotary_dim` elements rotate (None: all); angles, styles, scalings:
    `idioms.rope.rotation.Rotation`. Arithmetic is f32; absolute error of sine and cosine 2⁻²⁰, with `precise` 2⁻²³, at
    every position.
    """

    head_dim: int
    n_heads: int
    n_kv_heads: int = field(default=0, local=True, doc="heads of k; 0: q alone")
    dtype: DType = f32
    style: str = field(default="neox", like=STYLE)
    rope: ClassVar[Spread] = ROPE_FIELDS
    precise: bool = field(default=False, like=PRECISE)
    in_place: bool = field(default=True, like=IN_PLACE)
    indirect: bool = False
    batched: bool = False
    programmatic: bool = False

    sizes = {"rows": 1, "position": -1}  # -1: one at random
    trials = ({"rows": 3, "position": 100_000},)
    unreported = {r"precise=True": "below the rounding of f16"}
    goldens = (
        dict(head_dim=16, n_heads=2, style="norm"),
        dict(head_dim=40, n_heads=3, n_kv_heads=1, rotary_dim=24, dtype=bf16, in_place=False, batched=True),
        dict(
            head_dim=16,
            n_heads=2,
            n_kv_heads=1,
            dtype=f16,
            scaling="llama3",
            factor=8.0,
            style="norm",
            precise=True,
            indirect=True,
        ),
        dict(head_dim=32, n_heads=2, n_kv_heads=2, dtype=f16),
        dict(head_dim=24, n_heads=2, style="norm", dtype=bf16, programmatic=True),
    )

    def rules(self) -> Iterator[str]:
        yield from rules.multiple_of("head_dim", self.head_dim, 8, 8, 512)
        yield from rules.between("n_heads", self.n_heads, 1, 1024)
        yield from rules.between("n_kv_heads", self.n_kv_heads, 0, 1024)
        yield from rules.one_of("dtype", self.dtype.name, ("f32", "f16", "bf16"))
        yield from self.rotation_rules()

    @property
    def partial(self) -> bool:
        """Whether some chunks are copied as they are."""
        return not self.in_place and self.rotation.rotary_dim < self.head_dim

    @property
    def heads(self) -> tuple[tuple[str, int], ...]:
        """The buffers that rotate, with their heads."""
        return (("q", self.n_heads), ("k", self.n_kv_heads)) if self.n_kv_heads else (("q", self.n_heads),)

    @property
    def map(self) -> HeadMap:
        """Threads of a row: in place, only the chunks that rotate have one."""
        return HeadMap(self.rotation.rotary_dim if self.in_place else self.head_dim, self.heads)

    def params(self) -> tuple[Param, ...]:
        access = "inout" if self.in_place else "in"
        params = [buffer(x, self.dtype, "rows", n, self.head_dim, access=access) for x, n in self.heads]
        if not self.in_place:
            params += [buffer(f"{x}_out", self.dtype, "rows", n, self.head_dim, access="out") for x, n in self.heads]
        return (*params, kv_cache.position_param(self.batched, self.indirect))

    def build(self, b: Builder) -> None:
        with b.fragment("locate"):
            row, place = self.map.locate_row(b)
            rotates = place.has_chunk
            if self.partial:
                limit = self.rotation.rotary_dim // CHUNK
                rotates = b.op("setp.lt.and.u32", "rotates", place.chunk, limit, place.has_chunk)
        chunk = self.rotating_chunk(b, place, rotates, self.dtype)
        with b.fragment("load", "load the thread's chunk of 8 elements, and the row's position"):
            row_head = row_index(b, "row_head", row, place.part_heads, place.head)
            source = self._chunk_address(b, "", place.since, row_head, place.chunk)
            values, words = chunk.load(b, source)
            position = kv_cache.load_position(b, row, self.batched, self.indirect)
        chunk.widen(b, values, words)
        chunk.turn(b, values, position)
        with b.fragment("store", "store the rotated chunk"):
            convert.pack(b, words, values, self.dtype)
            out = source if self.in_place else self._chunk_address(b, "_out", place.since, row_head, place.chunk)
            convert.store_words(b, out, words, pred=place.has_chunk)

    def _chunk_address(self, b: Builder, suffix: str, since: tuple[Reg, ...], row_head: Reg, chunk: Reg) -> Reg:
        """Address of this thread's chunk in q or k, or in their outputs."""
        address: Reg = b.ld_param(f"q{suffix}")
        if since:
            address = b.op("selp.b64", f"source{suffix}", b.ld_param(f"k{suffix}"), address, since[0])
        return chunk_address(b, address, row_head, self.head_dim * self.dtype.bytes, chunk, CHUNK * self.dtype.bytes)

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return lengths.written_rows(0, self.batched, sizes)

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return kv_cache.given_positions(self.indirect, rng, sizes)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        positions = kv_cache.row_positions(self.batched, a, a["q"].shape[0])
        suffix = "" if self.in_place else "_out"
        return {
            x + suffix: rotary.rotate_rows(self.rotation, a[x], positions).astype(self.dtype.numpy)
            for x, _ in self.heads
        }
