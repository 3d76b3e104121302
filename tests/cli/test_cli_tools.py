"""The command line's tools: list, requires, verify, doctor, completion; and what a process imports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from ptxgen.cli._main import invoke, root
from ptxgen.errors import AssembleError
from ptxgen.generator import generate
from ptxgen.kernel import kernel_types
from ptxgen.kernels import KvCacheScatter
from tests.support.marks import needs_assembler

SCATTER = ["kv-cache-scatter", "--max-len", "64", "--head-dim", "64", "--n-kv-heads", "2"]
TO = ["--target", "sm_80"]
SPEC = KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2)


@pytest.mark.parametrize("command", [(), ("golden",), ("generate",)])
def test_lists_of_commands_have_whole_sentences(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*command, "--help"]) == 0
    listed = " ".join(capsys.readouterr().out.partition("Commands:")[2].split())
    group: Any = root
    for word in command:
        group = group.get_command(click.Context(group), word)
    shown = [group.get_command(click.Context(group), name) for name in group.list_commands(click.Context(group))]
    assert len(shown) > 2
    for each in shown:
        help_text = " ".join((each.short_help or each.help).split())
        said = f"{each.name} {each.get_short_help_str()}"
        assert said in listed
        assert help_text.startswith(each.get_short_help_str())
        assert help_text[len(each.get_short_help_str()) :][:1] in ("", ".", ":")


def test_help_of_every_command_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == 0
    listed = capsys.readouterr().out
    for name in root.list_commands(None):
        assert f"  {name} " in listed
        assert invoke([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"Usage: ptxgen {name}")


def test_list_is_for_people_and_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["list"]) == 0
    table = capsys.readouterr().out
    assert invoke(["list", "--json"]) == 0
    described = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert described.keys() == kernel_types().keys()
    assert all(name.replace("_", "-") in table for name in described)
    fields = {f["name"]: f for f in described["kv_cache_scatter"]["fields"]}
    assert "default" not in fields["max_len"]
    assert fields["kv_dtype"]["default"] == "f32"
    assert invoke(["list", "--targets"]) == 0
    assert "sm_120f" in capsys.readouterr().out
    assert invoke(["list", "kv-cache-scatter"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["kv_dtype", "DType", "f32"] for line in lines)
    assert any(line.split()[:3] == ["max_len", "int", "(required)"] for line in lines)


def test_requires_names_the_lines_and_judges_a_driver_and_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kernel.ptx"
    file.write_text(generate(SPEC, "sm_90").text)
    assert invoke(["requires", str(file)]) == 0
    assert ".target sm_90; driver 11.8 or newer" in capsys.readouterr().out
    assert invoke(["requires", str(file), "--driver", "11.8", "--sm", "9.0"]) == 0
    assert "loads" in capsys.readouterr().out
    assert invoke(["requires", str(file), "--driver", "520.61.05", "--sm", "9.0"]) == 0
    assert "driver 11.8 on compute capability 9.0" in capsys.readouterr().out
    assert invoke(["requires", str(file), "--driver", "515"]) == 1
    assert "11.8 or newer is needed" in capsys.readouterr().out
    assert invoke(["requires", str(file), "--driver", "11.7"]) == 1
    assert "11.8 or newer is needed" in capsys.readouterr().out
    assert invoke(["requires", str(file), "--sm", "8.9", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == ["sm_90"]
    assert not found["loads"]["ok"]


@pytest.mark.parametrize("name", ["9.0", "9.0a", "sm_90", "sm_90a", "sm90", "compute_90"])
def test_requires_takes_every_name_of_an_architecture(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.ptx").write_text(generate(SPEC, "sm_90").text)
    assert invoke(["requires", str(tmp_path / "kernel.ptx"), "--sm", name]) == 0
    assert capsys.readouterr().out.endswith("compute capability 9.0: loads it\n")


def test_requires_of_something_else_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernel.ptx"
    file.write_text(generate(SPEC, "sm_90").text.replace("    ret;", "    retreat;"))
    assert invoke(["requires", str(file)]) == 2
    err = capsys.readouterr().err
    assert f"{file}:" in err
    assert "retreat" in err
    assert err.count("\n") == 1


LOCAL = """.version 7.0
.target sm_80
.address_size 64
.visible .entry uses_local(.param .u64 out, .param .u32 i)
{
    .local .align 4 .b8 buffer[256];
    .reg .b32 %i, %value;
    .reg .b64 %at, %out, %wide;
    ld.param.u32 %i, [i];
    ld.param.u64 %out, [out];
    mov.b64 %at, buffer;
    mul.wide.u32 %wide, %i, 4;
    add.u64 %at, %at, %wide;
    st.local.b32 [buffer+4], %i;
    st.local.b32 [buffer+8], 7;
    ld.local.b32 %value, [%at];
    st.global.b32 [%out], %value;
    ret;
}
"""


@needs_assembler
def test_verify_fails_on_local_memory_and_on_what_does_not_assemble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "local.ptx").write_text(LOCAL)
    (tmp_path / "scatter.ptx").write_text(generate(SPEC, "sm_80").text)
    assert invoke(["verify", str(tmp_path)]) == 1
    assert "2 entries: 1 failed" in capsys.readouterr().err
    assert invoke(["verify", str(tmp_path / "scatter.ptx")]) == 0
    assert "1 entry: all assemble, no spills, no local memory" in capsys.readouterr().err
    assert invoke(["verify", str(tmp_path), "--allow-spills", "--json"]) == 0
    found = {r["entry"]: r for r in json.loads(capsys.readouterr().out)}
    assert found["uses_local"]["stack"] > 0
    assert found["kv_cache_scatter"]["clean"]
    (tmp_path / "broken.ptx").write_text(LOCAL.replace("ld.local.b32", "ld.local.b33"))
    assert invoke(["verify", str(tmp_path), "--allow-spills"]) == 1
    shown = capsys.readouterr()
    assert "ld.local.b33" in shown.out
    assert "broken.ptx" in shown.out


@needs_assembler
def test_verify_for_another_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scatter.ptx"
    file.write_text(generate(SPEC, "sm_80").text)
    assert invoke(["verify", str(file), "--target", "sm_90", "--target", "sm_120", "--json"]) == 0
    assert [r["target"] for r in json.loads(capsys.readouterr().out)] == ["sm_90", "sm_120"]
    assert invoke(["verify", str(file), "--target", "sm_75"]) == 1


@needs_assembler
def test_verify_names_the_file_that_it_cannot_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {"none.ptx": b"// nothing\n", "new.ptx": b".version 9.0\n.target sm_42\n", "odd.ptx": b"\xff\xfe\x00"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    text = generate(SPEC, "sm_80").text
    (tmp_path / "mark.ptx").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert invoke(["verify", str(tmp_path), "--json"]) == 1
    found = {Path(r["file"]).name: r for r in json.loads(capsys.readouterr().out)}
    assert [name for name, result in found.items() if result["ok"]] == ["mark.ptx"]
    for name in contents:
        assert found[name]["error"].startswith(str(tmp_path / name))
    assert "has no .target" in found["none.ptx"]["error"]
    assert "(got 'sm_42')" in found["new.ptx"]["error"]


def test_verify_without_an_assembler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ptxgen.assembler.available_assemblers", lambda: ())
    assert invoke(["verify", str(tmp_path)]) == 2
    assert "pip install 'ptxgen[ptxas]'" in capsys.readouterr().err


def test_doctor_works_and_says_what_is_absent(capsys: pytest.CaptureFixture[str]) -> None:
    invoke(["doctor", "--json"])
    lines = {line["topic"]: line for line in json.loads(capsys.readouterr().out)}
    assert lines["jinja2"]["state"] == "ok"
    assert {"python", "driver", "cache", "assembler"} <= lines.keys()


DRIVER = """
#include <stddef.h>
#include <string.h>
static int ready = 0;
int cuInit(unsigned flags) { ready = INIT == 0; return INIT; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return ready ? 0 : 3; }
int cuDeviceGet(int *device, int index) { *device = 40 + index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, device == 40 ? "Big" : "Old", size); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? (device == 40 ? 9 : 6) : which == 76 ? (device == 40 ? 0 : 1) : -1;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = device == 40 ? 141UL << 30 : 8UL << 30; return 0; }
"""


def described_driver(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: int, init: int
) -> list[tuple[str, str, str]]:
    """What doctor says of a driver made for the purpose."""
    import ctypes

    from ptxgen.doctor import examine

    (folder / "driver.c").write_text(DRIVER)
    library = folder / f"driver_{version}_{init}.so"
    defines = [f"-DVERSION={version}", f"-DINIT={init}"]
    subprocess.run(["cc", "-shared", "-fPIC", *defines, "-o", library, folder / "driver.c"], check=True)
    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: real(str(library)))
    return [(line.topic, line.state, line.text) for line in examine() if line.topic.startswith(("driver", "gpu"))]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc) on PATH")
def test_doctor_describes_a_driver_and_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, new, old = described_driver(tmp_path, monkeypatch, 12080, 0)
    assert driver == ("driver", "ok", "CUDA 12.8: loads PTX ISA up to 8.7 (as known here)")
    assert new == ("gpu 0", "ok", "Big, 141 GiB, compute capability 9.0: generate for sm_90a")
    assert old[:2] == ("gpu 1", "wrong")
    assert "must be 7.0 or newer (got 6.1)" in old[2]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc) on PATH")
def test_doctor_tells_no_gpu_from_a_driver_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for status, state, why in ((100, "absent", "no GPU is visible"), (999, "wrong", "cuInit returned 999")):
        found = described_driver(tmp_path, monkeypatch, 13000, status)
        assert found == [("driver", state, f"CUDA 13.0: {why}")]
        monkeypatch.undo()


def test_doctor_says_where_each_ptxas_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxgen import assembler
    from ptxgen.doctor import examine

    two = [assembler.Assembler("ptxas", (13, 0), f"/{place}/ptxas") for place in ("one", "other")]
    monkeypatch.setattr(assembler, "available_assemblers", lambda: (assembler.Assembler("nvJitLink", (13, 5)), *two))
    said = next(line.text for line in examine() if line.topic == "assembler")
    assert said == "nvJitLink 13.5, then ptxas 13.0 (/one/ptxas), then ptxas 13.0 (/other/ptxas)"
    monkeypatch.setattr(assembler, "available_assemblers", lambda: tuple(two))
    monkeypatch.setattr(assembler, "supported_targets", lambda by: frozenset())
    with pytest.raises(AssembleError, match=r"^x: ptxas 13.0 cannot assemble for sm_70; "):
        assembler.assemble(".version 6.0\n.target sm_70\n", name="x")


def test_doctor_names_the_cache_and_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cache() -> str:
        invoke(["doctor", "--json"])
        return next(line["text"] for line in json.loads(capsys.readouterr().out) if line["topic"] == "cache")

    folder = tmp_path / "cache"
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(folder))
    assert cache() == f"{folder}: empty"
    assert not folder.exists()
    folder.mkdir()
    (folder / "entry").write_bytes(bytes(1_500_000))
    assert cache() == f"{folder}: 1 entries, 1.5 MB"
    monkeypatch.setenv("PTXGEN_CACHE_DIR", "off")
    assert cache().startswith("off")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["completion", shell]) == 0
    assert "_PTXGEN_COMPLETE" in capsys.readouterr().out


def test_a_shell_completes_kernel_types_and_fields() -> None:
    def complete(line: str) -> str:
        words = line.split(" ")
        asked = {"_PTXGEN_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        program = "from ptxgen.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | asked, capture_output=True, text=True)
        return done.stdout

    assert "kv-cache-scatter" in complete("ptxgen generate kv")
    assert "--head-dim" in complete("ptxgen generate kv-cache-scatter --he")
    assert "--head-dim" not in complete("ptxgen generate nope --he")
    values = {
        "ptxgen generate kv-cache-scatter --kv-dtype ": "f32 f16 bf16 e4m3 s8",
        "ptxgen run rope --style n": "norm neox",
        "ptxgen generate --config c.json --kv-dtype e": "e4m3",
        "ptxgen export kv-cache-scatter --target sm_90": "sm_90 sm_90a",
        "ptxgen complete m.gguf --quantise q4": "q4_0 q4_1 q4_k",
        "ptxgen verify --target sm_90": "sm_90 sm_90a",
        "ptxgen golden check --target sm_90": "sm_90 sm_90a",
        "ptxgen run rope --target sm_90": "sm_90 sm_90a",
    }
    for line, found in values.items():
        assert [each.removeprefix("plain,") for each in complete(line).split()] == found.split(), line


def test_the_process_imports_only_what_a_command_needs() -> None:
    program = (
        "import sys; from ptxgen.cli._main import invoke; invoke(sys.argv[1:])\nsys.stderr.write(' '.join(sys.modules))"
    )
    command = [sys.executable, "-c", program, "generate", *SCATTER, *TO]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert done.stdout.startswith("// KvCacheScatter(")
    assert loaded.isdisjoint({"rich", "numpy", "llvmlite", "cuda", "torch", "ml_dtypes"})


def test_the_module_is_a_program_and_an_interrupted_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m ptxgen generate {' '.join(SCATTER)} --target sm_80 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("// KvCacheScatter(")
    assert done.stderr == ""


def test_an_interrupt_that_a_callback_drops_comes_again() -> None:
    program = (
        "import os, signal, time\n"
        "from ptxgen.cli._main import deliver_interrupts\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "deliver_interrupts()\n"
        "class Last:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(60)\n"
        "try:\n"
        "    Last()\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_doctor_says_what_a_model_takes(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(Path(__file__).parents[2] / "examples" / "models" / "kjv-q8_0.gguf")
    assert invoke(["doctor", "--model", model, "--max-len", "128", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["total"] == told["weights"] + told["cache"] + told["scratch"] + told["other"]
    assert (told["max_len"], sorted(told["formats"])) == (128, ["", "q8_0"])
    assert invoke(["doctor", "--model", model]) == 0
    assert "weights in q8_0" in (said := capsys.readouterr().out)
    assert "scratch on sm_90a" in said
    assert invoke(["doctor", "--model", model, "--max-len", "128", "--target", "sm_80", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scratch"] < told["scratch"]  # which has no products on wgmma
    f16 = model.replace("q8_0", "f16")
    assert invoke(["doctor", "--model", f16, "--max-len", "128", "--quantise-head", "q8_0", "--quantise", "q8_0"]) == 0
    assert f"{told['formats']['q8_0']:,}" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["doctor"], ["export", "-o", "out"]], ids=" ".join)
def test_a_target_that_no_model_runs_on_is_refused_by_its_option(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(Path(__file__).parents[2] / "examples" / "models" / "kjv-q8_0.gguf")
    assert invoke([*command, "--model", model, "--target", "sm_70"]) == 2
    assert "ptxgen: --target: must be sm_75 or later (got sm_70; nearest: sm_75)" in capsys.readouterr().err
    assert not Path("out").exists()


def test_export_of_a_model_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(Path(__file__).parents[2] / "examples" / "models" / "kjv-q8_0.gguf")
    options = ["--model", model, "--target", "sm_80", "--max-len", "64", "--no-cubin", "-o", str(tmp_path / "out")]
    assert invoke(["export", *options]) == 0
    assert "launches a token" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "program.json").read_text())["target"] == "sm_80"
    assert invoke(["export", "--model", model]) == 2
    assert "needs one --target, and -o" in capsys.readouterr().err
