"""`export --config`: names, entries, order and headers of a model's kernels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ptxgen import SpecError
from ptxgen.cli._main import invoke
from ptxgen.export import Part, export
from ptxgen.export.bundle import bundle_facts, parts
from ptxgen.export.kernels import bundle
from ptxgen.export.stubs import c_header
from ptxgen.generator import generate
from ptxgen.golden import Goldens
from ptxgen.kernels import KvCacheScatter
from ptxgen.models import load_config
from ptxgen.models.plan import plan, whole_plan, whole_program
from ptxgen.models.spec import load_spec
from tests.support.kernels import GOLDENS, NAMES

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
SCREEN = 80  # lines; the widest parameter list among the goldens decides it


def manifest(model: str, prefix: str = "") -> dict[str, Any]:
    """The manifest of a model's attention kernels."""
    shape = load_config(CONFIGS / f"{model}.json", 8192)
    steps = plan(shape, "sm_80")
    files = export(parts(shape, steps, prefix), cubin=False, **bundle_facts(shape, steps, prefix))
    found: dict[str, Any] = json.loads(files["manifest.json"])
    assert {name for kernel in found["kernels"] for name in kernel["files"].values()} | {"manifest.json", "ptxgen.h"} \
        == files.keys()  # fmt: skip
    for kernel in found["kernels"]:
        assert f".entry {kernel['entry']}(" in str(files[kernel["files"]["ptx"]])
    return found


def test_names_are_short_and_say_what_differs() -> None:
    found = manifest("gemma-2-9b", "g_")
    names = [kernel["name"] for kernel in found["kernels"]]
    assert {"g_decode_sliding", "g_decode_full", "g_decode_batched_full", "g_rope_append", "g_arg_max"} <= set(names)
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 30
    assert [kernel["entry"] for kernel in found["kernels"]] == names


def test_the_manifest_has_what_the_index_of_generate_has_and_the_order() -> None:
    shape = load_config(CONFIGS / "gemma-2-9b.json", 8192)
    index = json.loads(bundle(shape, plan(shape, "sm_80"))["index.json"])
    found = manifest("gemma-2-9b")
    assert found["model"] == index["model"]
    said = ("role", "in_decode_step", "layers", "kernel_type", "spec", "target")
    assert [[k[s] for s in said] for k in found["kernels"]] == [[k[s] for s in said] for k in index["kernels"]]
    order = [(step["layer"], step["kernel"]) for step in found["targets"]["sm_80"]["decode_step"]]
    assert order[:4] == [(0, "rope_append"), (0, "decode_sliding"), (1, "rope_append"), (1, "decode_full")]
    assert order[-1] == (None, "arg_max")
    assert len(order) == 2 * 42 + 1


def test_a_whole_model_has_every_launch_of_its_program_in_order() -> None:
    model = load_spec(CONFIGS / "smollm3-3b.json", 4096)
    steps, program = whole_plan(model, "q8_0", "sm_80"), whole_program(model, "q8_0", "sm_80")
    facts = bundle_facts(model.shape, steps, "", {"sm_80": program})
    order = facts["targets"]["sm_80"]["decode_step"]
    assert len(order) == len(program.ops)
    specs = {part.name: part.ptx.spec for part in parts(model.shape, steps)}
    assert len(specs) == len(steps)
    assert [specs[step["kernel"]] for step in order] == [op.spec for op in program.ops]
    assert order[0]["layer"] is None
    assert [step["does"] for step in order][1:4] == ["qkv_append", "attention", "o_proj"]


@pytest.mark.parametrize("name", NAMES)
def test_a_header_fits_on_a_screen(name: str) -> None:
    for case in Goldens(GOLDENS, (name,)).cases():
        lines = c_header(case.generate().manifest()).splitlines()
        assert len(lines) <= SCREEN, case.file


def test_an_entry_can_be_chosen(tmp_path: Path) -> None:
    words = ["kv-cache-scatter", "--max-len", "64", "--head-dim", "64", "--n-kv-heads", "2", "--target", "sm_80"]
    assert invoke(["export", *words, "--name", "append_kv", "--no-cubin", "-o", str(tmp_path)]) == 0
    (kernel,) = json.loads((tmp_path / "manifest.json").read_text())["kernels"]
    assert (kernel["name"], kernel["entry"], kernel["files"]["c"]) == ("append_kv", "append_kv", "sm_80/append_kv.h")
    assert "append_kv_sm_80_grid(int64_t rows, uint32_t grid[3])" in (tmp_path / "sm_80" / "append_kv.h").read_text()
    assert invoke(["generate", *words, "--entry", "other", "-o", str(tmp_path / "k.ptx")]) == 0
    text = (tmp_path / "k.ptx").read_text()
    spec = KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2)
    assert text.replace(".entry other(", ".entry kv_cache_scatter(") == generate(spec, "sm_80").text


@pytest.mark.parametrize("name", ["2fast", "a-b", "a b", "_x"])
def test_an_entry_that_is_no_name_is_refused(name: str) -> None:
    said = f"entry: must be letters, digits and _, a letter first (got {name!r})"
    with pytest.raises(SpecError, match=re.escape(said)):
        generate(KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2), "sm_80", entry=name)


def test_a_second_target_and_a_kernel_of_its_own_join_the_manifest(tmp_path: Path) -> None:
    config = ["--config", str(CONFIGS / "tinyllama-1.1b.json"), "--max-len", "512", "--no-cubin", "-o", str(tmp_path)]
    for where in ("sm_80", "sm_90"):
        assert invoke(["export", *config, "--target", where]) == 0
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["targets"].keys() == {"sm_80", "sm_90"}
    assert {kernel["target"] for kernel in found["kernels"]} == {"sm_80", "sm_90"}
    words = ["kv-cache-scatter", "--max-len", "64", "--head-dim", "64", "--n-kv-heads", "2", "--target", "sm_80"]
    assert invoke(["export", *words, "--no-cubin", "-o", str(tmp_path)]) == 0
    more = json.loads((tmp_path / "manifest.json").read_text())
    assert (more["model"], more["targets"]) == (found["model"], found["targets"])
    assert len(more["kernels"]) == len(found["kernels"]) + 1


def test_kernels_of_another_step_are_refused_in_the_same_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose flags would not be those of the step that the manifest lists."""
    out = tmp_path / "out"
    (tmp_path / "config.json").write_text((CONFIGS / "llama-3.2-1b.json").read_text())
    words = ["export", "--config", str(tmp_path), "--max-len", "64", "--target", "sm_80", "--no-cubin", "-o", str(out)]
    assert invoke([*words, "--weights", "q8_0"]) == 0
    before = (out / "manifest.json").read_text()
    for more in ([], ["--weights", "q8_0", "--prefix", "my_"]):
        capsys.readouterr()
        assert invoke([*words, *more]) == 2
        err = capsys.readouterr().err
        said = "is of another decode step on sm_80; write to another directory, or remove it"
        assert err == f"ptxgen: {out}/manifest.json: {said}\n"
    assert (out / "manifest.json").read_text() == before
    assert invoke([*words, "--weights", "q8_0"]) == 0  # the same once more
    assert (out / "manifest.json").read_text() == before


def test_a_file_of_weights_is_no_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(99))
    assert invoke(["export", "--config", str(path), "--target", "sm_80", "-o", str(tmp_path / "out")]) == 2
    said = "must be a config.json (got a file of weights); `complete` and `export --model` take it"
    assert capsys.readouterr().err == f"ptxgen: {path}: {said}\n"


def test_a_part_may_have_facts_of_its_own() -> None:
    ptx = generate(KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2), "sm_80", entry="a")
    (kernel,) = json.loads(export([Part(ptx, "a", {"role": "append"})], cubin=False)["manifest.json"])["kernels"]
    assert (kernel["role"], kernel["entry"]) == ("append", "a")


def test_pages_rings_and_the_memory_of_batches_are_said(tmp_path: Path) -> None:
    """Sliding layers keep 1024 + 64 − 1 positions, rounded up; in pages the same ones come again in the table."""
    config = ["--config", str(CONFIGS / "gemma-3-4b.json"), "--max-len", "8192", "--target", "sm_80", "--no-cubin"]
    assert invoke(["export", *config, "--rings", "64", "-o", str(tmp_path / "rows")]) == 0
    options = ["--rings", "64", "--page-size", "16", "--layout", "nhd", "--batch", "8"]
    assert invoke(["export", *config, *options, "-o", str(tmp_path / "pages")]) == 0
    rows, pages = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("rows", "pages"))
    sliding, full = rows["caches"]["kinds"]
    assert (sliding["rows"], sliding["ring"], full["rows"], full["ring"]) == (1088, True, 8192, False)
    row = 2 * 4 * 256 * 2  # K and V of four KV heads of 256 in bf16
    assert rows["caches"]["bytes_per_sequence"] == row * (29 * 1088 + 5 * 8192)
    assert pages["caches"]["bytes"] == 8 * rows["caches"]["bytes_per_sequence"]
    assert pages["caches"]["kinds"][0]["ring_pages"] == 1088 // 16
    by_name = {kernel["name"]: kernel["spec"] for kernel in rows["kernels"]}
    assert {name: by_name[name]["ring"] for name in ("decode_sliding", "prefill_sliding", "rope_append_sliding")} \
        == dict.fromkeys(("decode_sliding", "prefill_sliding", "rope_append_sliding"), 1088)  # fmt: skip
    assert by_name["decode_full"]["ring"] == by_name["decode_batched_full"]["page_size"] == 0
    paged = {kernel["name"]: kernel["spec"] for kernel in pages["kernels"]}
    for name in ("decode_batched_full", "decode_batched_sliding", "prefill_batched_full", "rope_append_batched_full"):
        assert (paged[name]["page_size"], paged[name]["page_layout"], paged[name]["ring"]) == (16, "nhd", 0)


def test_options_that_do_not_go_together_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", str(CONFIGS / "tinyllama-1.1b.json"), "--target", "sm_80", "-o", str(tmp_path / "new")]
    assert invoke(["export", *config, "--layout", "nhd"]) == 2
    assert "--layout: goes with --page-size" in capsys.readouterr().err
    assert invoke(["generate", *config, "--page-size", "20"]) == 2
    assert "--page-size: must be a multiple of 16" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
