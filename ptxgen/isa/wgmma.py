"""Rows: warpgroup matrix instructions, which sm_90a alone has."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_SIGN = "s32:i@-1|1"  # of A, of B
_FLIP = "s32:i@0|1"  # whether A, B is transposed
_SINCE = "8.0 sm_90a"
_MIXED = "8.4 sm_90a"
_SECTION = "Asynchronous Warpgroup Level Matrix Instructions: "


def _shapes(k: int, step: int = 8) -> str:
    """`S=m64n8k16|m64n16k16|…`: every N of a contraction length."""
    columns = [8, 16, 24, *range(32, 257, 16)] if step == 16 else list(range(8, 257, 8))
    return "S=" + "|".join(f"m64n{n}k{k}" for n in columns)


def _halves() -> tuple[Row, ...]:
    """A by descriptor (both transposable) or in registers (B transposable)."""
    rows = []
    scales = f"pred:ri {_SIGN} {_SIGN}"
    for sums, count, types in (("f16", "b32*S/4", "f16"), ("f32", "f32*S/2", "f16"), ("f32", "f32*S/2", "bf16")):
        pattern = f"wgmma mma_async sync aligned {_shapes(16)} {sums} {types} {types}"
        operands = f"={count} u64:r u64:r {scales} {_FLIP} {_FLIP} / ={count} b32*4 u64:r {scales} {_FLIP}"
        rows.append(Row(pattern, operands, _SINCE))
    return tuple(rows)


def _others() -> tuple[Row, ...]:
    """No transposition: tf32, fp8; and integers, which have no input scales either."""
    rows = []
    for k, sums, count, types in (
        (8, "f32", "f32*S/2", "tf32"),
        (32, "f16", "b32*S/4", "e4m3|e5m2"),
        (32, "f32", "f32*S/2", "e4m3|e5m2"),
    ):
        scales = f"pred:ri {_SIGN} {_SIGN}"
        pattern = f"wgmma mma_async sync aligned {_shapes(k)} {sums} A={types} B={types}"
        rows.append(Row(pattern, f"={count} u64:r u64:r {scales} / ={count} b32*4 u64:r {scales}", _SINCE))
    for k, flags, types, after, since in (
        (32, "satfinite?", "u8 u8", "", _SINCE),
        (32, "satfinite?", "s8 s8", "", _SINCE),
        (32, "satfinite?", "u8 s8", "", _MIXED),
        (32, "satfinite?", "s8 u8", "", _MIXED),
        (256, "", "b1 b1", "and popc", _SINCE),
    ):
        pattern = f"wgmma mma_async sync aligned {_shapes(k, 16)} {flags} s32 {types} {after}"
        operands = "=s32*S/2 u64:r u64:r pred:ri / =s32*S/2 b32*4 u64:r pred:ri"
        rows.append(Row(" ".join(pattern.split()), operands, since))
    return tuple(rows)


SECTIONS: dict[str, tuple[Row, ...]] = {
    f"{_SECTION}wgmma.mma_async": (*_halves(), *_others()),
    f"{_SECTION}wgmma.fence": (Row("wgmma fence sync aligned", "", _SINCE),),
    f"{_SECTION}wgmma.commit_group": (Row("wgmma commit_group sync aligned", "", _SINCE),),
    f"{_SECTION}wgmma.wait_group": (Row("wgmma wait_group sync aligned", "u32:i", _SINCE),),
}
