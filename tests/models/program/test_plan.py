"""A model's kernels: each configuration on each target, few modules a decode step, a directory that checks itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ptxgen import SpecError
from ptxgen.assembler import assemble
from ptxgen.cli._main import invoke
from ptxgen.dtypes import f32
from ptxgen.errors import ConfigWarning
from ptxgen.export.kernels import bundle
from ptxgen.generator import generate
from ptxgen.golden import INDEX, Goldens
from ptxgen.kernel import KernelType
from ptxgen.models import load_config, model_shape
from ptxgen.models.caches import CacheForm
from ptxgen.models.plan import plan, whole_plan
from ptxgen.models.spec import load_spec, model_spec
from ptxgen.targets import target
from tests.support import sweep
from tests.support.marks import needs_assembler

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
MODELS = sorted(p.stem for p in CONFIGS.glob("*.json"))
ROLES = {
    "rope_append", "attention", "choose", "split attention", "merge of splits", "rotate", "append", "copy to slot",
    "copy from slot",
}  # fmt: skip
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")


def steps(model: str, where: str = "sm_90", **options: str) -> dict[str, list[Any]]:
    """The steps of a model, by kernel type."""
    found: dict[str, list[Any]] = {}
    for step in plan(load_config(CONFIGS / f"{model}.json"), where, **options):
        found.setdefault(step.spec.kernel_name, []).append(step)
    return found


def fields(spec: KernelType, *names: str) -> tuple[object, ...]:
    return tuple(getattr(spec, name) for name in names)


@pytest.mark.parametrize(("number", "model"), list(enumerate(MODELS)))
def test_every_kernel_of_every_model_on_every_target(number: int, model: str) -> None:
    """Every target has a plan; the texts are made for one target of each model in turn, in a sweep for all."""
    shape = load_config(CONFIGS / f"{model}.json")
    plans = {where: plan(shape, where) for where in TARGETS}
    for where in TARGETS if sweep.ALL else (TARGETS[number % len(TARGETS)],):
        files = bundle(shape, plans[where])
        index = json.loads(files[INDEX])
        assert {k["role"] for k in index["kernels"]} == ROLES
        assert {f for k in index["kernels"] for f in (k["file"], k["manifest"])} == files.keys() - {INDEX}
        for kernel in index["kernels"]:
            assert f".target {where}\n" in files[kernel["file"]]
            assert json.loads(files[kernel["manifest"]])["target"] == where


@needs_assembler
@pytest.mark.parametrize(("number", "model"), list(enumerate(MODELS)))
def test_no_kernel_of_a_model_spills(number: int, model: str) -> None:
    """On the lowest target, which has the fewest means, or on one of the others in turn; in a sweep on all."""
    spilling = []
    others = TARGETS[1:]
    for where in TARGETS if sweep.ALL else ("sm_75" if number % 2 else others[number // 2 % len(others)],):
        for step in plan(load_config(CONFIGS / f"{model}.json"), where):
            ptx = generate(step.spec, where)
            taken = assemble(ptx.text, where).resources[ptx.entry]
            if not taken.clean:
                spilling.append((where, step.spec.kernel_name, step.spec.slug, taken.stack))
    assert not spilling


@pytest.mark.parametrize("model", MODELS)
def test_a_decode_step_takes_few_modules_and_serves_every_layer(model: str) -> None:
    """At most 20 modules a decode step; and each layer has its append and its attention once."""
    shape = load_config(CONFIGS / f"{model}.json")
    in_step = [s for s in plan(shape, "sm_90") if s.step_layers]
    assert len(in_step) <= 20
    for kernels in (("rope_kv_append", "kv_cache_scatter"), ("incremental_attention",)):
        served = sorted(layer for s in in_step if s.spec.kernel_name in kernels for layer in s.step_layers)
        assert served == list(range(shape.n_layers)), kernels


def test_llama_takes_its_facts_to_the_specs() -> None:
    found = steps("llama-3.1-8b")
    (attention, batched) = (s.spec for s in found["incremental_attention"])
    assert [s.steps for s in found["incremental_attention"]] == [("decode",), ("batch",)]
    assert fields(attention, "max_len", "head_dim", "n_heads", "n_kv_heads") == (131072, 128, 32, 8)
    assert fields(attention, "scale", "soft_cap", "window", "indirect", "batched") == (None, 0.0, 0, True, False)
    assert attention.q_dtype.name == attention.kv_dtype.name == "bf16"
    assert batched.batched
    append = found["rope_kv_append"][0].spec
    assert fields(append, "theta", "style", "scaling", "factor") == (500000.0, "neox", "llama3", 8.0)
    assert fields(found["arg_max"][0].spec, "n", "dtype") == (128256, f32)


def test_gemma2_has_a_kernel_for_each_kind_of_layer() -> None:
    sliding, full = [s for s in steps("gemma-2-27b")["incremental_attention"] if not s.spec.batched]
    assert fields(sliding.spec, "window", "soft_cap") == (4096, 50.0)
    assert fields(full.spec, "window", "soft_cap") == (0, 50.0)
    assert full.spec.scale == pytest.approx(1 / 12)
    assert sliding.layers[:3] == (0, 2, 4)
    (append,) = [s for s in steps("gemma-2-27b")["rope_kv_append"] if not s.spec.batched]  # RoPE is the same
    assert append.layers == tuple(range(46))


def test_gemma3_rotates_its_kinds_of_layers_differently() -> None:
    sliding, full = [s.spec for s in steps("gemma-3-4b")["rope_kv_append"] if not s.spec.batched]
    assert fields(sliding, "theta", "scaling") == (10000.0, "default")
    assert fields(full, "theta", "scaling", "factor") == (1000000.0, "linear", 8.0)


def test_layers_without_rope_only_append() -> None:
    scatter, batched = steps("smollm3-3b")["kv_cache_scatter"]
    assert (batched.steps, batched.layers) == (("batch",), scatter.step_layers)
    assert scatter.step_layers == (3, 7, 11, 15, 19, 23, 27, 31, 35)
    (append, _) = steps("smollm3-3b")["rope_kv_append"]
    assert not set(append.layers) & set(scatter.step_layers)
    (llama,) = steps("llama-3.1-8b")["kv_cache_scatter"]
    assert llama.step_layers == ()


def test_phi_rotates_a_part_of_a_head() -> None:
    assert fields(steps("phi-2")["rope_kv_append"][0].spec, "head_dim", "rotary_dim") == (80, 32)


def test_the_cache_may_have_another_element_type() -> None:
    attention = steps("llama-3.1-8b", kv_dtype="int8")["incremental_attention"][0].spec
    assert (attention.q_dtype.name, attention.kv_dtype.name) == ("bf16", "s8")


def test_what_a_target_lacks_is_refused_once() -> None:
    with pytest.raises(SpecError) as refused:
        plan(load_config(CONFIGS / "phi-2.json"), "sm_70")
    assert str(refused.value) == "target: must be sm_75 or later (got sm_70; nearest: sm_75)"  # of all, said once


def test_equal_kernels_are_one() -> None:
    """Sliding and full layers share what knows no window."""
    shape = load_config(CONFIGS / "gemma-2-9b.json")
    found = [(type(s.spec), s.spec) for s in plan(shape, "sm_80")]
    assert len(found) == len(set(found))
    (scatter,) = steps("gemma-2-9b")["kv_cache_scatter"]
    assert scatter.layers == tuple(range(42))


def test_the_whole_model_in_pages() -> None:
    """A batch's caches, and attention of prompts over them; a sequence by itself keeps its rows, in rings, which many
    queries read, or few."""
    model = load_spec(CONFIGS / "gemma-3-4b.json", 8192)
    form = CacheForm(page_size=32, page_layout="nhd", rings=64)
    steps = whole_plan(model, "q8_0", "sm_90", form=form)
    found: dict[tuple[str, str, int], Any] = {
        (step, s.spec.kernel_name, s.layers[0]): s.spec for s in steps for step in s.steps if s.layers
    }
    for layer, window in ((0, 1024), (5, 0)):
        batch = [found["batch", name, layer] for name in ("rope_kv_append", "incremental_attention")]
        assert {(spec.page_size, spec.page_layout, spec.ring) for spec in batch} == {(32, "nhd", 0)}
        decode = found["decode", "incremental_attention", layer]
        assert (decode.window, decode.page_size, decode.ring > 0) == (window, 0, window > 0)
        prompts: list[Any] = [
            s.spec for s in steps if s.role == "attention" and s.steps == ("prefill",) and layer in s.layers
        ]
        assert sorted((spec.batched, spec.page_size) for spec in prompts) == [(False, 0), (True, 0), (True, 32)]


@pytest.mark.parametrize("strategy", ["tensor", "attn_head"])
def test_a_cache_with_scales_of_its_own(strategy: str) -> None:
    """In its own type every kernel on it takes the scales, a number per KV head; in another none does."""
    config = json.loads((CONFIGS / "tinyllama-1.1b.json").read_text())
    config["quantization_config"] = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": strategy}}
    with pytest.warns(ConfigWarning, match="takes scales with --kv-dtype e4m3"):
        shape = model_shape(config)
    for kv_dtype, scaled in (("e4m3", True), ("f16", False), (None, False)):
        for step in plan(shape, "sm_90", kv_dtype, CacheForm(page_size=16)):
            given = {p.name: p.shape for p in step.spec.params() if p.name in ("k_scale", "v_scale")}
            on_cache = "k_cache" in {p.name for p in step.spec.params()} or step.spec.kernel_name.startswith("multi")
            reads = on_cache and step.spec.kernel_name != "kv_cache_gather"
            assert given == (dict.fromkeys(("k_scale", "v_scale"), (4,)) if scaled and reads else {}), step.spec


def test_whole_models_refuse_a_cache_with_scales() -> None:
    """Nothing there takes them: no kernels of another model are written, and none loads."""
    config = json.loads((CONFIGS / "tinyllama-1.1b.json").read_text())
    config["quantization_config"] = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}
    with pytest.warns(ConfigWarning, match="refused with --weights"):
        model = model_spec(config, max_len=64)
    with pytest.raises(SpecError, match=r"^kv_dtype: .*bf16, f16 or f32 would work.* \(got e4m3\)$"):
        whole_plan(model, "q8_0", "sm_90", "e4m3")
    assert whole_plan(model, "q8_0", "sm_90")


def test_a_shape_that_no_kernel_takes_is_refused() -> None:
    shape = dataclasses.replace(load_config(CONFIGS / "phi-2.json"), head_dim=100)
    with pytest.raises(SpecError, match="head_dim: must be a multiple of 8"):
        plan(shape, target("sm_80"))


def test_with_a_weight_format_it_is_every_kernel_of_the_model(tmp_path: Path) -> None:
    model = load_spec(CONFIGS / "smollm3-3b.json", 4096)
    steps = whole_plan(model, "q4_k", "sm_90")
    kinds = {s.spec.kernel_name for s in steps}
    assert kinds >= {"embedding", "gemv", "pack_digits", "digit_gemm", "rope_kv_append", "kv_cache_scatter", "arg_max"}
    in_step = [s for s in steps if s.in_step]
    assert len(in_step) <= 20
    served = sorted(layer for s in in_step if s.role in ("qkv_append", "append") for layer in s.step_layers)
    assert served == list(range(36))
    config = str(CONFIGS / "tinyllama-1.1b.json")
    options = ["--config", config, "--weights", "q8_0", "--target", "sm_80", "--max-len", "512", "-o", str(tmp_path)]
    assert invoke(["generate", *options]) == 0
    index = json.loads((tmp_path / INDEX).read_text())
    assert {k["kernel_type"] for k in index["kernels"] if k["in_decode_step"]} >= {"embedding", "gemv", "next_token"}
    with pytest.raises(SpecError, match=r"q4_k: cols: must be a multiple of 256"):
        whole_plan(dataclasses.replace(model, hidden=11000), "q4_k", "sm_90")
    with pytest.raises(SpecError, match=r"k: must be at most \d+ on sm_75"):
        whole_plan(dataclasses.replace(model, hidden=16384), "f16", "sm_75")
    wide = whole_plan(dataclasses.replace(model, hidden=28672), "q8_0", "sm_120")
    assert {type(each.spec).__name__ for each in wide if each.role == "down_proj"} == {"Gemm"}


def test_generate_config_writes_a_directory_that_golden_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, config = tmp_path / "kernels", str(CONFIGS / "tinyllama-1.1b.json")
    options = ["--target", "sm_80", "--target", "sm_90", "--max-len", "512", "--kv-dtype", "f16"]
    assert invoke(["generate", "--config", config, *options, "-o", str(out)]) == 0
    assert f"to {out}" in capsys.readouterr().err
    index = json.loads((out / INDEX).read_text())
    assert {k["target"] for k in index["kernels"]} == {"sm_80", "sm_90"}
    assert (index["model"]["family"], index["model"]["max_len"]) == ("llama", 512)
    assert invoke(["verify", str(out), "--json"]) == 0
    assembled = json.loads(capsys.readouterr().out)
    assert len(assembled) == len(index["kernels"])
    assert {(r["spill_stores"], r["spill_loads"], r["stack"]) for r in assembled} == {(0, 0, 0)}
    assert invoke(["golden", "update", "--root", str(out)]) == 0
    assert [str(f) for f in Goldens(out).check()] == []
    (out / index["kernels"][0]["manifest"]).unlink()
    assert [f.kind for f in Goldens(out).check()] == ["missing"]


def test_generate_config_prints_its_index_for_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(CONFIGS / "tinyllama-1.1b.json")
    assert invoke(["generate", "--config", config, "--target", "sm_80", "-o", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr().out
    assert shown == (tmp_path / INDEX).read_text()
    index = json.loads(shown)
    assert index["model"]["max_len"] == 2048
    assert {k["spec"]["kv_dtype"] for k in index["kernels"] if "kv_dtype" in k["spec"]} == {"bf16"}


def test_export_of_a_model(tmp_path: Path) -> None:
    config = str(CONFIGS / "tinyllama-1.1b.json")
    options = ["--target", "sm_80", "--max-len", "512", "--no-cubin"]
    assert invoke(["export", "--config", config, *options, "-o", str(tmp_path)]) == 0
    kernels = json.loads((tmp_path / "manifest.json").read_text())["kernels"]
    assert len(kernels) == len(plan(load_config(config, 512), "sm_80"))
