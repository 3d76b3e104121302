"""Where the lines of a text come from, and that findings of every stage say it."""

from __future__ import annotations

import inspect
import pickle
import re
from linecache import getline
from pathlib import Path

import numpy as np
import pytest

from ptxgen import generate
from ptxgen.assembler import assemble
from ptxgen.builder import Builder
from ptxgen.checks import check
from ptxgen.errors import AssembleError, ExecutionError, IsaError, ModuleLoadError
from ptxgen.generator import Ptx, _generate
from ptxgen.golden import Goldens
from ptxgen.golden.case import Case
from ptxgen.kernels import KvCacheScatter, RmsNorm
from ptxgen.lines.sources import origin, quoted, remember
from ptxgen.parser import parse
from ptxgen.places import Origin, Place, shown_path
from ptxgen.runtime import open_device
from ptxgen.targets import target
from tests.support import demo_kernel
from tests.support.demo_kernel import TEMPLATE, Demo, demo_template
from tests.support.fake_cuda import fake_device
from tests.support.kernels import TYPES
from tests.support.marks import needs_assembler

ROOT = Path(__file__).resolve().parents[2]
SPEC = KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2)
EMITS = re.compile(r"\.(op|note|ld_param|fragment)\(")
PLACED = re.compile(r"\{\{.*\}\}|\{%.*%\}|[;:,(){}]|//|\.reqn|\.minn|\.version|\.target|\.address|^$")


def one_of_each() -> list[Case]:
    """The first golden of every kernel type on each of its targets."""
    cases = Goldens(ROOT / "golden_ptx").cases()
    return list({(case.spec.kernel_name, case.target): case for case in reversed(list(cases))}.values())


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def demo(template: str = TEMPLATE, spec: Demo | None = None) -> Ptx:
    with demo_template(template):
        return _generate(spec or Demo(), target("sm_90"))


# -- the map -----------------------------------------------------------------------------------------------------------


def test_there_is_a_golden_of_every_kernel_type() -> None:
    # Ours alone: an imported module may register more, such as a benchmark's traced step.
    assert {case.spec.kernel_name for case in one_of_each()} == TYPES.keys()


@pytest.mark.parametrize("case", one_of_each(), ids=lambda case: f"{case.spec.kernel_name}-{case.target}")
def test_every_line_of_a_golden_comes_from_a_line_of_a_template_and_of_python(case: Case) -> None:
    ptx = case.generate()
    lines = ptx.text.splitlines()
    assert ptx.source_map.lines == len(lines)
    for number, line in enumerate(lines, 1):
        source = ptx.source_map.at(number)
        assert source is not None
        assert source.template is not None, line
        placed = getline(source.template.file, source.template.line)
        assert PLACED.search(placed.rstrip("\n")), (line, source)
        if not source.fragment:
            assert source.code is None
            continue
        assert source.code is not None
        assert EMITS.search(getline(source.code.file, source.code.line)), (line, source)
        by = source.caller or source.code
        assert by.file == inspect.getsourcefile(type(case.spec).build), "the line of build"
        assert "(" in getline(by.file, by.line)


def test_a_line_of_the_skeleton_itself_is_its_line_in_the_template() -> None:
    """Comments stand in texts as they stand in templates."""
    ptx = generate(SPEC, "sm_90")
    source = ptx.source_map.at(line_of(ptx.text, "// the row is loaded before"))
    assert source is not None
    assert source.template is not None
    assert (
        getline(source.template.file, source.template.line).strip()
        == "// the row is loaded before its position is known"
    )
    assert source.template.file.endswith("templates/kv_cache_scatter.ptx.j2")


def test_lines_of_parents_includes_macros_and_call_blocks_keep_their_files() -> None:
    template = TEMPLATE.replace("{{ locate }}", '{{ locate }}\n{% include "part.ptx.j2" %}\n    // behind')
    with demo_template("    // of a part\n", "part"), demo_template(template):
        ptx = _generate(Demo(), target("sm_90"))

    def place(part: str) -> str:
        source = ptx.source_map.at(line_of(ptx.text, part))
        assert source is not None
        assert source.template is not None
        return f"{Path(source.template.file).name}:{source.template.line}"

    assert place(".visible") == f"entry.ptx.j2:{line_of((ROOT / 'templates/entry.ptx.j2').read_text(), '.visible')}"
    assert place("// of a part") == "part.ptx.j2:1"
    assert place("// behind") == f"demo.ptx.j2:{line_of(template, '// behind')}"
    assert place("@!%inside") == f"demo.ptx.j2:{line_of(template, '{% call when')}"
    assert place("st.global") == f"demo.ptx.j2:{line_of(template, '{{ store }}')}"


def flow_line(part: str) -> int:
    return line_of((ROOT / "templates/flow.ptx.j2").read_text(), part)


def test_lines_of_macros_keep_the_line_of_the_kernels_template_that_called_them() -> None:
    own = (ROOT / "templates/rms_norm.ptx.j2").read_text()
    ptx = generate(RmsNorm(20000), "sm_90")

    def places(part: str) -> tuple[str, str]:
        source = ptx.source_map.at(line_of(ptx.text, part))
        assert source is not None
        return str(source.template), str(source.macro)

    def expected(outer: str, inner: str) -> tuple[str, str]:
        return f"templates/rms_norm.ptx.j2:{line_of(own, outer)}", f"templates/flow.ptx.j2:{flow_line(inner)}"

    assert places("bar.sync") == expected("reduce(squares)", "bar.sync 0")
    assert places("shfl.sync") == expected("reduce(squares)", "parts.leave")
    again = flow_line("{% macro loop(") + 9
    for loop in ("squares", "outputs"):
        assert places(f"bra ${loop}") == (expected(f'loop("{loop}"', "")[0], f"templates/flow.ptx.j2:{again}")
    assert places("rsqrt")[1] == "None"
    assert places("%x_at+")[1] == "None", "what stands in a call's block is not called"


@pytest.mark.parametrize(("inside", "outer", "inner"), [
    ("{{ barrier() }}", "barrier()", "flow"),
    ("{% call when(inside, 'more') %}\n{{ barrier() }}\n{% endcall %}", "barrier()", "flow"),
    ("{% macro both() %}\n{{ barrier() }}\n{% endmacro %}\n{{ both() }}", "barrier()", "flow"),
    ("{{ twice() }}", "twice()", "shared"),
    ('{% call when(inside, "more") %}\n{% include "part.ptx.j2" %}\n{% endcall %}', None, "flow"),
    ("{% set kept %}\n{{ barrier() }}\n{% endset %}\n{{ kept }}", "barrier()", "flow"),
])  # fmt: skip
def test_a_macro_is_called_on_the_innermost_line_of_its_file(inside: str, outer: str | None, inner: str) -> None:
    template = TEMPLATE.replace("import when", "import barrier, when")
    template = template.replace("{{ locate }}", f"{{{{ locate }}}}\n{inside}")
    template = template.replace("{% block body %}", '{% from "shared.ptx.j2" import twice %}\n{% block body %}')
    part = '{% from "flow.ptx.j2" import barrier %}\n{{ barrier() }}\n'
    shared = '{% from "flow.ptx.j2" import barrier %}\n{% macro twice() %}\n    bar.sync 0;\n{% endmacro %}\n'
    with demo_template(part, "part"), demo_template(shared, "shared"), demo_template(template):
        ptx = _generate(Demo(), target("sm_90"))
    source = ptx.source_map.at(line_of(ptx.text, "bar.sync"))
    assert source is not None
    assert source.template is not None
    assert source.macro is not None
    assert Path(source.macro.file).name == f"{inner}.ptx.j2"
    if outer is None:
        assert (Path(source.template.file).name, source.template.line) == ("part.ptx.j2", 2)
    else:
        assert (Path(source.template.file).name, source.template.line) == ("demo.ptx.j2", line_of(template, outer))


@pytest.mark.parametrize("tag", ["{%- if true -%}", "{% if true -%}", "{%- if true %}", "{% if true %}"])
def test_marks_change_nothing_and_follow_stripped_blanks(tag: str) -> None:
    plain = TEMPLATE.replace("{{ locate }}", "    // one\n{{ locate }}")
    ptx = demo(TEMPLATE.replace("{{ locate }}", f"{tag}\n\n    // one\n{{% endif %}}\n{{{{ locate }}}}"))
    assert ptx.text.replace("//  one", "//one").split("// one")[1] == demo(plain).text.split("// one")[1]
    assert "\x1b" not in ptx.text


def test_a_text_of_a_template_through_a_filter() -> None:
    template = TEMPLATE.replace(
        "{{ locate }}", "{% filter trim %}\n    // two\n    // words\n{% endfilter %}\n\n{{ locate }}"
    )
    ptx = demo(template)
    assert "\n// two\n    // words\n" in ptx.text
    source = ptx.source_map.at(line_of(ptx.text, "// words"))
    assert source is not None
    assert source.template is not None
    assert source.template.line == line_of(template, "// words")


def test_the_lines_of_python_are_the_call_and_the_kernel_type_s_own() -> None:
    def more(b: Builder) -> None:
        b.op("add.f32", b.registers["value"], b.registers["value"], 3.0)

    ptx = demo(spec=Demo(more=more))
    source = ptx.source_map.at(line_of(ptx.text, "0f40400000"))
    assert source is not None
    _, first = inspect.getsourcelines(more)
    assert source.code == Place(__file__, first + 1)
    kernel = Path(demo_kernel.__file__)
    assert source.caller == Place(str(kernel), line_of(kernel.read_text(), "self.more(b)"))
    places = f"tests/lines/test_sources.py:{first + 1} from tests/support/demo_kernel.py:{source.caller.line}"
    assert str(source).startswith(f"fragment 'load', {places}, ")


def test_a_map_survives_a_pickle() -> None:
    ptx = generate(SPEC, "sm_90")
    again = pickle.loads(pickle.dumps(ptx.source_map))
    assert [again.at(n) for n in range(again.lines + 2)] == [ptx.source_map.at(n) for n in range(again.lines + 2)]


def test_paths_are_short_where_they_can_be(tmp_path: Path) -> None:
    assert shown_path(str(ROOT / "ptxgen" / "idioms" / "rows.py")) == "ptxgen/idioms/rows.py"
    assert shown_path(str(ROOT / "ptxgen" / "templates" / "rope.ptx.j2")) == "templates/rope.ptx.j2"
    assert shown_path(str(tmp_path / "a.py")) == str(tmp_path / "a.py")


# -- findings ----------------------------------------------------------------------------------------------------------

SAYS = (  # kernel, fragment, Python, template, text, finding and line
    r"^kernel demo, fragment 'load', tests/lines/test_sources\.py:{line} from tests/support/demo_kernel\.py:\d+, "
    r"\S+demo\.ptx\.j2:6"
)


def says(more: object, offset: int = 1) -> str:
    return SAYS.replace("{line}", str(inspect.getsourcelines(more)[1] + offset))


def test_of_the_builder() -> None:
    def more(b: Builder) -> None:
        b.op("add.f32", b.registers["value"], b.registers["thread"], 3.0)

    with pytest.raises(IsaError) as refused:
        demo(spec=Demo(more=more))
    what = r": add\.f32: operand 2 is \.f32 \(got %thread, .*\) \| add\.f32 %value, %thread, 3\.0;$"
    assert re.match(says(more) + what, str(refused.value)), refused.value


def test_of_the_builder_at_its_end_a_line_for_each() -> None:
    def more(b: Builder) -> None:
        x, y = b.reg("x1", "f32"), b.reg("y1", "f32")
        b.op("add.f32", b.registers["value"], x, y)

    with pytest.raises(IsaError) as refused:
        demo(spec=Demo(more=more))
    first, second = str(refused.value).splitlines()
    for said, name in ((first, "x1"), (second, "y1")):
        what = rf": register %{name} is read but no instruction writes it \| add\.f32 %value, %x1, %y1;$"
        assert re.match(says(more, 2) + what, said), said


def test_of_the_lint() -> None:
    def more(b: Builder) -> None:
        late = b.reg("late", "f32")
        b.op("add.f32", b.registers["value"], b.registers["value"], late)
        b.op("mov.f32", late, 1.0)

    with pytest.raises(IsaError) as refused:
        demo(spec=Demo(more=more))
    what = r", demo\.ptx:\d+: register %late is read before .* \| add\.f32 %value, %value, %late;$"
    assert re.match(says(more, 2) + what, str(refused.value)), refused.value


def test_of_the_checks_a_line_for_each() -> None:
    template = TEMPLATE.replace("{{ store }}", "    add.u32 %ghost, %thread, 1;\n{{ store }}\n    bra $nowhere;")
    with pytest.raises(IsaError) as refused:
        demo(template)
    first, second = str(refused.value).splitlines()
    for said, line in ((first, "add.u32 %ghost, %thread, 1;"), (second, "bra $nowhere;")):
        at = line_of(template, line)
        assert re.match(rf"^kernel demo, \S+demo\.ptx\.j2:{at}, demo\.ptx:\d+: .* \| {re.escape(line)}$", said), said


def test_of_unknown_opcodes_and_checks_a_line_for_each() -> None:
    wrong = ["foo.f32 %value, %value;", "add.u32 %ghost, %thread, 1;", "bar2.f32 %value, %value;"]
    with pytest.raises(IsaError) as refused:
        demo(TEMPLATE.replace("{{ store }}", "\n".join(["{{ store }}", *wrong])))
    said = str(refused.value).splitlines()
    whats = ("foo.f32: unknown opcode", "register %ghost is not declared", "bar2.f32: unknown opcode")
    for line, finding, what in zip(wrong, said, whats, strict=True):
        assert re.match(
            rf"kernel demo, \S+demo\.ptx\.j2:\d+, demo\.ptx:\d+: {what}.* \| {re.escape(line)}$", finding
        ), said


def test_of_lines_that_cannot_be_read_and_unknown_opcodes_a_line_for_each() -> None:
    wrong = ["add.u32 %thread, ?, 1;", "7;", "foo.f32 %value, %value;"]
    with pytest.raises(IsaError) as refused:
        demo(TEMPLATE.replace("{{ store }}", "\n".join(["{{ store }}", *wrong])))
    said = str(refused.value).splitlines()
    assert [finding.rpartition(" | ")[2] for finding in said] == wrong
    assert all("demo.ptx.j2:" in finding for finding in said), said


def test_of_the_builder_at_its_end_together_with_lint_and_checks() -> None:
    def more(b: Builder) -> None:
        b.op("add.f32", b.registers["value"], b.registers["value"], b.reg("never", "f32"))
        late = b.reg("late", "f32")
        b.op("add.f32", b.registers["value"], b.registers["value"], late)
        b.op("mov.f32", late, 1.0)

    skeletons = {
        TEMPLATE: "register %late is read before",
        TEMPLATE.replace("{{ store }}", "{{ store }}\n    frob.b32;"): "frob.b32: unknown opcode",
        TEMPLATE.replace("{{ store }}", "{{ store }}\n{{ nothing }}"): "'nothing' is undefined",
    }
    for template, what in skeletons.items():
        with pytest.raises(IsaError) as refused:
            demo(template, Demo(more=more))
        first, second = str(refused.value).splitlines()
        assert "register %never is read but no instruction writes it" in first
        assert what in second


def broken(old: str, new: str) -> tuple[Ptx, str]:
    """A generated kernel, and its text with a line that only assemblers refuse, known by the kernel's map."""
    ptx = demo()
    text = ptx.text.replace(old, new)
    assert text != ptx.text
    remember(text, ptx.source_map)
    return ptx, text


FACTS = r"\[fragment 'store', tests/support/demo_kernel\.py:\d+, \S+demo\.ptx\.j2:7\]"


@needs_assembler
def test_of_the_assembler() -> None:
    ptx, text = broken("st.global.f32 [%x]", "st.global.frob [%x]")
    with pytest.raises(AssembleError) as refused:
        assemble(text, name=f"kernel {ptx.entry}")
    said = str(refused.value)
    assert said.startswith("kernel demo: ")
    assert re.search(rf"\d+ \| st\.global\.frob \[%x\], %value; {FACTS}", said), said


def test_of_a_load_that_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.assembler.available_assemblers", lambda: ())
    ptx, text = broken("st.global.f32 [%x]", "st.global.frob [%x]")
    device, binding = fake_device()
    binding.driver_compiles = False
    binding.refuses_line = line_of(text, "st.global.frob")
    with pytest.raises(ModuleLoadError) as refused:
        device._load(text, f"kernel {ptx.entry}")
    said = str(refused.value)
    assert said.startswith("kernel demo: ")
    assert re.search(rf"\d+ \| st\.global\.frob \[%x\], %value; {FACTS}", said), said


def test_of_a_fault_on_the_executor() -> None:
    ptx = demo()
    device = open_device("cpu", mode="check")
    with pytest.raises(ExecutionError) as refused:
        device.module(ptx.text)["demo"].launch((1, 1, 1), (128, 1, 1), [device.array(np.zeros(20, np.float32))])
    said = str(refused.value)
    assert said.startswith("out of bounds in kernel demo\n")
    facts = FACTS.replace("store", "load").replace("j2:7", "j2:6")
    assert re.search(rf"module:\d+: ld\.global\.f32 %value, \[%x\]; {facts}\n", said), said


def test_of_an_instruction_that_the_executor_lacks() -> None:
    ptx, text = broken("st.global.f32 [%x], %value", "tcgen05.wait::st.sync.aligned")
    with pytest.raises(ModuleLoadError) as refused:
        open_device("cpu").module(text)["demo"]
    assert re.search(
        r"fragment 'store', tests/support/demo_kernel\.py:\d+, \S+demo\.ptx\.j2:7.*tcgen05", str(refused.value)
    )
    assert ptx.entry == "demo"


# -- foreign text ------------------------------------------------------------------------------------------------------

FOREIGN = """.version 7.4
.target sm_80
.address_size 64
.file 1 "/src/kernel.cu"
.file 2 "/src/helper.cuh"
.visible .entry k()
{
    .reg .b32 %r<3>;
    mov.u32 %r1, %ghost;
    .loc 1 12 5
    mov.u32 %r1, %ghost;
    .loc 2 7 3, function_name $L__info_string0, inlined_at 1 13 9
    mov.u32 %r2, %ghost;
    ret;
}
"""


def test_foreign_text_says_what_its_loc_directives_say() -> None:
    with pytest.raises(IsaError) as refused:
        check(parse(FOREIGN, "k.ptx"))
    assert [line.split(": register")[0] for line in str(refused.value).splitlines()] == [
        "kernel k, k.ptx:9",
        "kernel k, /src/kernel.cu:12, k.ptx:11",
        "kernel k, /src/helper.cuh:7 from /src/kernel.cu:13, k.ptx:13",
    ]


def test_foreign_text_without_them_has_no_origins() -> None:
    assert origin("mov.u32 %r1, 0;", 1) is None
    assert quoted("mov.u32 %r1, 0;", "line 1; error") == "  line 1; error\n    1 | mov.u32 %r1, 0;"
    assert str(Origin(code=Place("/a.py", 3))) == "/a.py:3"
    assert str(Origin(template=Place("/k.j2", 3), macro=Place("/flow.j2", 9))) == "/k.j2:3 → /flow.j2:9"
