"""Facts of the instruction table: forms, demands, the words that force them, what an unknown opcode is told."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from ptxgen import isa
from ptxgen.errors import IsaError
from ptxgen.isa import lookup, slot_accepts, special_register, storage_type, type_bits
from ptxgen.isa.pattern import match
from ptxgen.targets import target

DEMANDS = [
    ("add.f32", (6, 0), (), "add"),
    ("add.rn.f32x2", (8, 6), ("sm_100",), "add"),
    ("fma.rn.relu.bf16x2", (7, 0), ("sm_80",), "fma"),
    ("max.NaN.f32", (7, 0), ("sm_80",), ".NaN"),
    ("max.NaN.xorsign.abs.f32", (7, 2), ("sm_86",), ".xorsign"),
    ("tanh.approx.f32", (7, 0), ("sm_75",), "tanh"),
    ("ld.global.nc.v4.b32", (6, 0), (), "ld"),
    ("ld.global.nc.L1::no_allocate.v4.b32", (7, 4), (), ".L1::no_allocate"),
    ("ld.global.nc.L1::no_allocate.L2::256B.v4.b32", (7, 4), ("sm_80",), ".L2::256B"),
    ("ld.global.v8.b32", (8, 8), ("sm_100",), "ld"),
    ("ld.acquire.gpu.global.u32", (6, 0), (), "ld"),
    ("ld.acquire.cluster.shared::cluster.u32", (7, 8), ("sm_90",), ".cluster"),
    ("st.global.L2::cache_hint.f32", (7, 4), ("sm_80",), ".L2::cache_hint"),
    ("cp.async.cg.shared.global", (7, 0), ("sm_80",), "cp"),
    ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes", (8, 0), ("sm_90",), "cp"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (7, 0), ("sm_80",), "mma"),
    ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", (8, 4), ("sm_89",), "mma"),
    ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", (6, 5), ("sm_75",), "ldmatrix"),
    ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", (8, 0), ("sm_90a",), "wgmma"),
    ("mbarrier.try_wait.parity.shared::cta.b64", (7, 8), ("sm_90",), "mbarrier"),
    ("red.global.add.noftz.bf16x2", (7, 8), ("sm_90",), "red"),
    ("atom.global.add.v4.f32", (8, 1), ("sm_90",), "atom"),
    ("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32", (8, 1), ("sm_90",), "st"),
    ("griddepcontrol.wait", (7, 8), ("sm_90",), "griddepcontrol"),
    ("elect.sync", (8, 0), ("sm_90",), "elect"),
    ("redux.sync.add.u32", (7, 0), ("sm_80",), "redux"),
]


@pytest.mark.parametrize(("opcode", "ptx", "sm", "because"), DEMANDS)
def test_demands_and_the_word_that_forces_them(
    opcode: str, ptx: tuple[int, int], sm: tuple[str, ...], because: str
) -> None:
    form = lookup(opcode)
    assert (form.ptx, form.sm, form.because) == (ptx, sm, because)
    assert form.opcode == opcode
    assert form.name == opcode.partition(".")[0]
    assert ":" in form.section


def shown(opcode: str) -> list[str]:
    return [str(slot) for slot in lookup(opcode).operands]


def test_operands_of_common_forms() -> None:
    assert shown("add.f32") == [".f32 register", *[".f32 register or immediate"] * 2]
    assert shown("ld.global.v4.f32") == ["{4 × .f32}", "[global address]"]
    assert shown("st.shared.b32") == ["[shared address]", ".b32 register or immediate"]
    assert shown("bra.uni") == ["label"]
    mma = lookup("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32").operands
    assert [(s.type, s.vector, s.writes) for s in mma] == [
        ("f32", 4, True), ("b32", 4, False), ("b32", 2, False), ("f32", 4, False),
    ]  # fmt: skip
    wgmma = lookup("wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16")
    assert (wgmma.operands[0].vector, len(wgmma.operands)) == (48, 8)
    assert [len(each.operands) for each in wgmma.also] == [7]
    tensor = lookup("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group").operands[0]
    assert ("addr" in tensor.kinds, tensor.vector) == (True, 3)


def test_a_cache_hint_brings_its_policy_operand() -> None:
    assert len(lookup("ld.global.b32").operands) == 2
    hinted = lookup("ld.global.L2::cache_hint.b32").operands
    assert (len(hinted), hinted[2].type) == (3, "u64")


def test_operand_lists_are_chosen_by_count() -> None:
    bar = lookup("bar.sync")
    assert (bar.optional, len(bar.layout(1) or ()), len(bar.layout(2) or ())) == (1, 1, 2)
    assert bar.layout(3) is None
    red = lookup("bar.red.popc.u32")
    assert [slot.type for slot in red.layout(4) or ()] == ["u32", "u32", "u32", "pred"]
    three = lookup("max.f32").of_count(4)
    assert three is not None
    assert (three.ptx, three.sm) == ((8, 8), ("sm_100",))


def test_fp8_conversion_came_earlier_to_sm_90() -> None:
    form = lookup("cvt.rn.satfinite.e4m3x2.f32")
    assert (form.ptx, form.sm) == ((8, 1), ("sm_89",))
    assert [form.ptx_on(target(t)) for t in ("sm_89", "sm_90", "sm_90a", "sm_120")] == [(8, 1), (7, 8), (7, 8), (7, 8)]


@pytest.mark.parametrize(("slot_of", "register", "fits"), [
    (("add.s32", 1), "u32", True), (("add.s32", 1), "b32", True), (("add.s32", 1), "f32", False),
    (("add.s32", 1), "s64", False), (("add.f32", 1), "b32", True), (("add.f32", 1), "s32", False),
    (("and.b32", 1), "f32", True), (("and.b32", 1), "pred", False), (("add.f16", 1), "b16", True),
    (("add.f16", 1), "u16", False), (("add.f16x2", 1), "b32", True), (("add.f16x2", 1), "f16x2", True),
    (("add.bf16x2", 1), "b32", True), (("add.bf16x2", 1), "u32", False), (("ld.global.u8", 0), "u32", True),
    (("ld.global.u8", 0), "f32", False), (("ld.global.b8", 0), "f32", True), (("ld.global.f32", 0), "f64", False),
    (("ld.global.b64", 0), "b32", False), (("setp.lt.s32", 0), "pred", True), (("ld.global.b32", 1), "u32", False),
    (("ld.global.b32", 1), "u64", True), (("ld.shared.b32", 1), "u32", True), (("ld.shared.b32", 1), "f32", False),
])  # fmt: skip
def test_register_types_by_the_rules_of_the_document(slot_of: tuple[str, int], register: str, fits: bool) -> None:
    opcode, index = slot_of
    assert slot_accepts(lookup(opcode).operands[index], register) is fits


def test_packed_types_live_in_untyped_registers() -> None:
    types = ("bf16", "bf16x2", "e4m3x2", "f16x2", "f32")
    assert [storage_type(t) for t in types] == ["b16", "b32", "b16", "f16x2", "f32"]
    assert [type_bits(t) for t in ("pred", "u8", "f32x2", "b128", "e2m1x2")] == [1, 8, 64, 128, 8]


UNKNOWN = {
    "shufl.sync.bfly.b32": "unknown opcode 'shufl'; nearest: shfl",
    "ld.global.nc.v3.b32": "modifier .v3 is unknown or misplaced; nearest: ld.global.nc.v2.b32, ld.global.nc.v4",
    "shfl.bfly.b32": "modifier .bfly is unknown or misplaced; nearest: shfl.sync.bfly.b32",
    "add.f31": "nearest: add.f32, add.f16",
    "ld.global": "a modifier is missing; nearest: ld.global.b8, ",
    "mma.sync.aligned.m16n8k17.row.col.f32.f16.f16.f32": "modifier .m16n8k17: with the other modifiers the shape "
    "must be m8n8k4 or m16n8k8 or m16n8k16",
    "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32": "the shape must be m8n8k4; after mma.sync.aligned.m16n8k16 "
    "the table knows .row.col.f16.f16.f16.f16, .row.col.f32.f16.f16.f32",
    "wgmma.mma_async.sync.m64n8k16.f32.f16.f16": "nearest: wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16",
    "ret.b32": "modifier .b32 is unknown or misplaced; nearest: ret.uni, ret",
    "mul.s32": "modifier .s32 is unknown or misplaced; nearest: mul.hi.s32, mul.lo.s32, mul.wide.s32",
    "cvt.f16.f32": "modifier .f32 is unknown or misplaced; nearest: cvt.rn.f16.f32, cvt.rz.f16.f32",
    "abs.foo.f32": "modifier .foo is unknown or misplaced; nearest: abs.ftz.f32, abs.f32",
    "mma.m16n8k16.f32": "modifier .m16n8k16 is unknown or misplaced; after mma the table knows .sync",
    "cvt.foo.bar": "after cvt the table knows, among others .",
    "exit.now": "modifier .now is unknown or misplaced; nearest: exit",
    "": "unknown opcode ''",
}


@pytest.mark.parametrize("opcode", UNKNOWN)
def test_an_unknown_form_is_told_what_is_near(opcode: str) -> None:
    with pytest.raises(IsaError) as error:
        lookup(opcode)
    assert str(error.value).startswith(f"{opcode}: ")
    assert UNKNOWN[opcode] in str(error.value)


LOOSE = ["ld.global.v4.L1::no_allocate.b32", "atom.add.acquire.gpu.u32", "atom.global.gpu.acq_rel.add.f32",
         "add.s32.sat", "cvt.satfinite.rn.e4m3x2.f32", "st.b32.global", "fma.f32.rn"]  # fmt: skip
STRICT = ["cvt.f32.rn.f16", "mbarrier.try_wait.shared::cta.parity.b64", "cp.async.shared.global.cg", "mul.s32.lo"]


def test_modifiers_that_compilers_write_in_other_orders_are_known() -> None:
    for opcode in LOOSE:
        assert lookup(opcode).opcode == opcode
    for opcode in STRICT:
        with pytest.raises(IsaError):
            lookup(opcode)


def test_the_index_of_families_names_every_row() -> None:
    for family, words in isa._FAMILIES.items():
        sections = import_module(f"ptxgen.isa.{family}").SECTIONS
        named = {row.pattern.split(" ")[0] for rows in sections.values() for row in rows}
        assert named == set(words.split()), family


def test_no_row_is_hidden_by_an_earlier_one() -> None:
    """Every row is the first to match at least one of the opcodes it spells."""
    from tests.support.isa_samples import samples

    hidden = []
    for name in isa.opcodes():
        known = isa.rows(name)
        first = {opcode: next(c for c in known if match(c, opcode.split(".")[1:])[0] is not None)
                 for compiled in known for opcode in samples(compiled)}  # fmt: skip
        hidden += [c.row.pattern for c in known if not any(first[opcode] is c for opcode in samples(c))]
    assert not hidden


def test_special_registers() -> None:
    found = special_register("%cluster_ctaid.x")
    assert found is not None
    assert (found.type, found.ptx, found.sm) == ("u32", (7, 8), ("sm_90",))
    assert special_register("%globaltimer").type == "u64"
    assert special_register("%tid") is None
    assert special_register("%r1") is None


def test_a_form_is_looked_up_once() -> None:
    assert lookup("fma.rn.f32") is lookup("fma.rn.f32")


def test_importing_the_table_imports_no_family() -> None:
    script = (
        "import sys, ptxgen.isa as i; before = [m for m in sys.modules if m.startswith('ptxgen.isa.')];"
        "i.lookup('add.f32'); after = [m for m in sys.modules if m.startswith('ptxgen.isa.')];"
        "print(sorted(before), sorted(set(after) - set(before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = "['ptxgen.isa.form', 'ptxgen.isa.pattern', 'ptxgen.isa.registers'] ['ptxgen.isa.arith']"
    assert done.stdout.strip() == expected
