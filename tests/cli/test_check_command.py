"""`ptxgen check`: exit codes, what it prints, JSON and SARIF; arguments in words."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ptxgen.cli._main import invoke
from ptxgen.errors import SpecError
from ptxgen.runtime.tools.arguments import Argument, from_arrays
from tests.evidence.known_races.pair import pairs

RACE = pairs()["broadcast_without_barrier"]
LINES = ["--block", "64", "--arg", "u32[64]=0", "--seeds", "1"]
SUM_OF_FLOATS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry last(.param .u64 out) .reqntid 1
{
  .reg .b64 %a; .reg .b32 %c;
  ld.param.u64 %a, [out]; mov.u32 %c, %ctaid.x;
  atom.global.exch.b32 %c, [%a], %c;
  ret;
}
"""


@pytest.fixture
def ptx(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "k.ptx"
        path.write_text(text)
        return str(path)

    return write


def test_a_finding_is_shown_with_its_line_and_exits_1(ptx, capsys):
    file = ptx(RACE.source(True))
    assert invoke(["check", file, *LINES]) == 1
    out = capsys.readouterr().out
    assert f"{file}:{RACE.lines[0]}: ld.shared.u32" in out
    assert "CTA (0, 0, 0), warp" in out
    assert "byte 0 of s" in out
    assert "in: check" in out


def test_nothing_found_exits_0(ptx, capsys):
    assert invoke(["check", ptx(RACE.source(False)), *LINES]) == 0
    assert "nothing found" in capsys.readouterr().err


def test_results_that_depend_on_the_order_are_a_finding(ptx, capsys):
    file = ptx(SUM_OF_FLOATS)
    options = ["--grid", "8", "--arg", "u32[1]=0", "--seeds", "4"]
    assert invoke(["check", file, *options]) == 1
    assert "results differ in kernel last\n  element 0 is 7 or" in capsys.readouterr().out
    assert invoke(["check", file, *options, "--any-order"]) == 0


def test_json_and_sarif_have_the_parts_of_a_finding(ptx, capsys, tmp_path):
    text = RACE.source(True).replace(".address_size 64", '.address_size 64\n.file 1 "mine.py"', 1)
    text = text.replace("  ld.shared.u32 %x0, [s];", "  .loc 1 12 0\n  ld.shared.u32 %x0, [s];", 1)
    sarif = tmp_path / "found.sarif"
    file = ptx(text)
    assert invoke(["check", file, *LINES, "--json", "--sarif", str(sarif)]) == 1
    found = json.loads(capsys.readouterr().out)["findings"][0]
    assert (found["kind"], found["buffer"], found["runs"]) == ("race", "s", ["check"])
    assert found["spots"][0]["source"] == {"file": "mine.py", "line": 12}
    assert found["spots"][0]["cta"] == [0, 0, 0]
    result = json.loads(sarif.read_text())["runs"][0]["results"][0]
    places = [result["locations"][0], *result["relatedLocations"]]
    regions = [
        (p["physicalLocation"]["artifactLocation"]["uri"], p["physicalLocation"]["region"]["startLine"]) for p in places
    ]
    assert regions == [("mine.py", 12), (file, RACE.lines[0] + 2)]
    assert result["level"] == "error"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--arg", "u32[64]=0"], "has no .reqntid; --block says"),
        (["--block", "64", "--arg", "u32[64]=x"], "must be TYPE=NUMBER"),
        (["--block", "64", "--arg", "q32[64]"], "the type must be one of"),
        (["--block", "64", "--arg", "u8[64]=300"], "uint8 has no value 300"),
        (["--block", "64"], "takes 1 argument (p0) (got 0): --arg gives the next one"),
        (["--block", "64", "--entry", "q", "--arg", "u32[64]"], "has no entry 'q'"),
        (["--block", "x"], "must be N, NxN or NxNxN"),
    ],
)
def test_misuse_is_one_sentence_and_exits_2(ptx, capsys, options, says):
    assert invoke(["check", ptx(RACE.source(True)), *options]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_arrays_of_a_file_are_arguments(ptx, capsys, tmp_path):
    np.savez(tmp_path / "args.npz", p0=np.zeros(64, np.uint32))
    file = ptx(RACE.source(False))
    assert invoke(["check", file, "--block", "64", "--seeds", "0", "--args", str(tmp_path / "args.npz")]) == 0
    np.savez(tmp_path / "args.npz", p0=np.zeros(64, np.uint32), p1=np.uint32(3))
    assert invoke(["check", file, "--block", "64", "--args", str(tmp_path / "args.npz")]) == 2
    assert "takes 1 argument (p0); the file has 2" in capsys.readouterr().err


def test_arguments_in_words():
    rng = np.random.default_rng(0)
    assert Argument.parse("u32=7").host(rng) == np.uint32(7)
    assert Argument.parse("s8=-0x10").host(rng) == np.int8(-16)
    assert Argument.parse("i32=-7").host(rng) == np.int32(-7)
    np.testing.assert_array_equal(Argument.parse("f16[2x3]=index").host(rng), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(Argument.parse("f32[4]=0.5").host(rng), np.full(4, 0.5, np.float32))
    assert Argument.parse("f32[9]").host(rng) is None
    assert Argument.parse("f32[9]=random").host(rng).std() > 0
    for wrong in ("u32", "u32=", "u32[0]", "u32=random", "u32[4]=1 2", "f32[1x]"):
        with pytest.raises(SpecError):
            Argument.parse(wrong)
    named = from_arrays({"b": np.zeros(2), "a": np.array(3)}, ["a", "b"])
    assert named[0] == 3
    assert named[1].shape == (2,)


BRANCHES = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p0) .reqntid 64
{
  .reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %a;
  ld.param.u64 %a, [p0];
  mov.u32 %r1, %tid.x;
  setp.gt.u32 %p1, %r1, 100;
  @%p1 bra far;
  setp.lt.u32 %p2, %r1, 5;
  @%p2 red.global.add.u32 [%a], 1;
  @!%p1 bar.sync 0;
  ret;
far:
  st.global.u32 [%a], 2;
  ret;
}
"""


def test_coverage_and_the_page_take_what_other_compilers_write(ptx, capsys, tmp_path):
    head = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n"
    body = "  .reg .b64 %a; .reg .b32 %r;\n  .global .align 4 .b32 g[4];\n  ld.param.u64 %a, [p];\n"
    body += "  ld.global.b32 { %r }, [ %a + 0 ];\n  st.global.u32 [g], %r;\n"
    file, page = ptx(head + body + "  vabsdiff4.u32.u32.u32.add %r, %r, %r, %r;\n  ret;\n}\n"), tmp_path / "page.html"
    given = ["--block", "32", "--arg", "u32[1]=7", "--seeds", "0", "--coverage", "--html", str(page)]
    assert invoke(["check", file, *given]) == 0
    assert "5 of 5 lines ran" in capsys.readouterr().err
    assert "vabsdiff4" in page.read_text()


def test_coverage_names_lines_and_ways_that_did_not_run(ptx, capsys):
    file = ptx(BRANCHES)
    assert invoke(["check", file, "--arg", "u32[1]=0", "--seeds", "0", "--coverage"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"{file}:10: never taken: @%p1 bra far;",
        f"{file}:13: never without its guard: @!%p1 bar.sync 0;",
        f"{file}:16: never reached: st.global.u32 [%a], 2;",
        f"{file}:17: never reached: ret;",
    ]
    assert "8 of 10 lines ran, 4 of 6 ways" in shown.err
    assert invoke(["check", file, "--arg", "u32[1]=0", "--seeds", "0", "--coverage", "--json"]) == 0
    counts = {one["line"]: one for one in json.loads(capsys.readouterr().out)["coverage"]["counts"]}
    assert (counts[12]["reached"], counts[12]["ran"]) == (64, 5)


def test_the_page_has_findings_counts_and_warps_over_barriers(ptx, tmp_path):
    page = tmp_path / "page.html"
    assert invoke(["check", ptx(pairs()["tile_overwritten_in_a_loop"].source(True)), *LINES, "--html", str(page)]) == 1
    html = page.read_text()
    assert html.count("<text") == 2, "two warps"
    assert html.count("waits at line") >= 6
    assert 'class="finding"' in html
    assert "race in kernel k" in html
    assert '<td class="n">192</td>' in html
    assert "://" not in html.replace("https://github.com/ORNL", ""), "one self-contained file"
