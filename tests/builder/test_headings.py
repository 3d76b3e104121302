"""Texts read as chapters: a comment where a fragment of several lines begins."""

from __future__ import annotations

import pytest

from ptxgen import generate
from ptxgen.builder import Builder
from ptxgen.builder.fragment import title
from ptxgen.generator import _generate
from ptxgen.kernels import IncrementalAttention
from ptxgen.targets import target
from tests.support.demo_kernel import TEMPLATE, Demo, demo_template


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
    assert "// load: Three times the value, by additions" in lines(spec=Demo(more=triple))


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
