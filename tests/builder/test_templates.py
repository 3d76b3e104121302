"""Templates and fragments held against each other: drift on either side is refused, with kernel, file and line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from ptxgen.builder import Builder
from ptxgen.errors import IsaError, SpecError, TemplateError
from ptxgen.generator import _generate
from ptxgen.kernel import KernelType
from ptxgen.kernels.kv_cache_scatter import KvCacheScatter
from ptxgen.launch import Launch
from ptxgen.render import _FLOW, _OFTEN, _SHARED, TEMPLATES, environment, render_entry
from ptxgen.targets import Target, target
from tests.support import demo_kernel
from tests.support.demo_kernel import TEMPLATE, Demo, demo_template
from tests.support.kernels import TYPES, usual_target

SM_90 = target("sm_90")


def text(template: str = TEMPLATE, spec: Demo | None = None, where: str = "sm_90") -> str:
    with demo_template(template):
        return _generate(spec or Demo(), target(where)).text


def refused(
    template: str, kind: type[Exception] = TemplateError, spec: Demo | None = None, where: str = "sm_90"
) -> str:
    with pytest.raises(kind) as error:
        text(template, spec, where)
    assert "demo" in str(error.value)
    return str(error.value)


def line_of(template: str, part: str) -> int:
    """1-based line of the template's text."""
    return next(i for i, line in enumerate(template.splitlines(), 1) if part in line)


def test_what_is_compiled_ahead_is_what_skeletons_share() -> None:
    texts = [path.read_text() for path in TEMPLATES.rglob("*.ptx.j2")]
    shared = {name for each in texts for name in re.findall(r'{% (?:extends|from) "(\w+)\.ptx\.j2"', each)}
    assert {f"{name}.ptx.j2" for name in (*shared, "module")} == {*_SHARED, _FLOW}
    imports = re.findall(r'"flow\.ptx\.j2" import ([\w, ]+)', "\n".join(texts))
    often = Counter(name.strip() for names in imports for name in names.split(","))
    assert {name for name, _ in often.most_common(len(_OFTEN))} == {*_OFTEN}


def test_macros_are_compiled_one_by_one() -> None:
    flow: Any = environment().get_template(_FLOW).module
    whole = Environment(trim_blocks=True, lstrip_blocks=True)
    names = [name for name in vars(whole.from_string((TEMPLATES / _FLOW).read_text()).module) if name[0] != "_"]
    assert {"when", "reduce", "arrival"} <= {*names}
    assert [name for name in names if getattr(flow, name).name != name] == []
    assert not hasattr(flow, "whence")
    assert "bar.sync 0;" in flow.arrival(False), "it calls another macro"
    with pytest.raises(TemplateError, match=r"'whence' is no macro of flow\.ptx\.j2; nearest macro: when"):
        text('{% from "flow.ptx.j2" import whence %}\n' + TEMPLATE.replace("call when(", "call whence("))


def test_a_skeleton_places_its_fragments() -> None:
    body = text().split("{\n", 1)[1]
    assert [line.split()[0] for line in body.splitlines() if line.startswith(("    @", "$", "    ret"))] == [
        "@!%inside",
        "$bounds_end:",
        "ret;",
    ]
    assert body.index("ld.global") < body.index("st.global") < body.index("$bounds_end:")


# -- drift -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fragment", ["locate", "load", "store"])
def test_a_fragment_that_is_not_placed(fragment: str) -> None:
    broken = TEMPLATE.replace(f"{{{{ {fragment} }}}}\n", "")
    if fragment == "locate":  # the placement that defines the predicate; the region still names it
        assert "{{ locate }}" not in broken
    message = refused(broken)
    source = Path(demo_kernel.__file__).read_text().splitlines()
    built = next(i for i, line in enumerate(source, 1) if f'b.fragment("{fragment}")' in line)
    assert f"not placed by demo.ptx.j2: fragment '{fragment}'" in message
    assert f"demo_kernel.py:{built})" in message


@pytest.mark.parametrize("fragment", ["locate", "load", "store"])
def test_a_misspelt_placement(fragment: str) -> None:
    broken = TEMPLATE.replace(f"{{{{ {fragment} }}}}", f"{{{{ {fragment}_ }}}}")
    message = refused(broken)
    assert f"demo.ptx.j2:{line_of(broken, fragment + '_')}" in message
    assert f"'{fragment}_' is undefined; nearest: {fragment}" in message


def test_a_misspelt_predicate() -> None:
    broken = TEMPLATE.replace("when(inside", "when(insid")
    message = refused(broken)
    assert f"demo.ptx.j2:{line_of(broken, 'insid')}" in message
    assert "'insid' is undefined; nearest: inside" in message


def test_a_misspelt_field_of_the_spec() -> None:
    broken = TEMPLATE.replace("{{ locate }}", "    // {{ spec.m }}\n{{ locate }}")
    message = refused(broken)
    assert f"demo.ptx.j2:{line_of(broken, 'spec.m')}" in message
    assert "has no attribute 'm'" in message


def test_a_misspelt_macro() -> None:
    assert "wenn" in refused(TEMPLATE.replace("import when", "import wenn").replace("call when", "call wenn"))


def test_a_macro_that_is_not_imported() -> None:
    broken = TEMPLATE.replace("call when", "call either")
    assert """'either' is undefined; import it: {% from "flow.ptx.j2" import either %}""" in refused(broken)


def test_a_condition_on_a_misspelt_fragment_leaves_the_fragment_unplaced() -> None:
    broken = TEMPLATE.replace("{{ store }}", "{% if stor is defined %}\n{{ store }}\n{% endif %}")
    assert "fragment 'store'" in refused(broken)


def test_a_branch_on_something_that_is_no_predicate() -> None:
    broken = TEMPLATE.replace("when(inside", "when(thread")
    message = refused(broken)
    assert f"demo.ptx.j2:{line_of(broken, 'when(thread')} → flow.ptx.j2:" in message
    assert "a branch needs a predicate register" in message


def test_a_syntax_error() -> None:
    broken = TEMPLATE.replace("{% endcall %}", "{% endcal %}")
    assert f"demo.ptx.j2:{line_of(broken, 'endcal ')}" in refused(broken)


def test_a_template_that_does_not_exist() -> None:
    said = r"^kernel demo \(demo\.ptx\.j2\): template demo\.ptx\.j2 does not exist"
    with pytest.raises(TemplateError, match=said):
        _generate(Demo(), SM_90)


def test_a_kernel_type_made_of_another_has_the_template_of_its_build() -> None:
    class Narrower(KvCacheScatter):
        kernel_name = "narrower"

    class Other(Narrower):
        kernel_name = "other"

        def build(self, b: Builder) -> None: ...

    spec = {"max_len": 8, "head_dim": 8, "n_kv_heads": 1}
    assert [kind(**spec).template(target("sm_80")) for kind in (Narrower, Other)] == ["kv_cache_scatter", "other"]


def test_a_fragment_and_a_register_of_one_name() -> None:
    def more(b: Builder) -> None:
        b.op("mov.u32", "store", 1)

    said = refused(TEMPLATE, IsaError, Demo(more=more))
    assert "tests/support/demo_kernel.py:" in said
    assert "share no names (got 'store'); it is a fragment and a register" in said


def test_a_register_and_an_absent_fragment_of_one_name() -> None:
    def more(b: Builder) -> None:
        b.op("mov.u32", "apart", 1)
        b.without("apart")

    said = refused(TEMPLATE, IsaError, Demo(more=more))
    assert "tests/builder/test_templates.py:" in said
    assert "share no names (got 'apart'); it is an absent fragment and a register" in said


# -- PTX written in a template is checked as PTX -----------------------------------------------------------------------


def with_line(line: str) -> str:
    return TEMPLATE.replace("{{ load }}", f"    {line}\n{{{{ load }}}}")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("add.f23 %value, %value, %value;", "add.f23"),
        ("add.u32 %value, %thread, 1;", "%value"),
        ("add.u32 %ghost, %thread, 1;", "%ghost"),
        ("add.u32 %thread, %thread;", "operands"),
        ("bra $nowhere;", "$nowhere"),
    ],
)
def test_text_that_is_not_legal_names_kernel_and_line(line: str, what: str) -> None:
    message = refused(with_line(line), IsaError)
    at = line_of(with_line(line), line)
    assert re.match(rf"kernel demo, \S+demo\.ptx\.j2:{at}, demo\.ptx:\d+: ", message), message
    assert what in message
    assert message.splitlines()[0].endswith(f" | {line}")


def test_an_instruction_of_the_template_that_the_target_lacks() -> None:
    template = with_line("barrier.cluster.arrive.release.aligned;")
    message = refused(template, IsaError, where="sm_80")
    assert re.match(r"kernel demo, \S+demo\.ptx\.j2:\d+, demo\.ptx:\d+: ", message), message
    assert "sm_90" in message
    assert "barrier.cluster.arrive" in text(template)


def test_a_fragment_that_is_placed_before_what_it_reads() -> None:
    broken = TEMPLATE.replace("{{ load }}\n{{ store }}", "{{ store }}\n{{ load }}")
    message = refused(broken, IsaError)
    assert "register %value is read before anything can have written it" in message
    assert message.splitlines()[0].endswith("| st.global.f32 [%x], %value;") or "register %x is read" in message


def test_text_that_is_not_ascii() -> None:
    message = refused(with_line("// √n"), IsaError)
    assert re.match(r"kernel demo, .*, demo\.ptx:\d+: PTX is ASCII, comments too \(got '√'\) \| // √n", message)


def test_a_block_that_no_launch_can_have() -> None:
    class Wide(Demo):
        def launch(self, target: Target) -> Launch:
            return Launch((1, 1, 1), (4096, 1, 1))

    assert ".reqntid: must be from 1 to 1024, 1024, 64 threads, 1024 together (got 4096, 1, 1)" in refused(
        TEMPLATE, IsaError, Wide()
    )


# -- a placement that loses instructions -------------------------------------------------------------------------------

LOST = {
    "/* {{ store }} */": "a fragment stands on a line of its own (got '/* store */')",
    "/*\n{{ store }}\n*/": "comments are // lines (got '/*')",
    "// {{ store }}": "a fragment stands on a line of its own (got '// store')",
    "{{ store }} // and so on": "a fragment stands on a line of its own",
    "{{ store | upper }}": "a fragment is placed as it is: no filter, no operator (got one around 'store')",
    "{{ store | replace('st.global', 'ld.global') }}": "a fragment is placed as it is",
    "{{ (store ~ '').split('st.')[0] }}": "a fragment is placed as it is",
    "{% set kept %}\n{{ store }}\n{% endset %}": "placed, but its text is thrown away: fragment 'store'",
}


@pytest.mark.parametrize("placement", LOST)
def test_a_placement_that_loses_instructions(placement: str) -> None:
    broken = TEMPLATE.replace("{{ store }}", placement)
    message = refused(broken)
    assert LOST[placement] in message
    assert message.startswith("kernel demo (demo.ptx.j2): ")
    if "/*\n" not in placement:
        assert f"demo.ptx.j2:{line_of(broken, next(x for x in placement.splitlines() if 'store' in x))}" in message


def test_an_indented_placement_is_one() -> None:
    assert text(TEMPLATE.replace("{{ store }}", "        {{ store }}")) == text()


def test_an_unpredicated_loop() -> None:
    template = TEMPLATE.replace("{{ load }}", "$again:\n{{ load }}")
    template = template.replace("{{ store }}", "{{ store }}\n    bra $again;")
    assert "branch back to $again is not predicated" in refused(template, IsaError)


# -- declarations ------------------------------------------------------------------------------------------------------


def test_registers_are_declared_by_type_and_tables_before_the_entry() -> None:
    def more(b: Builder) -> None:
        table = b.op("mov.u64", "row", b.table("bits", "b64", [1, 2**64 - 1, 3, 4, 5]))
        b.op("ld.global.b64", "word", table[8])

    made = text(spec=Demo(more=more))
    head, body = made.split(".visible .entry")
    assert head.endswith(
        ".global .align 16 .b64 demo_bits[5] = {\n"
        "    0x0000000000000001, 0xFFFFFFFFFFFFFFFF, 0x0000000000000003, 0x0000000000000004,\n"
        "    0x0000000000000005\n"
        "};\n"
    )
    assert ".reg .u64 %x, %row;" in body
    assert ".reg .b64 %word;" in body


def test_static_shared_memory_beyond_its_own_limit() -> None:
    def more(b: Builder) -> None:
        b.shared("tile", 50_000)

    said = refused(TEMPLATE, SpecError, Demo(more=more))
    assert said == (
        "demo: static shared memory: at most 49152 bytes (got 50000); declare a variable by b.shared(…, dynamic=True), "
        "and give its bytes to Launch(shared=…)"
    )


def test_shared_memory_beyond_the_limit() -> None:
    def more(b: Builder) -> None:
        b.shared("tile", 300 * 1024)

    with pytest.raises(SpecError, match=r"demo: shared memory: at most 232448 bytes on sm_90 \(got 307200\)"):
        text(spec=Demo(more=more))


def test_dynamic_shared_memory_that_the_launch_does_not_ask_for() -> None:
    def more(b: Builder) -> None:
        b.shared("tile", 1024, dynamic=True)

    with pytest.raises(SpecError, match="launch\\(\\) asks for 0 dynamic shared bytes, build\\(\\) declares 1024"):
        text(spec=Demo(more=more))


# -- every kernel type: each placement is needed -----------------------------------------------------------------------


def _cases() -> Iterator[KernelType]:
    for cls in TYPES.values():
        for fields in cls.goldens:
            yield cls(**fields)


@pytest.mark.parametrize("spec", list(_cases()), ids=lambda spec: f"{spec.kernel_name}-{spec.slug}")
def test_every_fragment_of_every_golden_is_placed_and_a_further_one_would_be_missed(spec: KernelType) -> None:
    where = target(usual_target(type(spec)))
    b = Builder(spec, where)
    spec.build(b)
    with b.fragment("never_placed"):
        b.note("nothing")
    with pytest.raises(TemplateError) as error:
        render_entry(b, spec.kernel_name, spec.template(where), spec.launch(where))
    missed = re.findall(r"'(\w+)' \(", str(error.value))
    assert missed == ["never_placed"]


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.ptx.j2")), ids=lambda path: path.name)
def test_templates_hold_shape_and_no_numbers(path: Path) -> None:
    """No arithmetic between braces, and no register that a template declares itself."""
    source = re.sub(r"\{#.*?#\}", "", path.read_text(), flags=re.DOTALL)
    for inside in re.findall(r"\{[{%](.*?)[%}]\}", source, re.DOTALL):
        assert not re.search(r"\d\s*[*/%+-]|[*/%+-]\s*\d", inside), f"{path.name}: {inside.strip()}"
    if path.name != "entry.ptx.j2":
        assert ".reg" not in source


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.ptx.j2")), ids=lambda path: path.name)
def test_control_flow_is_flows_and_absence_is_declared(path: Path) -> None:
    """No label or branch outside the flow macros; no question whether a name exists; a dozen conditions at most."""
    source = re.sub(r"\{#.*?#\}", "", path.read_text(), flags=re.DOTALL)
    if path.name != "flow.ptx.j2":
        assert not re.search(r"\bbra\b|^\s*\$\w*:|bar\.sync|cp\.async", source, re.MULTILINE)
    assert not re.search(r"\bis (not )?defined\b", source)
    assert len(re.findall(r"\{%\s*(?:el)?if\b|\{\{[^}]*\sif\s", source)) <= 12


def test_an_absent_fragment_is_nothing_where_it_is_placed_and_false() -> None:
    placed = TEMPLATE.replace("{{ store }}", "{{ scaled }}\n{% if scaled %}\n    // scaled\n{% endif %}\n{{ store }}")
    without = text(placed, Demo(more=lambda b: b.without("scaled")))
    assert without.splitlines()[1:] == text().splitlines()[1:]
    assert "'scaled' is undefined; build() makes no fragment or register of this name" in refused(placed)


def test_a_fragment_is_built_or_absent_not_both() -> None:
    with pytest.raises(IsaError, match="fragment 'store' is built, and declared to be absent"):
        text(spec=Demo(more=lambda b: b.without("store")))
    with pytest.raises(IsaError, match="fragment 'locate' is built, and declared to be absent"):
        text(spec=Demo(more=lambda b: b.without("locate")))
