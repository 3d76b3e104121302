"""Manifests and stubs: what a host in another language is told is what the text and the Python formulas say."""

from __future__ import annotations

import ast
import ctypes
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ptxgen.cli._main import invoke
from ptxgen.errors import AssembleError
from ptxgen.export import export
from ptxgen.export.stubs import formula
from ptxgen.generator import Ptx, generate
from ptxgen.golden import Goldens
from ptxgen.golden.case import Case
from ptxgen.kernel import make_spec
from ptxgen.kernels import KvCacheScatter
from ptxgen.launch import evaluate
from ptxgen.parser import parse
from ptxgen.views.manifest import FORMAT, parameter_layout, product, total
from tests.support.kernels import GOLDENS, NAMES, TYPES
from tests.support.stand_in_assemblers import LINKER, PTXAS, install
from tests.support.sweep import drawn

SPEC = ["kv-cache-scatter", "--max-len", "64", "--head-dim", "64", "--n-kv-heads", "2"]
TOP = {
    "format", "kernel_type", "spec", "slug", "entry", "target", "digest", "parameters", "parameter_bytes", "launch",
    "workspace", "requires",
}  # fmt: skip


def kernels(name: str) -> list[Ptx]:
    return [case.generate() for case in cases(name)]


def cases(name: str) -> tuple[Case, ...]:
    return Goldens(GOLDENS, (name,)).cases()


def capacities(names: list[str]) -> Iterator[dict[str, int]]:
    """Some values of the capacities of a manifest."""
    for numbers in ((1,), (3, 17), (1000, 64, 5)):
        yield dict(zip(names, itertools.cycle(numbers), strict=False))


# -- the manifest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_manifest_of_every_golden(name: str) -> None:
    for ptx in kernels(name):
        contract = ptx.manifest()
        assert contract.keys() == TOP
        assert contract["format"] == FORMAT
        assert json.loads(json.dumps(contract)) == contract
        assert make_spec(contract["kernel_type"], contract["spec"]) == ptx.spec
        assert contract["entry"] in ptx.text
        assert f".version {contract['requires']['ptx']}\n" in ptx.text
        assert f".target {contract['target']}\n" in ptx.text
        assert contract["requires"]["driver"]
        for because in contract["requires"]["because"]:
            of_entry = because["word"].startswith(".")  # a directive that stands below the line of its entry
            assert because["word"] in (ptx.text if of_entry else ptx.text.splitlines()[because["line"] - 1])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_lie_where_the_driver_reads_them(name: str) -> None:
    """Offsets against ctypes, which lays a struct out by the C rules."""
    types = {"u64": ctypes.c_uint64, "s64": ctypes.c_int64, "u32": ctypes.c_uint32, "s32": ctypes.c_int32,
             "f32": ctypes.c_float, "f64": ctypes.c_double, "b16": ctypes.c_uint16, "u16": ctypes.c_uint16,
             "s16": ctypes.c_int16, "u8": ctypes.c_uint8, "s8": ctypes.c_int8}  # fmt: skip
    for ptx in kernels(name):
        parameters = ptx.manifest()["parameters"]
        fields = [(p["name"], types[p["type"]]) for p in parameters]
        struct = type("struct", (ctypes.Structure,), {"_fields_": fields})
        for p in parameters:
            assert (p["offset"], p["size"]) == (getattr(struct, p["name"]).offset, getattr(struct, p["name"]).size)
            assert f"{p['name']}_param" in ptx.text
            assert p["kind"] == "scalar" or f".align {p['align']} {p['name']}_param" in ptx.text


@pytest.mark.parametrize("name", NAMES)
def test_formulas_of_the_manifest_are_those_of_python(name: str) -> None:
    for ptx in kernels(name):
        contract = ptx.manifest()
        for given in capacities(contract["launch"]["capacities"]):
            launch = ptx.launch.at(given)
            assert tuple(evaluate(extent, given) for extent in contract["launch"]["grid"]) == launch.grid
            for p, described in zip(ptx.params, contract["parameters"], strict=True):
                if p.kind != "scalar":
                    assert evaluate(described["bytes"], given) == p.nbytes(given)
            assert evaluate(contract["workspace"]["bytes"], given) == ptx.workspace_bytes(**given)
        assert f".reqntid {', '.join(map(str, contract['launch']['block']))}\n" in ptx.text


def test_layout_of_parameters_that_need_padding_and_of_arrays() -> None:
    text = (
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f(.param .u8 a, .param .u64 b, .param .u16 c,\n"
        ".param .align 16 .b8 d[20], .param .f32 e, .param .u64 .ptr .global .align 4 g) { ret; }\n"
    )
    places, size = parameter_layout(parse(text).entries["f"])
    assert [(offset, width) for offset, width, _ in places] == [(0, 1), (8, 8), (16, 2), (32, 20), (52, 4), (56, 8)]
    assert size == 64


def test_products_and_sums_of_extents() -> None:
    assert product([2, 3, 4]) == 24
    assert product(["batch", 3, "ceil_div(n, 8)", 2]) == "batch * (ceil_div(n, 8)) * 6"
    assert product(["n"]) == "n"
    assert total(["n", 4, "2 * m", 6]) == "n + 2 * m + 10"
    assert (total([]), total([4]), total(["n"])) == (0, 4, "n")


def test_a_tree_that_another_thread_disturbs_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = iter(["AST constructor recursion depth mismatch (before=75, after=195)"])
    parsed = ast.parse

    def disturbed(text: str, **more: Any) -> Any:
        for said in refused:
            raise SystemError(said)
        return parsed(text, **more)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert evaluate("ceil_div(never_seen_before, 8) * 3", {"never_seen_before": 9}) == 6
    assert list(refused) == []


def test_formulas_in_c_syntax() -> None:
    def c(text: str) -> str:
        return formula(text, lambda name: f"f_{name}")

    assert c("ceil_div(n, 8) * m + 1") == "(f_ceil_div(n, 8) * m) + 1"
    assert c("min(a, b, c)") == "f_min(a, f_min(b, c))"
    assert c("(a - b) // 2") == "f_floor_div((a - b), 2)"
    assert formula(7, str) == "7"


# -- files -------------------------------------------------------------------------------------------------------------


def test_export_writes_every_file_and_names_it(tmp_path: Path) -> None:
    assert invoke(["export", *SPEC, "--target", "sm_80", "--target", "sm_90", "-o", str(tmp_path)]) == 0
    bundle = json.loads((tmp_path / "manifest.json").read_text())
    assert [k["target"] for k in bundle["kernels"]] == ["sm_80", "sm_90"]
    named = {file for k in bundle["kernels"] for file in k["files"].values()}
    there = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert there == named | {"manifest.json", "ptxgen.h"}
    for kernel in bundle["kernels"]:
        assert kernel["files"].keys() == {"ptx", "cubin", "c", "rust"}
        assert (tmp_path / kernel["files"]["cubin"]).read_bytes()[:4] == b"\x7fELF"


def test_export_without_a_cubin(tmp_path: Path) -> None:
    assert invoke(["export", *SPEC, "--target", "sm_80", "-o", str(tmp_path), "--no-cubin"]) == 0
    assert not list(tmp_path.rglob("*.cubin"))
    assert "cubin" not in json.loads((tmp_path / "manifest.json").read_text())["kernels"][0]["files"]


def test_export_says_that_there_is_no_assembler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ptxgen.assembler.available_assemblers", lambda: ())
    assert invoke(["export", *SPEC, "--target", "sm_80", "-o", str(tmp_path)]) == 0
    assert "no assembler is installed" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.cubin"))


def test_a_cubin_with_wgmma_is_never_nvjitlinks(monkeypatch: pytest.MonkeyPatch) -> None:
    of_hopper = next(case.generate() for case in cases("packed_gemm") if case.target.name == "sm_90a")
    install(monkeypatch, LINKER, PTXAS)
    assert [c for f, c in export([of_hopper], cubin=True).items() if f.endswith(".cubin")] == [b"ptxas 13.0"]
    install(monkeypatch, LINKER)
    with pytest.raises(AssembleError, match=r"^packed_gemm: needs a ptxas .*code for wgmma gives wrong results"):
        export([of_hopper], cubin=True)


def write_all(folder: Path, made: list[Ptx]) -> list[dict[str, Any]]:
    for file, content in export(made, cubin=False).items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    described: list[dict[str, Any]] = json.loads((folder / "manifest.json").read_text())["kernels"]
    return described


def identifier(kernel: dict[str, Any]) -> str:
    return re.sub(r"\W", "_", f"{kernel['kernel_type']}_{kernel['slug']}_{kernel['target']}")


def first_of_each_name() -> list[Ptx]:
    """Goldens of every kernel type on its first target, of many a part."""
    of_each = ([case for case in cases(name) if case.target.name == TYPES[name].golden_targets[0]] for name in NAMES)
    return [case.generate() for each in of_each for case in drawn(each)]


def expected_numbers(kernel: dict[str, Any], given: dict[str, int]) -> list[int]:
    buffers = [p["bytes"] for p in kernel["parameters"] if p["kind"] != "scalar"]
    return [evaluate(e, given) for e in [*kernel["launch"]["grid"], kernel["workspace"]["bytes"], *buffers]]


def needs(extent: object, given: dict[str, int]) -> list[str]:
    return [str(given[n]) for n in sorted(given) if re.search(rf"\b{n}\b", str(extent))]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc) on PATH")
def test_c_headers_compile_without_a_warning_and_compute_the_same_numbers(tmp_path: Path) -> None:
    described = write_all(tmp_path, first_of_each_name())
    lines, expected = [], []
    for kernel in described:
        name, given = identifier(kernel), dict.fromkeys(kernel["launch"]["capacities"], 13)
        grid_needs = [n for n in sorted(given) if any(re.search(rf"\b{n}\b", str(e)) for e in kernel["launch"]["grid"])]
        lines.append(f"{name}_grid({''.join(f'{given[n]}, ' for n in grid_needs)}g); SHOW(g[0]) SHOW(g[1]) SHOW(g[2])")
        lines.append(f"SHOW({name}_workspace_bytes({', '.join(needs(kernel['workspace']['bytes'], given))}))")
        for p in kernel["parameters"]:
            if p["kind"] != "scalar":
                lines.append(f"SHOW({name}_{p['name']}_bytes({', '.join(needs(p['bytes'], given))}))")
        expected += expected_numbers(kernel, given)
        lines.append(f"{{ {name}_params p; void *q[{len(kernel['parameters'])}]; {name}_pointers(&p, q);")
        lines += [f"SHOW((char *)q[{i}] - (char *)&p)" for i in range(len(kernel["parameters"]))] + ["}"]
        expected += [p["offset"] for p in kernel["parameters"]]
    source = [f'#include "{kernel["files"]["c"]}"' for kernel in described]
    source += ["#include <stdio.h>", '#define SHOW(x) printf("%lld\\n", (long long)(x));']
    source += ["int main(void) { uint32_t g[3];", *lines, "return 0; }"]
    (tmp_path / "main.c").write_text("\n".join(source))
    strict = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-unused-const-variable"]
    subprocess.run([*strict, "main.c", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert list(map(int, done.stdout.split())) == expected


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler (c++) on PATH")
def test_c_headers_compile_as_cpp(tmp_path: Path) -> None:
    described = write_all(tmp_path, first_of_each_name())
    includes = "\n".join(f'#include "{kernel["files"]["c"]}"' for kernel in described)
    (tmp_path / "main.cpp").write_text(includes)
    strict = ["c++", "-std=c++11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused"]
    subprocess.run([*strict, "main.cpp"], cwd=tmp_path, check=True)


@pytest.mark.skipif(shutil.which("rustc") is None, reason="needs rustc on PATH")
def test_rust_modules_compile_without_a_warning_and_without_std(tmp_path: Path) -> None:
    described = write_all(tmp_path, first_of_each_name())
    modules = [f'#[path = "{k["files"]["rust"]}"]\npub mod {identifier(k)};' for k in described]
    checks = []
    for kernel in described:
        name, given = identifier(kernel), dict.fromkeys(kernel["launch"]["capacities"], 13)
        grid = kernel["launch"]["grid"]
        words = [str(given[n]) for n in sorted(given) if any(re.search(rf"\b{n}\b", str(e)) for e in grid)]
        x, y, z, workspace, *_ = expected_numbers(kernel, given)
        checks.append(f"const _: () = {{ let g = {name}::grid({', '.join(words)});")
        checks.append(f"    assert!(g[0] == {x} && g[1] == {y} && g[2] == {z});")
        words = needs(kernel["workspace"]["bytes"], given)
        checks.append(f"    assert!({name}::workspace_bytes({', '.join(words)}) == {workspace}); }};")
    source = ["#![no_std]", "#![deny(warnings)]", *modules, *checks]
    (tmp_path / "lib.rs").write_text("\n".join(source))
    strict = ["rustc", "--edition=2021", "--crate-type=lib", "--emit=metadata"]
    done = subprocess.run([*strict, "lib.rs"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_rust_module_includes_the_ptx_beside_it() -> None:
    files = export([generate(KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2), "sm_80")], cubin=False)
    (rust,) = [str(text) for name, text in files.items() if name.endswith(".rs")]
    included = re.search(r'include_str!\("(.+)"\)', rust)
    assert included
    assert f"sm_80/{included[1]}" in files
