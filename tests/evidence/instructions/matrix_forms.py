"""mma.sync of every shape and type, twice: on whole numbers, where sums are exact, and on spread ones, within a bound;
ldmatrix, stmatrix, movmatrix (PTX ISA 9.7.14)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evidence.instructions.form import Form

WARPS = 64
# shape, (A, B) element types, accumulator types, registers of A and B.
FLOAT_SHAPES = (
    ("m16n8k8", "f16", ("f16", "f32"), 2, 1), ("m16n8k16", "f16", ("f16", "f32"), 4, 2),
    ("m16n8k8", "bf16", ("f32",), 2, 1), ("m16n8k16", "bf16", ("f32",), 4, 2), ("m16n8k4", "tf32", ("f32",), 2, 1),
    ("m16n8k8", "tf32", ("f32",), 4, 2), ("m8n8k4", "f64", ("f64",), 1, 1), ("m16n8k32", "e4m3", ("f32",), 4, 2),
    ("m16n8k32", "e5m2", ("f32",), 4, 2),
)  # fmt: skip
INT_SHAPES = (("m8n8k16", 1, 1, 2), ("m16n8k16", 2, 1, 4), ("m16n8k32", 4, 2, 4))
NIBBLE_SHAPES = (("m8n8k32", 1, 1, 2), ("m16n8k32", 2, 1, 4), ("m16n8k64", 4, 2, 4))
BIT_SHAPES = (("m8n8k128", 1, 1, 2), ("m16n8k128", 2, 1, 4), ("m16n8k256", 4, 2, 4))


def _operands(d: int, a: int, b: int, c: int) -> str:
    parts, at = [[f"d{n}" for n in range(d)]], 0
    for count in (a, b, c):
        parts.append([f"s{n}" for n in range(at, at + count)])
        at += count
    return ", ".join("{" + ", ".join(p) + "}" for p in parts)


def mma_float() -> Iterator[Form]:
    """f16, bf16, tf32, f64, e4m3, e5m2."""
    for shape, t, accumulators, a, b in FLOAT_SHAPES:
        for acc in accumulators:
            count = 2 if acc in ("f16", "f64") else 4
            held = {"f16": "b32", "f64": "f64"}.get(acc, "f32")
            name = f"mma.sync.aligned.{shape}.row.col.{acc}.{t}.{t}.{acc}"
            source = "f32" if t == "tf32" else t
            for kind in ("whole", "normal"):
                sources = (f"{kind}_{source}",) * (a + b) + (f"{kind}_{acc}",) * count
                yield Form(f"{name} {kind}", f"{name} {_operands(count, a, b, count)};", sources, (held,) * count,
                           exact=kind == "whole", threads=WARPS)  # fmt: skip
    name = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32"
    sources = ("whole_e4m3",) * 4 + ("whole_e5m2",) * 2 + ("whole_f32",) * 4
    yield Form(f"{name} whole", f"{name} {_operands(4, 4, 2, 4)};", sources, ("f32",) * 4, threads=WARPS)


def mma_integer() -> Iterator[Form]:
    """s8 and u8, s4 and u4 in both places, wrapping and saturating."""
    kinds = [(shape, ("s8", "u8")) for shape in INT_SHAPES] + [(shape, ("s4", "u4")) for shape in NIBBLE_SHAPES]
    for (shape, a, b, count), types in kinds:
        for ta in types:
            for tb in types:
                for extra in ("", ".satfinite"):
                    name = f"mma.sync.aligned.{shape}.row.col{extra}.s32.{ta}.{tb}.s32"
                    sources, text = ("bytes",) * (a + b) + ("s32",) * count, f"{name} {_operands(count, a, b, count)};"
                    yield Form(name, text, sources, ("s32",) * count, threads=WARPS)


def mma_bits() -> Iterator[Form]:
    """b1: the bits that `and` or `xor` leaves are counted."""
    for shape, a, b, count in BIT_SHAPES:
        for how in ("and", "xor"):
            name = f"mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{how}.popc"
            sources = ("b32",) * (a + b) + ("s32",) * count
            yield Form(name, f"{name} {_operands(count, a, b, count)};", sources, ("s32",) * count, threads=WARPS)


def moves() -> Iterator[Form]:
    """Matrices between shared memory and registers."""
    fill = "st.shared.v4.b32 [%smem], {s0, s1, s2, s3};\nbar.warp.sync 0xffffffff;\n"
    for count in (1, 2, 4):
        out = ", ".join(f"d{n}" for n in range(count))
        for trans in ("", ".trans"):
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            text = f"{fill}{name} {{{out}}}, [%smem];\nbar.warp.sync 0xffffffff;"
            yield Form(name, text, ("b32",) * 4, ("b32",) * count, threads=WARPS)
            name = name.replace("ld", "st", 1)
            values = ", ".join(f"s{n}" for n in range(count))
            text = f"{fill}{name} [%smem], {{{values}}};\nbar.warp.sync 0xffffffff;\n"
            text += "ld.shared.v4.b32 {d0, d1, d2, d3}, [%smem];\nbar.warp.sync 0xffffffff;"
            yield Form(name, text, ("b32",) * 4, ("b32",) * 4, threads=WARPS)
    name = "movmatrix.sync.aligned.m8n8.trans.b16"
    yield Form(name, f"{name} d0, s0;", ("b32",), ("b32",), threads=WARPS)


def forms() -> Iterator[Form]:
    """All of this module."""
    for part in (mma_float, mma_integer, mma_bits, moves):
        yield from part()
