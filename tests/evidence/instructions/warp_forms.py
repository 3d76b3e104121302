"""Forms across lanes, on memory and on control flow: shuffles, votes, loads, stores, atomics, branches."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evidence.instructions.form import Form

WARPS = 128


def shuffles() -> Iterator[Form]:
    """shfl.sync with whole and divided warps, votes, match, redux, masks."""
    clamps_of = {"up": ("0x0", "0x1800"), "down": ("0x1f", "0x181f"), "bfly": ("0x1f", "0x1c1f", "0x0f0f"),
                 "idx": ("0x1f", "0x181f", "0x1807")}  # fmt: skip
    for mode, clamps in clamps_of.items():
        for clamp in clamps:
            text = f"shfl.sync.{mode}.b32 d0|d1, s0, s1, {clamp}, 0xffffffff;"
            yield Form(f"shfl.sync.{mode}.b32 {clamp}", text, ("b32", "lane"), ("b32", "pred"), threads=WARPS)
    for mode in ("all", "any", "uni"):
        text = f"setp.ne.u32 t0, s0, 0;\nvote.sync.{mode}.pred d0, t0, -1;\nvote.sync.{mode}.pred d1, !t0, -1;"
        yield Form(f"vote.sync.{mode}", text, ("few",), ("pred", "pred"), ("pred",), threads=WARPS)
    text = "setp.ne.u32 t0, s0, 0;\nvote.sync.ballot.b32 d0, t0, 0xffffffff;\nactivemask.b32 d1;"
    yield Form("vote.sync.ballot activemask", text, ("few",), ("b32", "b32"), ("pred",), threads=WARPS)
    for kind, t in (("few", "b32"), ("few64", "b64")):
        text = f"match.any.sync.{t} d0, s0, 0xffffffff;\nmatch.all.sync.{t} d1|d2, s0, 0xffffffff;"
        text += f"\nand.{t} t0, s0, 0;\nmatch.all.sync.{t} d3|d4, t0, 0xffffffff;"
        yield Form(f"match.{t}", text, (kind,), ("b32", "b32", "pred", "b32", "pred"), (t,), threads=WARPS)
    for op, types in (("add", ("u32", "s32")), ("min", ("u32", "s32")), ("max", ("u32", "s32")), ("and", ("b32",)),
                      ("or", ("b32",)), ("xor", ("b32",))):  # fmt: skip
        for t in types:
            yield Form(f"redux.sync.{op}.{t}", f"redux.sync.{op}.{t} d0, s0, 0xffffffff;", (t,), (t,), threads=WARPS)
    yield Form("elect.sync", "elect.sync d0|d1, 0xffffffff;", (), ("b32", "pred"), threads=WARPS)
    masks = "\n".join(f"mov.u32 d{n}, %lanemask_{w};" for n, w in enumerate(("eq", "le", "lt", "ge", "gt")))
    yield Form("lanemasks", masks + "\nmov.u32 d5, %laneid;", (), ("b32",) * 6, threads=WARPS)
    text = "setp.lt.u32 t0, s0, 1;\nbar.red.popc.u32 d0, 1, t0;\nbar.red.and.pred d1, 1, t0;\n"
    text += "bar.red.or.pred d2, 1, t0;"
    yield Form("bar.red", text, ("few",), ("u32", "pred", "pred"), ("pred",), threads=WARPS)
    half = "and.b32 t0, s0, 1;\nsetp.eq.u32 t1, t0, 0;\nmov.u32 t2, 0;\nmov.b32 d0, 0;\nmov.b32 d1, 0;\n"
    half += "vote.sync.ballot.b32 t3, t1, -1;\n@%t1 shfl.sync.bfly.b32 d0, s0, 0, 31, t3;\n"
    half += "@%t1 redux.sync.add.u32 d1, s0, t3;"
    yield Form("partial masks", half, ("b32",), ("b32", "u32"), ("b32", "pred", "b32", "b32"), threads=WARPS)


def memory() -> Iterator[Form]:
    """Loads and stores of every size and extension, vectors, spaces."""
    stores = "st.global.b64 [%mem], s0;\nst.global.b64 [%mem+8], s1;\n"
    for t, d in (("u8", "u32"), ("s8", "s32"), ("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64"),
                 ("u8", "u16"), ("s8", "s16"), ("s8", "s64"), ("b64", "b64"), ("f32", "f32"),
                 ("f64", "f64")):  # fmt: skip
        for more in ("", ".relaxed.gpu", ".volatile"):
            text = f"{stores}ld{more}.global.{t} d0, [%mem+8];"
            yield Form(f"ld{more}.global.{t} into {d}", text, ("b64", "b64"), (d,), threads=WARPS)
    for n, t in ((2, "b8"), (4, "b8"), (2, "b16"), (4, "b16"), (2, "b32"), (4, "b32"), (2, "b64")):
        wide = "b16" if t == "b8" else t
        out = ", ".join(f"d{i}" for i in range(n))
        text = f"{stores}ld.global.v{n}.{t} {{{out}}}, [%mem];\nst.global.v{n}.{t} [%mem], {{{out}}};\n"
        text += f"ld.global.b64 d{n}, [%mem];"
        yield Form(f"ld.v{n}.{t} st", text, ("b64", "b64"), (*[wide] * n, "b64"), threads=WARPS)
    for t in ("u8", "u16", "u32"):
        text = f"{stores}cvt.u32.u64 t0, s1;\nst.global.{t} [%mem+4], t0;\nld.global.b64 d0, [%mem];"
        yield Form(f"st.global.{t} narrows", text, ("b64", "b64"), ("b64",), ("u32",), threads=WARPS)
    text = "st.shared.b64 [%smem], s0;\ncvt.u64.u32 t0, %smem;\ncvta.shared.u64 t0, t0;\nld.b64 d0, [t0];\n"
    text += "st.b64 [t0+8], s1;\n"
    text += "ld.shared.s16 d1, [%smem+8];\nisspacep.shared d2, t0;\nisspacep.global d3, t0;\nisspacep.global d4, %mem;"
    yield Form("generic shared", text, ("b64", "b64"), ("b64", "s32", "pred", "pred", "pred"), ("b64",), threads=WARPS)
    text = ".local .align 8 .b8 frame[32];\nst.local.b64 [frame+8], s0;\nmov.u64 t0, frame;\ncvta.local.u64 t1, t0;\n"
    text += "ld.u32 d0, [t1+12];\nst.u16 [t1+10], 7;\nld.local.b64 d1, [frame+8];\nisspacep.local d2, t1;"
    yield Form("local", text, ("b64",), ("u32", "b64", "pred"), ("b64", "b64"), threads=WARPS)
    text = "mov.b64 d0, {s0, s1};\nmov.b64 {d1, d2}, d0;\nmov.b32 {d3, d4}, s0;\nmov.b32 d5, {d4, d3};"
    results = ("b64", "b32", "b32", "b16", "b16", "b32")
    yield Form("mov pack unpack", text, ("b32", "b32"), results, threads=WARPS)


ATOMS = {
    "add": ("u32", "s32", "u64", "f32", "f64"), "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"), "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"),
    "exch": ("b32", "b64"), "inc": ("u32",), "dec": ("u32",), "add.noftz": ("f16", "f16x2", "bf16", "bf16x2"),
}  # fmt: skip


def atomics() -> Iterator[Form]:
    """atom and red, each thread on memory of its own, in global and shared memory."""
    for space, place in (("global", "%mem"), ("shared", "%smem")):
        for op, types in ATOMS.items():
            for t in types:
                width = {"f16": 16, "bf16": 16}.get(t, 64 if t[-2:] == "64" else 32)
                before = f"st.{space}.b{width} [{place}], s0;\n"
                text = f"{before}atom.{space}.{op}.{t} d0, [{place}], s1;\nld.{space}.b{width} d1, [{place}];"
                yield Form(f"atom.{space}.{op}.{t}", text, (t, t), (t, t), threads=WARPS)
                if op != "exch":
                    text = f"{before}red.{space}.{op}.{t} [{place}], s1;\nld.{space}.b{width} d0, [{place}];"
                    yield Form(f"red.{space}.{op}.{t}", text, (t, t), (t,), threads=WARPS)
        for t in ("b16", "b32", "b64"):
            text = f"st.{space}.{t} [{place}], s0;\nsetp.eq.u32 t0, s2, 0;\nselp.{t} t1, s0, s1, t0;\n"
            text += f"atom.{space}.cas.{t} d0, [{place}], t1, s1;\nld.{space}.{t} d1, [{place}];"
            yield Form(f"atom.{space}.cas.{t}", text, (t, t, "bool"), (t, t), ("pred", t), threads=WARPS)
    text = "st.global.b64 [%mem], s0;\nst.global.b64 [%mem+8], s1;\natom.relaxed.gpu.global.add.u32 d0, [%mem+4], 5;\n"
    text += "atom.acq_rel.sys.global.exch.b64 d1, [%mem+8], s0;\natom.cta.add.u64 d2, [%mem], s1;\n"
    text += "ld.global.b64 d3, [%mem];"
    yield Form("atom scopes", text, ("b64", "b64"), ("u32", "b64", "b64", "b64"), threads=WARPS)
    for n, t in ((2, "f32"), (4, "f32")):
        values = ", ".join(f"s{i}" for i in range(n))
        clear = "".join(f"st.global.f32 [%mem+{4 * i}], s{n - 1 - i};\n" for i in range(n))
        text = f"{clear}red.global.add.v{n}.{t} [%mem], {{{values}}};\n"
        text += "".join(f"ld.global.f32 d{i}, [%mem+{4 * i}];\n" for i in range(n))
        yield Form(f"red.global.add.v{n}.{t}", text.strip(), ("f32",) * n, ("f32",) * n, threads=WARPS)


def control() -> Iterator[Form]:
    """brx.idx, a divergent loop, guards, special registers."""
    text = "rem.u32 t0, s0, 5;\nmov.u32 d0, s1;\nways: .branchtargets one, two, three, two, last;\nbrx.idx t0, ways;\n"
    text += "one: add.u32 d0, d0, 1;\ntwo: mul.lo.u32 d0, d0, 3;\nbra.uni last;\nthree: xor.b32 d0, d0, s0;\nlast:"
    yield Form("brx.idx", text, ("u32", "u32"), ("u32",), ("u32",), threads=WARPS)
    text = "and.b32 t0, s0, 15;\nmov.u32 d0, 0;\nmov.u32 t1, 0;\nloop: setp.ge.u32 t2, t1, t0;\n@%t2 bra end;\n"
    text += "add.u32 t1, t1, 1;\nmad.lo.u32 d0, d0, 3, t1;\nsetp.eq.u32 t2, t1, 9;\n@!%t2 bra loop;\n"
    text += "add.u32 d0, d0, s1;\n"
    text += "end: activemask.b32 t3;\npopc.b32 t3, t3;\nbar.warp.sync 0xffffffff;"
    yield Form("divergent loop", text, ("u32", "u32"), ("u32",), ("u32", "u32", "pred", "u32"), threads=WARPS)
    text = "mov.u32 d0, s0;\nsetp.lt.s32 t0, s0, 0;\n@%t0 neg.s32 d0, s0;\n@!%t0 sub.s32 d0, d0, s1;\n"
    text += "mov.u32 d1, %tid.x;\n"
    text += "mov.u32 d2, %ntid.x;\nmov.u32 d3, %nctaid.x;\nmov.u32 d4, %ctaid.y;"
    results = ("s32", "u32", "u32", "u32", "u32")
    yield Form("guards and specials", text, ("s32", "s32"), results, ("pred",), threads=WARPS)


def forms() -> Iterator[Form]:
    """All of this module."""
    for part in (shuffles, memory, atomics, control):
        yield from part()
