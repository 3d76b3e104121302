"""Texts with `.loc`, and annotated listings: the code of the kernel, with the lines of its source map."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ptxgen import generate
from ptxgen.assembler import assemble
from ptxgen.cli._main import invoke
from ptxgen.errors import SpecError
from ptxgen.generator import Ptx
from ptxgen.kernels import IncrementalAttention, KvCacheScatter, RmsNorm, Rope
from ptxgen.lines.sources import has_line_info, origin
from ptxgen.runtime import open_device
from ptxgen.runtime.cuda.load import Loader
from ptxgen.views.lineinfo import annotated, with_line_info
from tests.support.fake_cuda import Binding, fake_device
from tests.support.marks import needs_assembler

SPEC = KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2)
SPECS = (SPEC, Rope(head_dim=64, n_heads=2, n_kv_heads=2), IncrementalAttention(64, 64, 4, 2, "f16", "f16"))
TARGETS = ("sm_75", "sm_90", "sm_120")
COMMAND = ["generate", "kv-cache-scatter", "--max-len", "64", "--head-dim", "64", "--n-kv-heads", "2"]


def code(text: str) -> list[str]:
    """A text without comments, directives of lines and the version."""
    body = re.sub(r"\n\.section \.debug_str\n\{.*?\n\}", "", text, flags=re.DOTALL)
    lines = (re.sub(r"\s*//.*", "", line).rstrip() for line in body.splitlines())
    return [line for line in lines if line and not re.match(r"\s*\.(file|loc|version)\b", line)]


def both(spec: object, target: str) -> tuple[Ptx, Ptx]:
    return generate(spec, target), generate(spec, target, line_info=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kernel_name)
def test_the_code_is_that_of_the_kernel(spec: object, target: str) -> None:
    plain, lined = both(spec, target)
    assert code(lined.text) == code(plain.text) == code(annotated(plain))
    assert lined.digest != plain.digest
    assert lined.text.isascii()
    assert lined.params == plain.params
    assert lined.launch == plain.launch
    assert generate(spec, target, line_info=True) is lined
    assert not has_line_info(plain.text)
    assert has_line_info(lined.text)


@needs_assembler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kernel_name)
def test_both_assemble_to_what_the_kernel_takes(spec: object, target: str) -> None:
    plain, lined = both(spec, target)
    made = assemble(plain.text)
    with_lines = assemble(lined.text)
    assert with_lines.resources == made.resources
    assert assemble(annotated(plain)).resources == made.resources
    assert b".debug_line" in with_lines.cubin
    assert b"kernels/" not in made.cubin
    for file in (f"kernels/{plain.entry}.py", ".ptx.j2"):
        directory, _, name = file.rpartition("/")
        assert directory.encode() in with_lines.cubin
        assert name.encode() in with_lines.cubin


def test_a_location_is_python_inlined_at_the_template() -> None:
    plain, lined = both(SPEC, "sm_90")
    files = dict(re.findall(r'^\.file (\d+) "(.*)"$', lined.text, re.MULTILINE))
    assert all(Path(file).is_absolute() and Path(file).is_file() for file in files.values())
    lines = lined.text.splitlines()
    at = next(i for i, line in enumerate(lines) if "selp.b64 %source" in line)
    source = lined.source_map.at(at + 1)
    assert source is not None
    assert source == plain.source_map.at(
        next(i for i, line in enumerate(plain.text.splitlines(), 1) if "%source, %v" in line)
    )
    found = re.fullmatch(r"    \.loc (\d+) (\d+) 1, function_name \$name\d+, inlined_at (\d+) (\d+) 1", lines[at - 1])
    assert found, lines[at - 1]
    assert source.code is not None
    assert source.template is not None
    assert (files[found[1]], int(found[2])) == (source.code.file, source.code.line)
    assert (files[found[3]], int(found[4])) == (source.template.file, source.template.line)


def test_every_instruction_keeps_its_origin_by_the_map_and_by_loc_alone() -> None:
    plain, lined = both(SPEC, "sm_90")
    opcode = re.compile(r"    (?:@!?%\w+ )?[a-z][\w.:]*[ ;]")
    wanted = [plain.source_map.at(n) for n, line in enumerate(plain.text.splitlines(), 1) if opcode.match(line)]
    numbers = [n for n, line in enumerate(lined.text.splitlines(), 1) if opcode.match(line)]
    assert [lined.source_map.at(n) for n in numbers] == wanted
    foreign = lined.text + "\n"  # a text that nobody knows
    for number, source in zip(numbers, wanted, strict=True):
        said = origin(foreign, number)
        assert said is not None
        assert source is not None
        assert said.code == (source.code or source.template)
        assert said.caller == (source.caller or (source.template if source.code else None))


def test_places_inside_each_other_need_ptx_7_2() -> None:
    plain, lined = both(SPEC, "sm_75")
    assert plain.module.version < (7, 2) == lined.module.version
    assert lined.requires.ptx == (7, 2)
    assert ".loc with inlined_at" in [word for _, word, _ in lined.requires.because]
    assert ".version 7.2\n" in lined.text


def test_a_target_with_a_newer_version_keeps_it() -> None:
    plain, lined = both(SPEC, "sm_120")
    assert plain.module.version == lined.module.version
    assert with_line_info(plain).text == lined.text


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
def test_they_run_on_the_executor(mode: str) -> None:
    device = open_device("cpu", mode=mode)
    results = []
    for kernel in (device.load(SPEC), device.load(SPEC, line_info=True)):
        made = SPEC.example(np.random.default_rng(1))
        given = {name: device.array(value) if isinstance(value, np.ndarray) else value for name, value in made.items()}
        kernel.bind(**given).launch()
        results.append({name: given[name].numpy().tobytes() for name in ("k_cache", "v_cache")})
    assert results[0] == results[1]


def test_a_device_keeps_both_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("cpu", mode="check")
    plain, lined = device.load(SPEC), device.load(SPEC, line_info=True)
    assert has_line_info(lined.ptx.text) != has_line_info(plain.ptx.text)
    assert device.load(SPEC) is plain is device.load(SPEC, line_info=False)
    assert device.load(SPEC, line_info=True) is lined
    monkeypatch.setenv("PTXGEN_LINE_INFO", "1")
    other = open_device("cpu", mode="random")
    assert has_line_info(other.load(SPEC).ptx.text)
    assert not has_line_info(other.load(SPEC, line_info=False).ptx.text)
    (warm,) = other.warmup([Rope(head_dim=64, n_heads=2, n_kv_heads=2)]).values()
    assert has_line_info(warm.ptx.text)


def test_the_variable_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_LINE_INFO", "yes")
    with pytest.raises(SpecError, match=r"^PTXGEN_LINE_INFO: must be 0 or 1 \(got 'yes'\)$"):
        fake_device(Binding())


def test_the_driver_is_asked_to_keep_them() -> None:
    device, binding = fake_device()
    plain, lined = both(SPEC, "sm_90")
    asked = []
    for text in (plain.text, lined.text):
        device._load(text, "kernel")
        asked.append(binding.link_options)
    name = "CU_JIT_GENERATE_LINE_INFO"
    assert [name in options for options in asked] == [False, True]
    loader = Loader(device)
    assert loader.key(plain.text) != loader.key(lined.text)


def test_the_command_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    plain, lined = both(SPEC, "sm_90")
    for option, text in (("--line-info", lined.text), ("--annotate", annotated(plain))):
        assert invoke([*COMMAND, "--target", "sm_90", option]) == 0
        assert capsys.readouterr().out == text
    for other in ("--line-info", "--manifest"):
        assert invoke([*COMMAND, "--target", "sm_90", "-o", "a.ptx", "--annotate", other]) == 2
        assert "--annotate: is a listing to read" in capsys.readouterr().err


def test_a_listing_names_fragment_python_and_template_of_every_instruction() -> None:
    plain = generate(SPEC, "sm_90")
    listed = annotated(plain).splitlines()
    for number, line in enumerate(plain.text.splitlines(), 1):
        shown = listed[number - 1]
        assert shown.startswith(line)
        if line.startswith("    ") and line.endswith(";") and not line.startswith(("    .reg", "    .shared")):
            assert shown.endswith(f"  // {plain.source_map.at(number)}".replace("→", "->"))


def test_what_a_macro_prints_is_shown_with_the_line_that_called_it() -> None:
    plain, lined = both(RmsNorm(20000), "sm_90")
    places = r"templates/rms_norm\.ptx\.j2:12 -> templates/flow\.ptx\.j2:\d+"
    assert re.search(rf"bar\.sync 0; +// {places}$", annotated(plain), re.MULTILINE)
    files = dict(re.findall(r'^\.file (\d+) "(.*)"$', lined.text, re.MULTILINE))
    assert not [file for file in files.values() if file.endswith("flow.ptx.j2")]
    said = re.search(r"\.loc (\d+) (\d+) 1\n    bar\.sync", lined.text)
    assert said
    assert files[said[1]].endswith("templates/rms_norm.ptx.j2")
    assert said[2] == "12"
