"""wgmma.mma_async: every element type, several widths, every layout of a shared-memory descriptor (PTX ISA 9.7.15).

Shared memory is filled with whole numbers whatever the layout, so that each result tells which bytes were read.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.evidence.instructions.form import Form

SHARED = 32768
SOURCES = 16
B_AT = 16384
# Element type: (k of the shape, kind of the data, accumulators).
TYPES = {
    "f16": (16, "whole_f16", ("f32", "f16")), "bf16": (16, "whole_bf16", ("f32",)), "tf32": (8, "whole_f32", ("f32",)),
    "e4m3": (32, "whole_e4m3", ("f32", "f16")), "e5m2": (32, "whole_e5m2", ("f32",)), "s8": (32, "bytes", ("s32",)),
    "u8": (32, "bytes", ("s32",)),
}  # fmt: skip
SWIZZLES = {"none": 0, "128": 1, "64": 2, "32": 3}


def fill() -> str:
    """Each thread's 16 words to 64 places of the block's 32 KB, by copies that differ."""
    lines = ["mov.u32 t0, space;", "mad.lo.u32 t0, %me, 16, t0;"]
    for row in range(16):
        words = ", ".join(f"s{(row * 5 + k) % SOURCES}" for k in range(4))
        lines.append(f"st.shared.v4.b32 [t0+{row * 2048}], {{{words}}};")
    lines += ["fence.proxy.async.shared::cta;", "bar.sync 0;"]
    return "\n".join(lines)


def descriptor(register: str, at: int, leading: int, stride: int, swizzle: str) -> str:
    """The 64-bit descriptor of a matrix at `at` bytes from the start of the shared memory."""
    high = (leading >> 4) << 16 | (stride >> 4) << 32 | SWIZZLES[swizzle] << 62
    return (f"mov.u32 t0, space;\nadd.u32 t0, t0, {at};\nshr.u32 t0, t0, 4;\ncvt.u64.u32 {register}, t0;\n"
            f"or.b64 {register}, {register}, {high:#x};")  # fmt: skip


def form(
    label: str, opcode: str, results: int, kind: str, held: str, a: str, b: str, tail: str, start: str = "0"
) -> Form:
    """One multiplication; `a` and `b` set up the operands, `tail` is what follows the descriptor of B."""
    out = ", ".join(f"d{n}" for n in range(results))
    operand = "{s0, s1, s2, s3}" if a == "registers" else "t1"
    clear = "\n".join(f"mov.b32 d{n}, {start};" for n in range(results))
    setup = "" if a == "registers" else a + "\n"
    text = f"{fill()}\n{setup}{b}\n{clear}\nwgmma.fence.sync.aligned;\n{opcode} {{{out}}}, {operand}, t2, {tail};\n"
    text += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nbar.sync 0;"
    return Form(f"{opcode} {label}", text, (kind,) * SOURCES, (held,) * results, ("b32", "b64", "b64", "pred"),
                threads=128, target="sm_90a", shared=SHARED)  # fmt: skip


def opcode_of(n: int, k: int, acc: str, a: str, b: str) -> str:
    """The instruction's name."""
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{acc}.{a}.{b}"


def types() -> Iterator[Form]:
    """Every type and accumulator, K-major without swizzle and with 128 bytes of it, and with A in registers."""
    for t, (k, kind, accumulators) in TYPES.items():
        for acc in accumulators:
            n, each = 16, 2 if acc == "f16" else 1
            whole, held = acc == "s32", {"f16": "b32"}.get(acc, acc)
            tail = "1" if whole else "1, 1, 1" + (", 0, 0" if t in ("f16", "bf16") else "")
            opcode = opcode_of(n, k, acc, t, t)
            for swizzle, leading, stride in (("none", 128, 256), ("128", 16, 1024)):
                a, b = descriptor("t1", 0, leading, stride, swizzle), descriptor("t2", B_AT, leading, stride, swizzle)
                yield form(f"swizzle {swizzle}", opcode, n // 2 // each, kind, held, a, b, tail)
            tail = tail.replace(", 0, 0", ", 0")
            yield form("A in registers", opcode, n // 2 // each, kind, held, "registers", b, tail)
    for a, b in (("s8", "u8"), ("u8", "s8"), ("e4m3", "e5m2")):
        acc = "s32" if a in ("s8", "u8") else "f32"
        tail = "1" if acc == "s32" else "1, 1, 1"
        da, db = descriptor("t1", 0, 128, 256, "none"), descriptor("t2", B_AT, 128, 256, "none")
        yield form("mixed", opcode_of(16, 32, acc, a, b), 8, TYPES[b][1], acc, da, db, tail)
    da, db = descriptor("t1", 0, 128, 256, "none"), descriptor("t2", B_AT, 128, 256, "none")
    opcode = opcode_of(16, 32, "s32", "s8", "s8") + ".satfinite"
    yield form("saturating", opcode, 8, "bytes", "s32", da, db, "1", start="2147483000")
    opcode = opcode_of(16, 256, "s32", "b1", "b1") + ".and.popc"
    yield form("bits", opcode, 8, "bytes", "s32", da, db, "1", start="1000")
    yield form("bits, A in registers", opcode, 8, "bytes", "s32", "registers", db, "1")


def layouts() -> Iterator[Form]:
    """f16: every swizzle, both major-nesses of both operands, offsets within the swizzle's period, several widths."""
    opcode = opcode_of(32, 16, "f32", "f16", "f16")
    for swizzle, row in (("32", 32), ("64", 64), ("128", 128)):
        for offset in (0, 32) if row > 32 else (0,):
            a, b = (descriptor(r, at + offset, 16, row * 8, swizzle) for r, at in (("t1", 0), ("t2", B_AT)))
            yield form(f"K-major swizzle {swizzle} at +{offset}", opcode, 16, "whole_f16", "f32", a, b, "1, 1, 1, 0, 0")
    for swizzle, leading, stride in (("none", 256, 128), ("none", 1024, 512), ("32", 512, 256), ("64", 2048, 512),
                                     ("128", 2048, 1024)):  # fmt: skip
        a, b = (descriptor(r, at, leading, stride, swizzle) for r, at in (("t1", 0), ("t2", B_AT)))
        for ta, tb in ((1, 1), (0, 1), (1, 0)):
            label = f"swizzle {swizzle} {leading} {stride} transposed {ta} {tb}"
            yield form(label, opcode, 16, "whole_f16", "f32", a, b, f"1, 1, 1, {ta}, {tb}")
    left, right = (descriptor(r, at, 128, 256, "none") for r, at in (("t1", 0), ("t2", B_AT)))
    for n in (8, 24, 64, 128):
        opcode = opcode_of(n, 16, "f32", "f16", "f16")
        yield form("width", opcode, n // 2, "whole_f16", "f32", left, right, "1, 1, 1, 0, 0")


def scales() -> Iterator[Form]:
    """Accumulation switched off and on by a predicate, negated operands."""
    left, right = (descriptor(r, at, 128, 256, "none") for r, at in (("t1", 0), ("t2", B_AT)))
    opcode = opcode_of(8, 16, "f32", "f16", "f16")
    for scale in (0, 1):
        masked = f"{right}\nsetp.ne.u32 t3, {scale}, 0;"
        yield form(f"scale-d {scale}", opcode, 4, "whole_f16", "f32", left, masked, "t3, 1, 1, 0, 0", "0f42C80000")
    for a, b in ((-1, 1), (1, -1), (-1, -1)):
        yield form(f"signs {a} {b}", opcode, 4, "whole_f16", "f32", left, right, f"1, {a}, {b}, 0, 0", "0f42C80000")


def forms() -> Iterator[Form]:
    """All of this module."""
    for part in (types, layouts, scales):
        yield from part()
