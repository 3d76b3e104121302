"""Texts read as chapters: a comment where a fragment of several lines begins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ptxgen import generate
from ptxgen.builder import Builder
from ptxgen.builder.fragment import title
from ptxgen.errors import IsaError
from ptxgen.generator import _generate
from ptxgen.kernels import IncrementalAttention
from ptxgen.lines.words import counted
from ptxgen.targets import target
from tests.support.demo_kernel import TEMPLATE, Demo, demo_template

UNBROKEN = 130  # instructions under one heading, at most
GOLDENS = Path(__file__).resolve().parents[2] / "golden_ptx"


def lines(template: str = TEMPLATE, spec: Demo | None = None) -> list[str]:
    with demo_template(template):
        return [line.strip() for line in _generate(spec or Demo(), target("sm_90")).text.splitlines()]


def triple(b: Builder) -> None:
    """Three times the value, by additions; see the source of `triple`.

    What stands here is no title.
    """
    value = b.registers["value"]
    twice = b.op("add.f32", "twice", value, value)
    for _ in range(8):
        b.op("add.f32", value, value, twice)


def test_a_fragment_begins_with_its_name() -> None:
    text = lines()
    assert text[text.index("// load") + 1].startswith("ld.param")
    assert text[text.index("// load") - 1].startswith("@!%inside bra")


def test_and_with_what_most_of_its_lines_do() -> None:
    assert "// load: three times the value, by additions" in lines(spec=Demo(more=triple))


def test_short_fragments_have_no_heading() -> None:
    assert not [line for line in lines() if line.startswith(("// locate", "// store"))]


def test_where_the_template_has_a_comment_there_is_no_second_one() -> None:
    assert "// load" not in lines(TEMPLATE.replace("{{ load }}", "    // x is read here\n{{ load }}"))


def test_where_the_fragment_begins_with_a_note_there_is_no_second_one() -> None:
    def build(b: Builder) -> None:
        with b.fragment("noted"):
            b.note("a note of its own")
            for i in range(8):
                b.op("mov.u32", f"r{i}", i)

    b = Builder(Demo(), target("sm_90"))
    build(b)
    assert b.fragments["noted"].heading() == ""


def built(*arguments: str) -> str:
    """The heading of a fragment that is opened so, and that a helper fills."""
    b = Builder(Demo(), target("sm_90"))
    b.reg("value", "f32")
    with b.fragment(*arguments) as fragment:
        triple(b)
    return fragment.heading()


def test_what_the_author_says_wins_over_the_docstring() -> None:
    assert built("sum") == "    // sum: three times the value, by additions"
    assert built("sum", "add up a pass") == "    // sum: add up a pass"


def test_what_the_author_says_heads_a_short_fragment_too() -> None:
    b = Builder(Demo(), target("sm_90"))
    with b.fragment("one", "the only one") as one:
        b.op("mov.u32", "number", 1)
    with b.fragment("none", "nothing at all") as none:
        pass
    assert one.heading() == "    // one: the only one"
    assert none.heading() == ""


def test_a_heading_says_the_name_once() -> None:
    assert built("load", "load a pass of the row") == "    // load a pass of the row"


@pytest.mark.parametrize("what", ["two\nlines", "größer"])
def test_what_the_author_says_is_one_line_of_ascii(what: str) -> None:
    with pytest.raises(IsaError, match=r"fragment 'sum': what it does must be one line of ASCII \(got "):
        built("sum", what)


def test_the_author_of_our_fragments_says_it_of_all_that_begin_with_no_note() -> None:
    bare = re.compile(r"    // [a-z]\w*$")
    found = {path.name: [*filter(bare.match, path.read_text().splitlines())] for path in GOLDENS.rglob("*.ptx")}
    assert found
    assert {name: said for name, said in found.items() if said} == {}


def unbroken(text: str) -> int:
    """The most instructions in a row without a comment or a label between them."""
    longest = run = 0
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//") or line.endswith(":"):
            run = 0
        elif line.endswith(";") and not line.startswith("."):
            run += 1
            longest = max(longest, run)
    return longest


def test_no_golden_has_a_long_run_under_one_heading() -> None:
    runs = {path.relative_to(GOLDENS).as_posix(): unbroken(path.read_text()) for path in GOLDENS.rglob("*.ptx")}
    assert {name: run for name, run in runs.items() if run > UNBROKEN} == {}
    assert sum(run > UNBROKEN // 2 for run in runs.values()) < len(runs) // 5


def test_a_note_after_so_many_lines_waits_for_them() -> None:
    b = Builder(Demo(), target("sm_90"))
    with b.fragment("long") as long:
        for i in range(9):
            b.note(f"from {i} on", after=4)
            b.op("mov.u32", f"r{i}", i)
    assert [line.strip() for line in long.lines if "//" in line] == ["// from 4 on", "// from 8 on"]


@pytest.mark.parametrize(("number", "words", "shown"), [
    (1, ("pass", "passes"), "1 pass"), (3, ("pass", "passes"), "3 passes"), (1, ("CTA",), "1 CTA"),
    (0, ("CTA",), "0 CTAs"), (2, ("KV head",), "2 KV heads"),
])  # fmt: skip
def test_numbers_stand_before_one_or_many(number: int, words: tuple[str, ...], shown: str) -> None:
    assert counted(number, *words) == shown


def described(doc: str | None) -> str:
    namespace: dict[str, object] = {}
    exec(
        f"def helper(b):\n    {doc!r}\n    return 'no docstring'" if doc is not None else "def helper(b): return 'x'",
        namespace,
    )
    return title(namespace["helper"].__code__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("doc", "shown"),
    [
        (None, ""),
        ("The row of a position.", "The row of a position"),
        ("Add weights · V to `out`; later.", "Add weights * V to out"),
        ("Scores of keys 16·s … 16·s+15: all.", "Scores of keys 16*s ... 16*s+15"),
        ("Two lines\n    of one sentence. And another.\n\n    More.", "Two lines of one sentence"),
        ("Größe.", ""),
        ("Fragment `out`: the rows.", ""),
        (f"First, {'and ' * 30}last.", "First"),
        ("word " * 30, ""),
    ],
)
def test_a_title_is_a_short_clause_of_plain_ascii(doc: str | None, shown: str) -> None:
    assert described(doc) == shown


def test_a_production_text_has_chapters() -> None:
    text = generate(IncrementalAttention(4096, 128, 32, 8, "f16", "f16"), "sm_90").text.splitlines()
    comments = [i for i, line in enumerate(text) if line.startswith("    // ")]
    code = [i for i, line in enumerate(text) if line.startswith("    ") and line.endswith(";")]
    assert len(code) > 1000
    assert len(comments) > 30
    assert not [line for line in text if line.startswith("    // ") and len(line) > 124]


def test_the_records_of_a_batch_have_one_heading() -> None:
    text = generate(IncrementalAttention(4096, 128, 32, 8, "f16", "f16"), "sm_90").text
    assert text.count("// records 0 to 15 of the batch") == 3  # read, checked, merged
    assert not re.findall(r"// record \d", text)
