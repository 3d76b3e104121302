"""Requirements come from the text, line by line; a driver and a GPU are judged offline."""

from __future__ import annotations

import re

import pytest

from ptxgen.errors import IsaError, SpecError
from ptxgen.generator import generate
from ptxgen.kernel import supports
from ptxgen.nodes.sizes import parameter_bytes
from ptxgen.parser import parse
from ptxgen.requires import explain_load, lowest_version, requirements, spare_suffix
from ptxgen.targets import target
from tests.support.kernels import NAMES, TYPES, usual_target

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n"


def needs(body: str, head: str = HEAD) -> tuple[tuple[int, int], tuple[str, ...], tuple[tuple[int, str, str], ...]]:
    """Of the instructions and directives alone, without what the `.target` line adds."""
    found = requirements(parse(f"{head}{body}\nret;\n}}\n"))
    return found.code_ptx, found.sm, tuple(each for each in found.because if not each[1].startswith(".target"))


def test_plain_text_needs_the_oldest_version_and_any_target() -> None:
    assert needs("add.f32 %f1, %f2, %f3;\nbar.sync 0;") == ((6, 0), (), ())


def test_the_lines_that_force_are_named_and_others_are_not() -> None:
    ptx, sm, because = needs(
        "activemask.b32 %r1;\nmbarrier.init.shared.b64 [%r1], 1;\nmovmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;\n"
        "cp.async.bulk.commit_group;\ncp.async.bulk.commit_group;"
    )
    assert (ptx, sm) == ((8, 0), ("sm_90",))
    assert because == (
        (9, "mbarrier.try_wait.parity.shared::cta.b64", "PTX ISA 7.8, sm_90"),
        (10, "cp.async.bulk.commit_group", "PTX ISA 8.0, sm_90"),
    )


def test_demands_of_a_feature_of_one_architecture_win() -> None:
    assert needs("setmaxnreg.inc.sync.aligned.u32 64;\nwgmma.fence.sync.aligned;")[1] == ("sm_90a",)
    assert needs("setmaxnreg.inc.sync.aligned.u32 64;")[1] == ("sm_90a", "sm_100f", "sm_110f", "sm_120f")


@pytest.mark.parametrize(("body", "word", "ptx", "sm"), [
    ("mov.u32 %r1, %cluster_ctarank;", "%cluster_ctarank", (7, 8), ("sm_90",)),
    ("mov.b64 {%r1, %r2}, %current_graph_exec;", "%current_graph_exec", (8, 0), ()),
    ("ld.global.b32 %r1, [%rd1].unified;", ".unified", (8, 0), ("sm_90",)),
    (".reg .b128 %q;", ".b128", (8, 3), ()),
    ('.pragma "used_bytes_mask 0xff";', '.pragma "used_bytes_mask"', (8, 3), ()),
    ("{ { redux.sync.add.u32 %r1, %r2, -1; } }", "redux.sync.add.u32", (7, 0), ("sm_80",)),
    ("max.f32 %f1, %f2, %f3, %f4;", "max.f32", (8, 8), ("sm_100",)),
    ("cp.async.cg.shared.global [%r1], [%rd1], 16, 8;", "cp.async.cg.shared.global", (7, 0), ("sm_80",)),
    (".reg .pred %p<2>;\ncp.async.cg.shared.global [%r1], [%rd1], 16, %p1;", "cp.async.cg.shared.global", (7, 5),
     ("sm_80",)),
    ("mbarrier.arrive.shared.b64 %rd1, [%r1];", "mbarrier.arrive.shared.b64", (7, 0), ("sm_80",)),
    ("mbarrier.arrive.shared.b64 _, [%r1];", "mbarrier.arrive.shared.b64", (7, 1), ("sm_80",)),
])  # fmt: skip
def test_registers_operands_and_directives_have_demands_too(
    body: str, word: str, ptx: tuple[int, int], sm: tuple[str, ...]
) -> None:
    found = needs(body)
    assert found[:2] == (ptx, sm)
    assert [line[1] for line in found[2]] == [word]


@pytest.mark.parametrize(("head", "ptx", "sm"), [
    (".visible .entry k()\n.reqnctapercluster 2, 1, 1\n{", (7, 8), ("sm_90",)),
    (".visible .entry k(.param .b8 a[4096], .param .u64 b[33])\n{", (8, 1), ()),
    (".visible .entry k(.param .b8 a[4096], .param .u64 b[32])\n{", (6, 0), ()),
    (".func k() .noreturn\n{", (6, 4), ()),
    (".visible .entry k()\n.maxntid 64, 1, 1\n{", (6, 0), ()),
])  # fmt: skip
def test_a_functions_head_has_demands(head: str, ptx: tuple[int, int], sm: tuple[str, ...]) -> None:
    assert needs("", f".version 9.0\n.target sm_90\n.address_size 64\n{head}\n")[:2] == (ptx, sm)


def test_the_alias_directive_needs_6_3() -> None:
    module = parse(".version 9.0\n.target sm_90\n.func f() { ret; }\n.func g();\n.alias g, f;")
    assert requirements(module).because == ((2, ".target sm_90", "PTX ISA 7.8"), (5, ".alias", "PTX ISA 6.3"))


def test_parameters_are_aligned() -> None:
    parameters = ".param .u8 a, .param .u64 b, .param .align 64 .b8 c[3]"
    module = parse(f".version 9.0\n.target sm_90\n.entry k({parameters}) {{ ret; }}")
    assert parameter_bytes(module.entries["k"].params) == 67


def test_lowest_version_minds_the_target_and_the_text() -> None:
    plain = parse(f"{HEAD}ret;\n}}\n")
    conversion = parse(f"{HEAD}cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;\n}}\n")
    targets = [target(name) for name in ("sm_75", "sm_89", "sm_90", "sm_90a", "sm_120")]
    assert [lowest_version(plain, t) for t in targets] == [(6, 3), (7, 8), (7, 8), (8, 0), (8, 7)]
    assert [lowest_version(conversion, t) for t in targets[1:]] == [(8, 1), (7, 8), (8, 0), (8, 7)]


def test_an_unknown_form_is_named_with_file_line_and_text() -> None:
    said = r"^kernel k, mine\.ptx:6: frob\.b32: unknown opcode 'frob'.* \| frob\.b32 %r1;$"
    with pytest.raises(IsaError, match=said):
        requirements(parse(f"{HEAD}frob.b32 %r1;\n}}\n", "mine.ptx"))


def test_a_text_in_place_of_a_module_is_refused_and_targets_may_be_names() -> None:
    module = parse(f"{HEAD}cp.async.commit_group;\n}}\n")
    assert requirements(module, "sm_120") == requirements(module, target("sm_120"))
    with pytest.raises(SpecError, match=r"requirements: must be a module, as parse makes it of a text \(got '\.v"):
        requirements(HEAD)
    with pytest.raises(SpecError, match=r"explain_load: must be a PTX text \(got None\)"):
        explain_load(None, 13000, (9, 0))


def test_every_unknown_form_is_a_line() -> None:
    with pytest.raises(IsaError) as error:
        requirements(parse(f"{HEAD}frob.b32 %r1;\nret;\nfrob.b32 %r1;\nblur.b32 %r1;\n}}\n", "mine.ptx"))
    assert re.findall(r"mine\.ptx:(\d+)", str(error.value)) == ["6", "8", "9"]


def test_requirements_read_as_a_sentence() -> None:
    assert str(requirements(parse(f"{HEAD}wgmma.fence.sync.aligned;\n}}\n"))) == "PTX ISA 8.0, sm_90a"
    alone = "PTX ISA 8.0; its instructions alone PTX ISA 6.0, any target"
    assert str(requirements(parse(f"{HEAD}ret;\n}}\n"))) == alone


def test_the_target_line_is_named_where_it_forces_the_version() -> None:
    needed = requirements(parse(f"// a comment\n{HEAD}cp.async.commit_group;\n}}\n"))
    assert (needed.ptx, needed.code_ptx, needed.sm) == ((8, 0), (7, 0), ("sm_80",))
    assert needed.because == ((3, ".target sm_90a", "PTX ISA 8.0"), (7, "cp.async.commit_group", "PTX ISA 7.0, sm_80"))
    copy = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2];"
    newer = requirements(parse(f"{HEAD}{copy}\n}}\n"))
    assert [line for line, *_ in newer.because] == [6]


def test_a_suffix_that_no_instruction_needs_is_said() -> None:
    def said(body: str, where: str) -> str | None:
        module = parse(f"{HEAD}{body}\n}}\n".replace("sm_90a", where))
        return spare_suffix(module, requirements(module))

    assert said("wgmma.fence.sync.aligned;", "sm_90a") is None
    assert said("cp.async.commit_group;", "sm_90") is None
    spare = said("cp.async.commit_group;", "sm_90a")
    assert spare is not None
    assert "needs the suffix of sm_90a, which runs on compute capability 9.0 alone; sm_90 would do" in spare
    family = said("ret;", "sm_120f")
    assert family is not None
    assert "12.0 and later 12.x" in family


@pytest.mark.parametrize("name", NAMES)
def test_every_version_of_a_manifest_has_a_line_that_forces_it(name: str) -> None:
    cls = TYPES[name]
    specs = [cls(**fields) for fields in cls.goldens]
    for where in ("sm_90", "sm_75", "sm_90a", "sm_120"):
        legal = [spec for spec in specs if supports(spec, where)]
        assert legal or where != usual_target(cls)
        if not legal:
            continue
        contract = generate(legal[0], where).manifest()
        version = contract["requires"]["ptx"]
        assert any(version in each["demand"] for each in contract["requires"]["because"]), (name, where, contract)


def ptx(version: str, where: str) -> str:
    return f"//\n// made by hand\n.version {version}\n.target {where}, debug\n.address_size 64\n"


LOADS = [("8.0", "sm_90a", 12000, (9, 0)), ("6.3", "sm_75", 13000, (12, 0)), ("8.8", "sm_100f", 12090, (10, 3)),
         ("9.0", "sm_80", 13030, (8, 6)), ("8.7", "sm_120", 13000, (12, 1)), ("6.0", "sm_70", 13000, (9, 0)),
         ("5.0", "sm_52", 13000, (9, 0))]  # fmt: skip


@pytest.mark.parametrize(("version", "where", "driver", "cc"), LOADS)
def test_what_loads(version: str, where: str, driver: int, cc: tuple[int, int]) -> None:
    verdict = explain_load(ptx(version, where), driver, cc)
    assert verdict
    assert verdict.ok
    assert not verdict.reasons
    assert verdict.text.startswith(f"loads: PTX {version} for {where}")


REFUSALS = [
    ("9.0", "sm_90", 12080, (9, 0),
     "PTX too new: this driver loads PTX ISA up to 8.7; driver 13.0 or newer is needed"),
    ("10.7", "sm_90", 13000, (9, 0), "no driver known to this version loads it"),
    ("8.0", "sm_90", 13000, (8, 9), "GPU too old: sm_90 code needs compute capability 9.0 or newer (got 8.9)"),
    ("8.0", "sm_90a", 13000, (10, 0),
     "suffix mismatch: sm_90a code runs on compute capability 9.0 alone (got 10.0); generate for sm_90 or sm_100a"),
    ("8.8", "sm_100f", 13000, (12, 0),
     "suffix mismatch: sm_100f code runs on compute capability 10.0 and later 10.x (got 12.0); "
     "generate for sm_100 or sm_120a"),
    ("8.0", "sm_90a", 13000, (8, 0), "GPU too old: sm_90a code needs compute capability 9.0"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "where", "driver", "cc", "reason"), REFUSALS)
def test_what_does_not_load_and_why(version: str, where: str, driver: int, cc: tuple[int, int], reason: str) -> None:
    verdict = explain_load(ptx(version, where), driver, cc)
    assert not verdict
    assert reason in verdict.text
    assert str(verdict) == verdict.text
    assert len(verdict.reasons) == 1


def test_every_reason_is_given() -> None:
    verdict = explain_load(ptx("9.0", "sm_120a"), 12000, (9, 0))
    assert [reason.split(":")[0] for reason in verdict.reasons] == ["PTX too new", "GPU too old"]


def test_a_text_without_header_cannot_be_judged() -> None:
    with pytest.raises(IsaError, match=r"begins with \.version and \.target"):
        explain_load("hello", 13000, (9, 0))
