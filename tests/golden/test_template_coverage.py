"""Every arm of every skeleton is in a golden, or in the outline of a large shape: no text changes unseen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from ptxgen import generator, render
from ptxgen.generator import _generate
from ptxgen.golden import Goldens
from tests.tools.outlines import FOLDER, Outline, outlines

GOLDENS = Path(__file__).resolve().parents[2] / "golden_ptx"


class Marking(Environment):
    """Jinja that notes which arms of conditions, bodies of loops and macros were rendered, as `file:line: what`.

    `arms` are all of those in the templates loaded so far, `seen` the rendered ones. An `if` without `else` has a
    second arm all the same: the text without what it holds.
    """

    arms: set[str]
    seen: set[str]
    files: set[str]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self.files.add(str(name))
        chained = [other for node in tree.find_all(nodes.If) for other in node.elif_]
        for node in list(tree.find_all((nodes.If, nodes.For, nodes.Macro))):
            for line, what, body in _bodies(node, is_elif=node in chained):
                body.insert(0, nodes.Output([self._marked(f"{name}:{line}: {what}", nodes.Const(""))]))
        for choice in list(tree.find_all(nodes.CondExpr)):
            where = f"{name}:{choice.lineno}: {{{{ … {_test(choice.test)} }}}}"
            choice.expr1 = self._marked(where, choice.expr1)
            choice.expr2 = self._marked(f"{where} else", choice.expr2 or nodes.Const(""))
        return tree

    def _marked(self, arm: str, value: nodes.Expr) -> nodes.Expr:
        self.arms.add(arm)
        return nodes.Call(nodes.Name("seen", "load"), [nodes.Const(arm), value], [], None, None)

    def note(self, arm: str, value: object) -> object:
        """What the marks call: `value`, noted."""
        self.seen.add(arm)
        return value


def _bodies(node: nodes.Node, *, is_elif: bool) -> Iterator[tuple[int, str, list[nodes.Node]]]:
    if isinstance(node, nodes.Macro):
        yield node.lineno, f"macro {node.name}", node.body
    elif isinstance(node, nodes.For):
        yield node.lineno, "for", node.body
    elif isinstance(node, nodes.If):
        what = f"if {_test(node.test)}"
        yield node.lineno, what, node.body
        if not is_elif:  # the first of a chain has the `else` of all
            yield node.lineno, f"{what}, else", node.else_


def _test(test: nodes.Node) -> str:
    """The names in a condition: enough to find it on its line."""
    if isinstance(test, nodes.Getattr):
        return f"{_test(test.node)}.{test.attr}"
    return test.name if isinstance(test, nodes.Name) else " ".join(filter(None, map(_test, test.iter_child_nodes())))


@pytest.fixture(scope="module")
def marking() -> Marking:
    """The project's environment, with marks, as it is after every golden and every outline."""
    plain = render.environment()
    options = ("loader", "undefined", "trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape", "finalize")
    env = Marking(**{name: getattr(plain, name) for name in options})
    env.arms, env.seen, env.files = set(), set(), set()
    env.filters |= plain.filters
    env.globals |= plain.globals | {"seen": env.note}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "environment", lambda: env)
        patch.setattr(generator, "check", lambda *_, **__: None)  # goldens, which texts equal, are checked elsewhere
        for case in Goldens(GOLDENS).cases():
            text = (GOLDENS / case.file).read_text(encoding="utf-8")
            assert _generate(case.spec, case.target).text == text, f"{case.file}: marks change the text"
        for outline in outlines():
            outline.text()
    return env


def test_every_skeleton_is_used(marking: Marking) -> None:
    files = {path.relative_to(render.TEMPLATES).as_posix() for path in render.TEMPLATES.rglob("*.ptx.j2")}
    assert marking.files == files


def test_every_arm_is_in_a_golden_or_an_outline(marking: Marking) -> None:
    unseen = sorted(marking.arms - marking.seen)
    assert not unseen, "in no golden:\n" + "\n".join(unseen)


@pytest.mark.parametrize("outline", outlines(), ids=lambda outline: outline.name)
def test_outlines_are_what_is_rendered(outline: Outline) -> None:
    assert outline.text() == outline.path.read_text(encoding="utf-8"), "git diff after python -m tests.tools.outlines"


def test_no_outline_is_left_over() -> None:
    assert set(FOLDER.iterdir()) == {outline.path for outline in outlines()}
