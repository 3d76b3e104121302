"""Integer, logic, comparison and selection forms (PTX ISA 9.7.1, 9.7.2, 9.7.6 to 9.7.8)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evidence.instructions.form import Form

INTS = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def simple(opcode: str, result: str, *sources: str, **more) -> Form:
    """`opcode d0, s0, s1 …`."""
    operands = ", ".join(["d0", *(f"s{n}" for n in range(len(sources)))])
    return Form(opcode, f"{opcode} {operands};", sources, (result,), **more)


def arithmetic() -> Iterator[Form]:
    """Forms of integer arithmetic: add, mul, div, mad, min and such, of every type."""
    for t in INTS:
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            yield simple(f"{op}.{t}", t, t, t)
        for op in ("div", "rem"):
            yield simple(f"{op}.{t}", t, t, f"divisor_{t}")
        for op in ("mad.lo", "mad.hi", "sad"):
            yield simple(f"{op}.{t}", t, t, t, t)
    for t, w in WIDE.items():
        yield simple(f"mul.wide.{t}", w, t, t)
        yield simple(f"mad.wide.{t}", w, t, t, w)
    for t in ("s16", "s32", "s64"):
        yield simple(f"neg.{t}", t, t)
        yield simple(f"abs.{t}", t, t)
    for op in ("add.sat", "sub.sat", "min.relu", "max.relu"):
        yield simple(f"{op}.s32", "s32", "s32", "s32")
    yield simple("mad.hi.sat.s32", "s32", "s32", "s32", "s32")
    for t in ("u16x2", "s16x2"):
        for op in ("add", "min", "max"):
            yield simple(f"{op}.{t}", "b32", "b32", "b32")
    for op in ("min.relu", "max.relu"):
        yield simple(f"{op}.s16x2", "b32", "b32", "b32")
    for t in ("u32", "s32"):
        for part in ("lo", "hi"):
            yield simple(f"mul24.{part}.{t}", t, t, t)
            yield simple(f"mad24.{part}.{t}", t, t, t, t)
    yield simple("mad24.hi.sat.s32", "s32", "s32", "s32", "s32")


def carries() -> Iterator[Form]:
    """Chains through the carry flag."""
    for t in ("u32", "s32", "u64", "s64"):
        for op in ("add", "sub"):
            text = f"{op}.cc.{t} d0, s0, s1;\n{op}c.cc.{t} d1, s2, s3;\n{op}c.{t} d2, s0, s3;"
            yield Form(f"{op}.cc {op}c.{t}", text, (t,) * 4, (t,) * 3)
    for t in ("u32", "s32", "u64"):
        text = f"mad.lo.cc.{t} d0, s0, s1, s2;\nmadc.hi.cc.{t} d1, s0, s1, s3;\naddc.{t} d2, s2, 0;"
        yield Form(f"mad.cc madc.{t}", text, (t,) * 4, (t,) * 3)


def fields() -> Iterator[Form]:
    """Bit counts, fields, permutations, dot products."""
    for t in ("b32", "b64"):
        yield simple(f"popc.{t}", "u32", t)
        yield simple(f"clz.{t}", "u32", t)
        yield simple(f"brev.{t}", t, t)
    for t in ("u32", "s32", "u64", "s64"):
        yield simple(f"bfind.{t}", "u32", t)
        yield simple(f"bfind.shiftamt.{t}", "u32", t)
        yield simple(f"bfe.{t}", t, t, "field", "field")
    for t in ("b32", "b64"):
        yield simple(f"bfi.{t}", t, t, t, "field", "field")
    yield simple("fns.b32", "b32", "b32", "start", "offset")
    for mode in ("clamp", "wrap"):
        yield simple(f"bmsk.{mode}.b32", "b32", "field", "field")
        for t in ("u32", "s32"):
            yield simple(f"szext.{mode}.{t}", t, t, "field")
        for side in ("l", "r"):
            yield simple(f"shf.{side}.{mode}.b32", "b32", "b32", "b32", "shift")
    for a in ("u32", "s32"):
        for b in ("u32", "s32"):
            result = "u32" if (a, b) == ("u32", "u32") else "s32"
            yield simple(f"dp4a.{a}.{b}", result, a, b, result)
            for part in ("lo", "hi"):
                yield simple(f"dp2a.{part}.{a}.{b}", result, a, b, result)
    yield simple("prmt.b32", "b32", "b32", "b32", "bytes")
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield simple(f"prmt.b32.{mode}", "b32", "b32", "b32", "few")


def logic() -> Iterator[Form]:
    """Bitwise operations and shifts."""
    for t in ("b16", "b32", "b64"):
        for op in ("and", "or", "xor"):
            yield simple(f"{op}.{t}", t, t, t)
        for op in ("not", "cnot"):
            yield simple(f"{op}.{t}", t, t)
        yield simple(f"shl.{t}", t, t, "shift")
        yield simple(f"shr.{t}", t, t, "shift")
    for t in INTS:
        yield simple(f"shr.{t}", t, t, "shift")
    for table in (0x00, 0x1A, 0x80, 0x96, 0xCA, 0xE8, 0xF8, 0xFF, 0x37):
        yield Form(f"lop3.b32 {table:#x}", f"lop3.b32 d0, s0, s1, s2, {table:#x};", ("b32",) * 3, ("b32",))
    for op in ("and", "or", "xor"):
        text = f"setp.lt.u32 t0, s0, s1;\nsetp.lt.s32 t1, s1, s2;\n{op}.pred d0, t0, t1;\nnot.pred d1, d0;"
        yield Form(f"{op}.pred", text, ("b32",) * 3, ("pred", "pred"), ("pred", "pred"))
    text = "setp.lt.u32 t0, s0, s1;\nmov.pred d0, t0;\nselp.b32 d1, s0, s1, t0;\nselp.b32 d2, s0, s1, !t0;"
    yield Form("mov.pred selp", text.replace("!t0", "t1").replace("mov.pred d0", "not.pred t1, t0;\nmov.pred d0"),
               ("b32", "b32"), ("pred", "b32", "b32"), ("pred", "pred"))  # fmt: skip


SIGNED, UNSIGNED = ("eq", "ne", "lt", "le", "gt", "ge"), ("lo", "ls", "hi", "hs")
FLOATS = (*SIGNED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def comparisons() -> Iterator[Form]:
    """setp and set of every relation and type, with a second destination and with a combining predicate."""
    for t in (*INTS, "b16", "b32", "b64", "f32", "f32.ftz", "f64", "f16", "bf16"):
        kind = t.removesuffix(".ftz")
        words = FLOATS if kind in ("f32", "f64", "f16", "bf16") else SIGNED[:2] if t[0] == "b" else SIGNED
        for word in (*words, *(UNSIGNED if t[0] == "u" else ())):
            name = f"setp.{word}{'.ftz' if t != kind else ''}.{kind}"
            yield Form(name, f"{name} d0|d1, s0, s1;" if kind not in ("f16", "bf16") else f"{name} d0, s0, s1;",
                       (kind, kind), ("pred", "pred") if kind not in ("f16", "bf16") else ("pred",))  # fmt: skip
    for t in ("f16x2", "bf16x2"):
        for word in FLOATS:
            yield Form(f"setp.{word}.{t}", f"setp.{word}.{t} d0|d1, s0, s1;", (t, t), ("pred", "pred"))
    for join in ("and", "or", "xor"):
        text = f"setp.gt.s32 t0, s1, 100;\nsetp.lt.{join}.s32 d0|d1, s0, s1, t0;\nsetp.lt.{join}.s32 d2, s0, s1, !t0;"
        yield Form(f"setp.lt.{join}.s32", text, ("s32", "s32"), ("pred",) * 3, ("pred",))
    for to in ("u32", "s32", "f32"):
        for t in ("u16", "s16", "b32", "u32", "s32", "u64", "s64", "f32", "f64"):
            word = "ne" if t == "b32" else "ge"
            yield simple(f"set.{word}.{to}.{t}", to, t, t)
    for to, t in (("f16", "f16"), ("u16", "f16"), ("u32", "f16"), ("bf16", "bf16"), ("u32", "bf16"),
                  ("f16x2", "f16x2"), ("bf16x2", "bf16x2")):  # fmt: skip
        for word in ("lt", "neu"):
            yield simple(f"set.{word}.{to}.{t}", to, t, t)
    text = "setp.gt.s32 t0, s1, 100;\nset.lt.and.u32.s32 d0, s0, s1, t0;\nset.ltu.ftz.xor.f32.f32 d1, s2, s3, t0;"
    yield Form("set.and set.xor", text, ("s32", "s32", "f32", "f32"), ("u32", "f32"), ("pred",))


def selections() -> Iterator[Form]:
    """selp and slct."""
    for t in ("b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"):
        yield Form(f"selp.{t}", f"setp.ne.u32 t0, s2, 0;\nselp.{t} d0, s0, s1, t0;", (t, t, "bool"), (t,), ("pred",))
        for by in ("s32", "f32"):
            yield simple(f"slct.{t}.{by}", t, t, t, by)
    yield simple("slct.ftz.u32.f32", "u32", "u32", "u32", "f32")


def forms() -> Iterator[Form]:
    """All of this module."""
    for part in (arithmetic, carries, fields, logic, comparisons, selections):
        yield from part()
