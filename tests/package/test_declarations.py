"""What an author declares wrongly: the error says what, the value, and what works; no other kernel type is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxgen.kernels
from ptxgen import kernel, packages
from ptxgen.dtypes import f32, u32
from ptxgen.errors import IsaError, SpecError
from ptxgen.generator import _generate
from ptxgen.golden import Goldens
from ptxgen.idioms.row_kernel import Rows
from ptxgen.idioms.rows import RowShare
from ptxgen.kernel import KernelType, find_kernel_type, kernel_types
from ptxgen.kernels import Rope
from ptxgen.launch import Launch, Param, buffer, evaluate, scalar, workspace
from ptxgen.packages import KernelWarning, class_name, snake_case
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from tests.support.demo_kernel import Demo, demo_template
from tests.support.guide import example
from tests.support.idiom_kernel import Idiom, text_of

# -- parameters, launches, formulas ------------------------------------------------------------------------------------

X = buffer("x", f32, "rows", 4, access="inout")
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "scalar's dtype": (lambda: scalar("n", "u32"),
                       "parameter n: dtype must be a DType, such as f32 of ptxgen.dtypes (got 'u32')"),
    "buffer's dtype": (lambda: buffer("x", "f32", 4),
                       "parameter x: dtype must be a DType, such as f32 of ptxgen.dtypes (got 'f32')"),
    "access": (lambda: buffer("x", f32, 4, access="output"),
               "parameter x: access must be one of in, out, inout, workspace (got 'output'; nearest: out)"),
    "kind": (lambda: Param("x", f32, "pointer"),
             "parameter x: kind must be one of buffer, pointers, scalar (got 'pointer'; nearest: pointers)"),
    "name": (lambda: scalar("n rows", u32),
             "parameter: a name is letters, digits and _, no digit first (got 'n rows')"),
    "align": (lambda: buffer("x", f32, 4, align=12), "parameter x: align must be a power of two, in bytes (got 12)"),
    "extent": (lambda: buffer("x", f32, "rows", 2.0),
               "parameter x: an extent must be an int from 0 on, or a formula (got 2.0)"),
    "formula of a shape": (lambda: buffer("x", f32, "rows *"),
                           "parameter x: formula 'rows *': cannot be read (invalid syntax)"),
    "block of two": (lambda: Launch((1, 1, 1), (128, 1)),
                     "Launch.block: must be three extents, x, y and z (got (128, 1))"),
    "block of a formula": (lambda: Launch((1, 1, 1), ("rows", 1, 1)),
                           "Launch.block: must be ints from 1 on (got 'rows')"),
    "grid of a word": (lambda: Launch("rows", (1, 1, 1)),
                       "Launch.grid: must be three extents, x, y and z (got 'rows')"),
    "shared memory": (lambda: Launch((1, 1, 1), (1, 1, 1), 512.0),
                      "Launch.shared: must be an int from 0 on, in bytes (got 512.0)"),
    "parenthesis": (lambda: Launch(("ceil_div(rows, 4", 1, 1), (1, 1, 1)),
                    "Launch.grid: formula 'ceil_div(rows, 4': cannot be read ('(' was never closed)"),
    "function": (lambda: Launch(("ceildiv(rows, 4)", 1, 1), (1, 1, 1)),
                 "Launch.grid: formula 'ceildiv(rows, 4)': function must be one of min, max, ceil_div "
                 "(got 'ceildiv'; nearest: ceil_div)"),
    "arguments": (lambda: Launch(("ceil_div(rows)", 1, 1), (1, 1, 1)),
                  "Launch.grid: formula 'ceil_div(rows)': ceil_div takes two arguments (got ceil_div(rows))"),
    "function as a capacity": (lambda: Launch(("rows + min", 1, 1), (1, 1, 1)),
                               "Launch.grid: formula 'rows + min': min is a function, and no capacity"),
    "division": (lambda: evaluate("4 // rows", {"rows": 0}), "formula '4 // rows': divides by 0 (with {'rows': 0})"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_declaration_that_cannot_be_says_what_would(case: str) -> None:
    make, says = WRONG[case]
    with pytest.raises(SpecError) as wrong:
        make()
    assert str(wrong.value) == says


TOGETHER: dict[str, tuple[tuple[Param, ...], Any, str]] = {
    "a grid's capacity": ((X,), "ceil_div(row, 4)", "Declared.launch: grid: a capacity must be one of rows "
                          "(got 'row' in 'ceil_div(row, 4)'; nearest: rows)"),
    "without capacities": ((buffer("x", f32, 4, access="out"),), "rows",
                           "Declared.launch: grid: a capacity must be in the shape of a buffer (got 'rows' in 'rows')"),
    "a workspace's": ((X, workspace("w", f32, "2 * row")), "rows",
                      "Declared.params: w: a capacity must be one of rows (got 'row' in '2 * row'; nearest: rows)"),
    "no output": ((buffer("x", f32, "rows"), scalar("n", u32)), 1,
                  'Declared.params: one at least must have access="out" or "inout" (got x in, n in)'),
    "a name twice": ((X, scalar("x", u32)), 1, "Declared.params: parameters must have different names (got x twice)"),
}  # fmt: skip


class Declared(Demo):
    """A kernel with these parameters and this grid."""

    declared: tuple[Param, ...] = ()
    grid: Any = 1

    def params(self) -> tuple[Param, ...]:
        return self.declared

    def launch(self, target: Any) -> Launch:
        return Launch((self.grid, 1, 1), (128, 1, 1))

    def build(self, b: Any) -> None:
        for name in ("locate", "load", "store"):
            with b.fragment(name):
                b.op("setp.eq.u32", "inside" if name == "locate" else f"{name}s", b.op("mov.u32", f"{name}_at", 0), 0)


@pytest.mark.parametrize("case", TOGETHER)
def test_parameters_and_launch_are_held_against_each_other(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params, grid, says = TOGETHER[case]
    monkeypatch.setattr(Declared, "declared", params)
    monkeypatch.setattr(Declared, "grid", grid)
    with demo_template(), pytest.raises(SpecError) as wrong:
        _generate(Declared(), target("sm_80"))
    assert str(wrong.value) == says


def test_a_capacity_may_be_one_of_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for member, value in (("declared", (buffer("x", f32, 4, access="out"),)), ("grid", "ctas")):
        monkeypatch.setattr(Declared, member, value)
    monkeypatch.setattr(Declared, "sizes", {"ctas": 2})
    with demo_template():
        assert _generate(Declared(), target("sm_80")).launch.capacities == {"ctas"}


def test_a_trial_of_a_kernel_without_output_says_so() -> None:
    class Silent(Demo):
        def params(self) -> tuple[Param, ...]:
            return (buffer("x", f32, self.n),)

        def reference(self, **arguments: Any) -> dict[str, np.ndarray]:
            return {"x": arguments["x"]}

    with pytest.raises(
        SpecError, match=r'^Silent\.params: one at least must have access="out" or "inout" \(got x in\)'
    ):
        trial(Silent(), CpuDevice())


# -- rows --------------------------------------------------------------------------------------------------------------


def rows_of(code: Callable[[Any], object], dtype: Any = f32) -> Idiom:
    """A kernel that goes over rows of 32 elements."""

    def build(b: Any) -> None:
        rows = Rows(b, RowShare.of(32, 4), 0)
        with rows.each("each", more="more"):
            code(rows)

    return Idiom((buffer("x", dtype, "rows", 32), buffer("out", f32, "rows", 32, access="out")), code=build)


def test_rows_of_a_buffer_that_is_not_declared() -> None:
    for code in (lambda rows: rows.load("y"), lambda rows: rows.base("y")):
        with pytest.raises(IsaError, match=r"parameter 'y' is not declared; there are x, out") as wrong:
            text_of(rows_of(code), "{{ locate }}")
        assert "kernel idiom, fragment 'each', " in str(wrong.value)


def test_elements_of_a_type_that_no_idiom_converts() -> None:
    with pytest.raises(
        SpecError, match=r"^idiom: elements that become f32 must be f32, f16, .* \(got u32\); rules\(\)"
    ):
        text_of(rows_of(lambda rows: rows.load("x"), u32), "{{ locate }}")


# -- rules, and other members ------------------------------------------------------------------------------------------


def test_factors_that_are_no_numbers_are_refused() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(SpecError, match=r"^Rope\.high_freq_factor: must be from 0\.001 to 1000000000\.0 \(got"):
            Rope(head_dim=64, n_heads=2, scaling="llama3", high_freq_factor=value)


def test_a_rule_yielded_whole_is_named() -> None:
    class Yields(Demo):
        def rules(self) -> Iterator[Any]:
            yield iter(())

    with pytest.raises(SpecError, match=r"^Yields\.rules: must yield reasons, by `yield from` \(got <tuple_iterator"):
        Yields()


MEMBERS = {
    "goldens": ({"n": 64}, r"must be a tuple of dicts, such as \(dict\(dim=64\),\) \(got \{'n': 64\}\)"),
    "trials": ({"rows": 3}, r"must be a tuple of dicts, such as \(\{\}, dict\(rows=3\)\) \(got \{'rows': 3\}\)"),
    "golden_targets": ("sm_90", r'must be a tuple of targets, such as \("sm_90",\) \(got \'sm_90\'\)'),
    "sizes": (("rows", 3), r"must be a dict \(got \('rows', 3\)\)"),
    "unreported": (("barrier",), r"must be a dict \(got \('barrier',\)\)"),
}


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_of_another_form_is_named(member: str) -> None:
    value, says = MEMBERS[member]
    with pytest.raises(SpecError, match=rf"^Wrong\.{member}: {says}"):
        kernel.kernel_type(type("Wrong", (KernelType,), {member: value, "__module__": __name__}))
    assert "wrong" not in kernel.registered()


def test_an_illegal_golden_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rope, "goldens", (dict(head_dim=0, n_heads=2),))
    with pytest.raises(SpecError, match=r"^Rope\.goldens: \{'head_dim': 0, 'n_heads': 2\}: Rope\.head_dim: must be"):
        Goldens(tmp_path, {"rope"}).cases()


# -- modules of ours ---------------------------------------------------------------------------------------------------


def test_names_of_classes_and_modules_tell_each_other() -> None:
    for name, module in (("TopKMask", "top_k_mask"), ("TopK2", "top_k2"), ("KvCacheScatter", "kv_cache_scatter")):
        assert (snake_case(name), class_name(module)) == (module, name)
    assert all(class_name(cls.kernel_name) == cls.__name__ for cls in kernel_types().values() if ours(cls))


def ours(cls: type[KernelType]) -> bool:
    return packages.package_of(cls) == packages.OURS


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Puts a module beside ours, for a test."""
    there = packages.own_modules()
    monkeypatch.setattr(ptxgen.kernels, "__path__", [*ptxgen.kernels.__path__, str(tmp_path)])
    monkeypatch.setattr(packages, "_FAILED", [])
    monkeypatch.setattr(packages, "_TRIED", {*packages._TRIED})
    added = []

    def add(name: str, text: str) -> None:
        added.append(name)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        for module in (packages, kernel, ptxgen.kernels):
            monkeypatch.setattr(module, "own_modules", lambda: sorted([*there, *added]))

    yield add
    for name in added:
        kernel._REGISTRY.pop(name, None)
        sys.modules.pop(f"ptxgen.kernels.{name}", None)


ROWS = example("scale_rows")[0].replace("ScaleRows", "MarkRows")
MODULES = {
    "another name": (ROWS.replace("MarkRows", "MarkRowsX"), r"MarkRowsX: class and module must be named alike, as "
                     r"RmsNorm in .* \(got mark_rows\.py; nearest: class MarkRows or module mark_rows_x\.py\) "),
    "initials": (ROWS.replace("MarkRows", "MarkTKRows"), r"MarkTKRows: class and module must be named alike, .* "
                 r"\(got mark_rows\.py; nearest: class MarkRows\) "),
    "no decorator": (ROWS.replace("@kernel_type", ""), r"registers no kernel type \(@kernel_type\)$"),
    "syntax": ("def build(b:\n", r"cannot be imported: SyntaxError: .*mark_rows\.py, line 1\)"),
    "import": ("import math\nimport no_such_module\n", r"cannot be imported: ModuleNotFoundError: No module named "
               r"'no_such_module' \(.*mark_rows\.py:2\)$"),
    "goldens": (ROWS.replace("(dict(dim=64), dict(dim=100, bias=1.0))", "(dict(dim=64))"),
                r"MarkRows\.goldens: must be a tuple of dicts, .* \(got \{'dim': 64\}\) \(.*mark_rows\.py:\d+\)$"),
}  # fmt: skip


@pytest.mark.parametrize("case", MODULES)
def test_a_module_that_cannot_be_had_is_one_sentence_and_the_others_are_there(
    case: str, own_module: Callable[[str, str], None]
) -> None:
    text, says = MODULES[case]
    before = kernel_types().keys()
    own_module("mark_rows", text)
    with pytest.warns(KernelWarning, match=rf"^ptxgen\.kernels\.mark_rows: {says}"):
        assert before <= kernel_types().keys()
    assert len(packages.failures()) == 1
    with pytest.raises(SpecError, match=rf"^ptxgen\.kernels\.mark_rows: {says}"):
        find_kernel_type("mark-rows")


def test_both_names_are_offered_where_both_would_do(own_module: Callable[[str, str], None]) -> None:
    own_module("mark_trows", ROWS.replace("MarkRows", "MarkTRows"))
    with pytest.raises(SpecError, match=r"got mark_trows\.py; nearest: class MarkTrows or module mark_t_rows\.py\)"):
        find_kernel_type("mark_trows")


def test_an_initial_in_the_name_makes_no_difference(own_module: Callable[[str, str], None]) -> None:
    own_module("mark_t_rows", ROWS.replace("MarkRows", "MarkTRows"))
    found = find_kernel_type("MarkTRows")
    assert found.kernel_name == "mark_t_rows"
    assert find_kernel_type("mark-t-rows") is find_kernel_type("mark_t_rows") is found is ptxgen.kernels.MarkTRows


def test_an_update_removes_no_goldens_of_a_module_that_fails(
    own_module: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Goldens, "cases", lambda self: ())
    monkeypatch.setattr(Goldens, "_outdated", lambda self: ["sm_80/mark_rows/dim64.ptx"])
    monkeypatch.delenv("CI", raising=False)
    own_module("mark_rows", "def build(b:\n")
    with pytest.warns(KernelWarning):
        kernel_types()
    with pytest.raises(
        SpecError, match=r"would remove sm_80/mark_rows/dim64\.ptx, but not every kernel type is there:\n"
    ):
        Goldens(tmp_path).update(init=True)
