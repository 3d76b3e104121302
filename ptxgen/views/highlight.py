"""PTX in colour: a Pygments lexer, and the table and listing that a notebook shows of a `Ptx`."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, ClassVar

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import RegexLexer, bygroups
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, Text

if TYPE_CHECKING:
    from ptxgen.views.generated_kernel import GeneratedKernel


class PtxLexer(RegexLexer):  # type: ignore[misc]
    """PTX ISA, "Syntax": directives, opcodes with their modifiers, registers, labels, literals."""

    name = "PTX"
    aliases: ClassVar[list[str]] = ["ptx"]
    filenames: ClassVar[list[str]] = ["*.ptx"]
    tokens: ClassVar[dict[str, list[object]]] = {
        "root": [
            (r"\s+", Text),
            (r"//.*?$", Comment.Single),
            (r"^(\s*)([$\w]+)(:)", bygroups(Text, Name.Label, Punctuation)),
            (r"@!?%[\w]+", Name.Decorator),
            (r"%[\w$]+(\.[xyzw])?", Name.Variable),
            (r"\$[\w$]+", Name.Label),
            (r"\.\w+", Keyword.Type),
            (r"0[fFdDxX][0-9a-fA-F]+U?|-?\d+U?", Number),
            (r"[a-zA-Z]\w*(\.[\w:]+)*", Keyword),
            (r"[\[\]{}(),;<>=+|-]", Punctuation),
            (r".", Operator),
        ]
    }


def as_html(text: str) -> str:
    """A PTX text as highlighted HTML, styles included."""
    return str(highlight(text, PtxLexer(), HtmlFormatter(noclasses=True)))


def ptx_as_html(ptx: GeneratedKernel) -> str:
    """What a notebook shows: spec, target, launch, and resources where there is an assembler; then the text."""
    from ptxgen.assembler import assemble
    from ptxgen.errors import AssembleError

    grid, block = (" x ".join(str(n) for n in size) for size in (ptx.launch.grid, ptx.launch.block))
    major, minor = ptx.requires.ptx
    rows = {
        "spec": repr(ptx.spec),
        "target": f"{ptx.target} (PTX ISA {major}.{minor} or newer)",
        "launch": f"grid {grid}, block {block}",
        "parameters": ", ".join(p.name for p in ptx.params),
    }
    try:
        used = assemble(ptx.text, ptx.target, name=ptx.entry).resources[ptx.entry]
    except AssembleError as missing:
        rows["resources"] = str(missing).splitlines()[0]
    else:
        rows["resources"] = (
            f"{used.registers} registers, {used.spill_stores + used.spill_loads} bytes spilled, "
            f"{used.shared + ptx.launch.shared} bytes of shared memory, {used.barriers} barriers"
        )
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    lines = len(ptx.text.splitlines())
    return f"<table>{cells}</table><details><summary>{lines} lines of PTX</summary>{as_html(ptx.text)}</details>"
