"""No text, however small, takes the machine's memory or minutes: a clear error with its line, or linear time."""

import io
import os
import re
import time
import zipfile

import numpy as np
import pytest

from ptxgen.checks import check
from ptxgen.errors import IsaError, ModuleLoadError, SpecError
from ptxgen.files.archive import read_arrays
from ptxgen.parser import parse
from ptxgen.parser.operand import evaluate
from ptxgen.runtime import open_device
from ptxgen.tuning import Table

MANY = "9" * 4999


def text(body="ret;", *, outside="", params="", target="sm_90a", version="8.6"):
    return (
        f".version {version}\n.target {target}\n.address_size 64\n{outside}\n.visible .entry k({params})\n"
        f"{{ .reg .b32 %r<4>;\n{body}\n}}\n"
    )


REFUSED = {
    "registers": (text(".reg .b32 %q<1000000000>; ret;"), r":7: .*at most 262,144 registers .*1,000,000,000"),
    "registers in parts": (
        text(".reg .b32 %a<200000>; .reg .b32 %b<200000>; ret;"),
        r":7: an entry with more than 262,144 registers",
    ),
    "many declarations of registers": (
        text("".join(f".reg .b32 %a{n}_<260000>;" for n in range(20)) + " ret;"),
        r":7: an entry with more than 262,144 registers .got 520,004",
    ),
    "vectors of registers": (
        text(".reg .v4 .b64 %q<262143>; ret;"),
        r":7: .*%q: at most 262,144 registers in one declaration .got 1,048,572",
    ),
    "local memory in parts": (
        text("".join(f".local .b8 l{n}[65536];" for n in range(9)) + " ret;"),
        r":7: an entry with more than 524,288",
    ),
    "basic blocks": (text("".join(f"L{n}:\n" for n in range(20_001)) + "ret;"), r"more than 20,000 blocks"),
    "a number of registers": (text(f".reg .b32 %q<{MANY}>; ret;"), r":7: %q: a number has at most 20 digits"),
    "local": (text(".local .b8 x[1000000000000]; ret;"), r":7: .*x: at most 524,288 bytes of .local"),
    "shared": (text(outside=".shared .b8 x[1000000000000];"), r":4: x: at most 1,048,576 bytes of .shared"),
    "const": (text(outside=".const .b8 x[1000000000000];"), r":4: x: at most 1,048,576 bytes of .const"),
    "global": (text(outside=".global .b8 x[1000000000000];"), r":4: x: at most .* bytes of .global"),
    "rows": (text(outside=".global .b8 x[100000][100000][100000] = {{{1}}};"), r":4: x: at most .* bytes of .global"),
    "a parameter": (text(params=".param .b8 a[1000000000000]"), r":5: .*a: at most 65,536 bytes of .param"),
    "parameters": (text(params=", ".join(f".param .u32 a{n}" for n in range(100_000))), r":5: .*32,764 bytes"),
    "parameters of 40,000 bytes": (text(params=", ".join(f".param .u64 a{n}" for n in range(5000))), r":5: .*40,000"),
    "alignment": (text(".local .align 1099511627776 .b8 x[4]; ret;"), r":7: .*.align must be a power of two"),
    "an odd alignment": (text(".local .align 24 .b8 x[4]; ret;"), r":7: .*.align must be a power of two"),
    "no alignment": (text(".local .align 0 .b8 x[4]; ret;"), r":7: .*.align: needs a number of bytes .got '0'"),
    "an alignment of less": (text(".local .align -4 .b8 x[4]; ret;"), r":7: .*.align: needs .* .got '-4'"),
    "an alignment of nothing": (text(".local .align;\nret;"), r":7: .*.align: needs a number of bytes"),
    "an address of nothing": (text("ld.global.u32 %r1, [];\nret;"), r":7: not an address: '\[\]'"),
    "values for no element": (text(outside=".global .b32 x[2] = {1, 2, 3};"), r":4: x: has 2 elements.*got 3"),
    "arguments for no parameter": (
        text(".param .b32 a; call f, (a, a); ret;", outside=".func f(.param .b32 a) { ret; }"),
        r":7: a call must give what the function declares: 1 values .got 2",
    ),
    "modifiers": (text("add" + ".u32" * 100_000 + " %r1, %r1, 1; ret;"), r":7: add\.u32\.u32"),
    "modifiers of a load": (
        text("ld" + ".volatile" * 20_000 + ".u32 %r1, [0]; ret;"),
        r":7: ld\.volatile.*at most 64 modifiers .got 20,001",
    ),
    "scopes without an end": (text("{" * 20_000), r":7: braces: at most 100 scopes nest"),
    "less than nothing": (text(".local .b8 x[-5]; ret;"), r":7: .*x: an array has 0 elements or more .got -5"),
    "no octal": (text("mov.u32 %r1, 08; ret;"), r":7: .*a number that begins with 0 has digits up to 7 .got 08"),
    "digits": (text(f"mov.u32 %r1, {MANY}; ret;"), r":7: .*a literal has 64 bits at most"),
    "a large expression": (text("mov.u32 %r1, " + "*".join(["9999999999"] * 9) + "; ret;"), r":7: .*more than 64 bits"),
    "a shift by less than nothing": (text("mov.u32 %r1, 1<<(0-1); ret;"), r":7: .*a shift by less than 0"),
    "brackets": (
        text(f"mov.u32 %r1, {'(' * 20000}1{')' * 20000}; ret;"),
        r":7: brackets: at most 100 nest .got 20,000",
    ),
    "scopes": (text("{" * 20000 + "}" * 20000), r":7: braces: at most 100 scopes nest"),
    "a target": (text(target="sm_" + MANY), r":2: .target: unknown architecture .got sm_9"),
    "a version": (text(version=MANY + ".0"), r".version: a number has at most 20 digits"),
    "half a character": (text("// \ud800\nret;"), r":7: .*is no character"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_beyond_all_bounds_is_refused_with_its_line(name):
    given, said = REFUSED[name]
    with pytest.raises((ModuleLoadError, IsaError), match=f"(?s){said}") as caught:
        open_device("cpu", threads=1).module(given)["k"]
    assert len(str(caught.value)) < 2000


def test_a_chain_of_functions_that_is_too_long_is_refused():
    links = [f".func f{n}() {{ call f{n - 1}, (); ret; }}" for n in range(1, 3000)]  # f2 is in line 6
    given = text("call f2999, (); ret;", outside="\n".join([".func f0() { ret; }", *links]))
    with pytest.raises(ModuleLoadError, match="in a chain of calls this long") as caught:
        open_device("cpu", threads=1).module(given)["k"]
    found = re.search(r"module:(\d+): a call of f(\d+),", str(caught.value))
    assert found is not None
    assert int(found[1]) == int(found[2]) + 5  # f n + 1 calls f n
    assert 2500 < int(found[2]) < 2980


def test_long_texts_take_linear_time():
    """Seconds where each was a minute."""
    assert evaluate("+".join(["1"] * 100_000)) == 100_000
    with pytest.raises(IsaError, match="and 4,800 more"):
        check(parse(text("mov.u32 %none, 1;\n" * 5000)))
    assert len(parse(text(params=", ".join(f".param .u32 a{n}" for n in range(8000)))).items[0].params) == 8000
    device = open_device("cpu", threads=1)
    device.module(text(outside=".global .b8 zeros[1000000000] = {1};"))["k"].launch(1, 1, [])


TARGETS = ", ".join(f"L{n}" for n in range(100))
LONG = {
    "instructions": text("add.u32 %r1, %r1, 1;\n" * 20_000 + "ret;"),
    "branches": text(".reg .pred %p; setp.eq.u32 %p, %r1, 0;\n"
                     + "".join(f"@%p bra L{n};\nadd.u32 %r1, %r1, 1;\nL{n}:\n" for n in range(2000)) + "ret;"),
    "targets of a branch": text(f"mov.u32 %r1, 0;\nT: .branchtargets {', '.join(['L'] * 10_000)};\n"
                                "brx.idx %r1, T;\nL: ret;"),
    "branches by a table": text("mov.u32 %r1, 99;\n"
                                + "".join(f"T{n}: .branchtargets {TARGETS};\nbrx.idx %r1, T{n};\n" for n in range(200))
                                + "".join(f"L{n}: add.u32 %r1, %r1, 1;\n" for n in range(100)) + "ret;"),
    "scopes": text("{ .reg .u32 %x; mov.u32 %x, 1; }\n" * 3000 + "ret;"),
    "functions": text(outside="\n".join(f".func f{n}() {{ ret; }}" for n in range(3000))),
    "names of memory": text(".reg .u64 %a;\n" + "".join(f"mov.u64 %a, s{n};\n" for n in range(5000)) + "ret;",
                            outside="\n".join(f".shared .b32 s{n};" for n in range(5000))),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_takes_seconds_at_most(name):
    """Minutes, or a lack of memory, where the time grew with the square of the length."""
    module = parse(LONG[name])
    check(module)
    open_device("cpu", threads=1).module(LONG[name])["k"].launch(1, 32, [])


WIDE = "vabsdiff4.u32.u32.u32.add %r1, %r2, %r3, %r1;\n"  # becomes some thirty instructions
LOADS = "ld.global.b32 %r1, [%a];\nmad.lo.u32 %r2, %r1, %r3, %r2;\n"


@pytest.mark.parametrize("line", [WIDE, LOADS])
def test_a_block_of_any_length_takes_time_in_proportion_in_check_mode(line):
    """CPU time of four times as much, which was sixteen times as long. LLVM alone takes eight times, and more beside
    other work on the machine: then once more."""
    device = open_device("cpu", mode="check", threads=1)

    def seconds(count):
        body = f".reg .b64 %a; mov.u64 %a, 0;\n{line * count}st.global.b32 [%a], %r2; ret;"
        start = time.process_time()
        assert device.module(text(body))["k"]
        return time.process_time() - start

    seconds(8)
    short = 400 if line is LOADS else 100
    assert any(seconds(4 * count) < 11 * max(seconds(count), 0.1) for count in (short, short + 1))


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 - 2 - 3", -4), ("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("1 ? 2 : 3", 2), ("-7 / 2", -3), ("-7 % 2", -1),
     ("1 << 63", 1 << 63), ("~0 & 0xff", 255), ("!3 || 4 && 0", 0), ("3 < 4 == 1", 1), ("017", 15)],
)  # fmt: skip
def test_expressions_are_cs(expression, value):
    assert evaluate(expression) == value


def test_a_small_archive_that_unpacks_to_gigabytes_is_refused(tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (300 << 20,)})
        for _ in range(300):
            member.write(bytes(1 << 20))
    path = tmp_path / "bomb.npz"
    path.write_bytes(packed.getvalue())
    assert path.stat().st_size < 1 << 20
    with pytest.raises(SpecError, match=r"unpack to 314,5.*at most 268,4"):
        read_arrays(path, "an archive")


def test_a_tuning_table_nested_without_end_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(SpecError, match="not JSON"):
        Table.read(path)


def test_what_a_record_says_does_not_reach_a_terminal_as_orders(capsys):
    from ptxgen.cli._output import table

    table(("buffer\x1b[2J",), [["q\x1b]0;owned\x07"], ["plain\u202e"]], "k, recorded on \x1b[31mred")
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\u202e" not in said
    assert r"q\x1b]0;owned\x07" in said


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_an_update_of_goldens_stays_below_its_root(tmp_path):
    from ptxgen.files.output import check_below

    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "sm_90a").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "file.ptx").symlink_to(tmp_path / "outside" / "file.ptx")
    for name in ("sm_90a/k/a.ptx", "file.ptx", "../outside/a.ptx"):
        with pytest.raises(SpecError, match="must lie below"):
            check_below(tmp_path / "root", [name])
    check_below(tmp_path / "root", ["new/folder/a.ptx", "b.ptx"])
