"""What the author of a template is told: his own line first, what is wrong, and the macro or the call that would do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ptxgen.builder import Builder
from ptxgen.errors import IsaError, PtxgenError, TemplateError
from ptxgen.generator import _generate
from ptxgen.idioms.row_kernel import RowKernel
from ptxgen.kernel import KernelType
from ptxgen.launch import Param
from ptxgen.targets import target
from tests.support.demo_kernel import demo_template

LOOP = '{% call loop("sum", more) %}\n{{ add_up }}\n{% endcall %}\n'
REDUCE = "{{ reduce(sum) }}\n"
TEMPLATE = f"""{{% extends "entry.ptx.j2" %}}
{{% from "flow.ptx.j2" import loop, reduce %}}
{{% block body %}}
{{{{ locate }}}}
{{{{ begin }}}}
{{{{ depends }}}}
{LOOP}{REDUCE}{{{{ store }}}}
{{% endblock %}}
"""


@dataclass(frozen=True)
class RowSums(RowKernel, KernelType):
    """Of rows that take several passes."""

    dim: int = 20000
    read: bool = False
    kernel_name = "row_sums"

    def params(self) -> tuple[Param, ...]:
        return self.row("x"), self.row("out", access="out", elements=1)

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        with b.fragment("begin"):
            total = b.op("mov.f32", "total", 0.0)
        with rows.each("add_up", more="more"):
            for value in rows.load("x"):
                b.op("add.f32", total, total, value)
        rows.reduce("sum", "add.f32", total)
        with b.fragment("store"):
            if self.read:
                b.op("selp.f32", total, 0.0, total, b.op("not.pred", "last", b.registers["more"]))
            b.op("st.global.f32", rows.base("out")[0], total)


def said(template: str, kind: type[PtxgenError] = TemplateError, **fields: bool) -> str:
    with demo_template(template, "row_sums"), pytest.raises(kind) as error:
        _generate(RowSums(**fields), target("sm_80"))
    return str(error.value).removeprefix("kernel row_sums (row_sums.ptx.j2): ")


def own_line(part: str) -> str:
    """The line of this file's `build`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"test_template_errors.py:{next(i for i, line in enumerate(lines, 1) if part in line)}"


def test_the_template_is_sound() -> None:
    with demo_template(TEMPLATE, "row_sums"):
        assert "@%more bra $sum;" in _generate(RowSums(), target("sm_80")).text


# -- what is not placed ------------------------------------------------------------------------------------------------


def test_parts_of_a_reduction_name_the_kernels_own_line_and_the_call_that_places_them() -> None:
    for template in (TEMPLATE.replace(REDUCE, ""), TEMPLATE.replace(REDUCE, "{{ sum_leave }}\n")):
        message = said(template)
        assert f"'sum_collect' (tests/builder/{own_line('rows.reduce(')} → ptxgen/idioms/reduce.py:" in message
        assert message.endswith("; place {{ reduce(sum) }}")


def test_a_pass_of_a_row_names_the_kernels_own_line_and_its_loop() -> None:
    message = said(TEMPLATE.replace(LOOP, ""))
    assert f"fragment 'add_up' (tests/builder/{own_line('rows.each(')} → ptxgen/idioms/row_kernel.py:" in message
    assert message.endswith('; place {{ add_up }} in {% call loop("add_up", more) %}')


# -- a pass of a row outside of its loop -------------------------------------------------------------------------------


def test_a_pass_without_its_loop_is_refused() -> None:
    bare = TEMPLATE.replace(LOOP, "{{ add_up }}\n")
    message = said(bare, IsaError)
    assert own_line("rows.each(") in message
    assert "no loop around it asks %more, so there is one turn; place {{ add_up }} in {% call loop(" in message
    assert message.endswith("| setp.lt.u32 %more, %pass_first, 20000;")


def test_a_branch_forward_is_no_loop() -> None:
    once = '{% call when(more, "once") %}\n    // once\n{% endcall %}\n'
    bare = TEMPLATE.replace(LOOP, "{{ add_up }}\n" + once).replace("import loop", "import when")
    assert "no loop around it asks %more" in said(bare, IsaError)


def test_a_loop_around_something_else_is_not_enough() -> None:
    other = '{{ add_up }}\n{% call loop("sum", more) %}\n    // nothing\n{% endcall %}\n'
    assert "no loop around it asks %more" in said(TEMPLATE.replace(LOOP, other), IsaError)


def test_a_predicate_that_an_instruction_reads_may_do_without() -> None:
    with demo_template(TEMPLATE.replace(LOOP, "{{ add_up }}\n"), "row_sums"):
        assert "bra" not in _generate(RowSums(read=True), target("sm_80")).text


def test_one_pass_has_no_loop_to_miss() -> None:
    with demo_template(TEMPLATE.replace(LOOP, "{{ add_up }}\n"), "row_sums"):
        assert "%more" not in _generate(RowSums(dim=256), target("sm_80")).text


# -- macros ------------------------------------------------------------------------------------------------------------

MISTAKES = {
    "a misspelt import": (
        TEMPLATE.replace("loop, reduce", "loop, redcue"),
        "row_sums.ptx.j2:2: 'redcue' is no macro of flow.ptx.j2; nearest macro: reduce",
    ),
    "both misspelt": (
        TEMPLATE.replace("reduce", "redcue"),
        "row_sums.ptx.j2:2: 'redcue' is no macro of flow.ptx.j2; nearest macro: reduce",
    ),
    "a misspelt call": (
        TEMPLATE.replace("call loop", "call lop"),
        "row_sums.ptx.j2:7: 'lop' is undefined; nearest macro: loop",
    ),
    "misspelt and not imported": (
        TEMPLATE.replace("loop, reduce", "loop").replace("reduce(", "redcue("),
        "row_sums.ptx.j2:10: 'redcue' is undefined; nearest macro: reduce; "
        'import it: {% from "flow.ptx.j2" import reduce %}',
    ),
    "a call of nothing like it": (
        TEMPLATE.replace("{{ reduce(sum) }}", "{{ quux(sum) }}"),
        "row_sums.ptx.j2:10: 'quux' is undefined; flow.ptx.j2 has arrival, barrier, barrier_of,",
    ),
    "no block": (
        TEMPLATE.replace(LOOP, '{{ loop("sum", more) }}\n{{ add_up }}\n'),
        "the macro loop needs a block: {% call loop(name, again, enter=none) %} … {% endcall %}",
    ),
    "a block too many": (
        TEMPLATE.replace(REDUCE, "{% call reduce(sum) %}\n{% endcall %}\n"),
        "row_sums.ptx.j2:10: the macro reduce takes no block: {{ reduce(parts) }}",
    ),
    "a fragment in a reduction's place": (
        TEMPLATE.replace("reduce(sum)", "reduce(add_up)"),
        "reduce takes a Reduction (got Fragment 'add_up'); place {{ reduce(sum) }}",
    ),
    "an argument missing": (
        TEMPLATE.replace('"sum", more', '"sum"'),
        "parameter 'again' was not provided; it is loop(name, again, enter=none)",
    ),
    "an argument of another name": (
        TEMPLATE.replace('"sum", more', '"sum", more=more'),
        "macro 'loop' takes no keyword argument 'more'; it is loop(name, again, enter=none)",
    ),
    "a misspelt fragment in a block": (
        TEMPLATE.replace("{{ add_up }}", "{{ add_uq }}"),
        "row_sums.ptx.j2:8: 'add_uq' is undefined; nearest: add_up",
    ),
    "no extends": (
        TEMPLATE.partition("\n")[2],
        'row_sums.ptx.j2:1: makes no entry; it begins with {% extends "entry.ptx.j2" %}',
    ),
    "a misspelt parent": (
        TEMPLATE.replace("entry.ptx", "entri.ptx"),
        "row_sums.ptx.j2:1: template entri.ptx.j2 does not exist",
    ),
    "a misspelt file of macros": (TEMPLATE.replace("flow.ptx", "flo.ptx"), "nearest: flow.ptx.j2"),
    "a misspelt block": (
        TEMPLATE.replace("block body", "block bdy"),
        "Required block 'body' not found: {% block body %} … {% endblock %} around what the entry does",
    ),
    "a body that build() does not open": (
        TEMPLATE.replace(REDUCE, REDUCE + '{{ body_of("rope.ptx.j2", "qk") }}\n'),
        "row_sums.ptx.j2:11: body_of: a body that build() opens (got 'qk'; there are none)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_template(mistake: str) -> None:
    template, words = MISTAKES[mistake]
    message = said(template)
    assert message.startswith(words) if words.startswith("row_sums") else words in message, message
    assert message.startswith("row_sums.ptx.j2:")
