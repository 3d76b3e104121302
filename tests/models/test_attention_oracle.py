"""Every family's attention equals that of transformers' own classes: heads, windows, scales, rotation, outputs.

The record was made by `tests.tools.record_attention`; where torch and transformers are installed, the classes are asked
themselves.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from ptxgen.models import FAMILIES, ModelShape, model_shape
from ptxgen.models.plan import Step, plan
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from tests.support.config_cases import CASES, LIKE_LLAMA
from tests.tools.record_attention import FAR, POSITIONS, RECORD, drawn, record

RECORDED: dict[str, Any] = json.loads(RECORD.read_text())["cases"]
LENGTH = len(POSITIONS)


def shape_of(name: str, max_len: int = 0) -> ModelShape:
    config, asked = CASES[name]
    return dataclasses.replace(model_shape(config, name, max_len or asked), dtype="f32")


def step_of(steps: tuple[Step, ...], kernel: str, layer: int, **fields: object) -> Any:
    """The kernel of that type which serves a layer."""
    (found,) = (
        step.spec
        for step in steps
        if step.spec.kernel_name == kernel
        and layer in step.layers
        and all(getattr(step.spec, name) == value for name, value in fields.items())
    )
    return found


def compare(name: str, theirs: dict[str, Any]) -> None:
    """Our kernels of a case do what its layers did there."""
    shape = shape_of(name)
    steps = plan(shape, "sm_90")
    assert len(theirs["layers"]) == shape.n_layers
    for layer, number in enumerate(theirs["layers"]):
        if theirs["layers"].index(number) == layer:  # the first of its kind
            compare_layer(shape, steps, layer, theirs["kinds"][number])
    ours = [next(i for i, kind in enumerate(shape.kinds) if layer in kind.layers) for layer in range(shape.n_layers)]
    pairs = set(zip(ours, theirs["layers"], strict=True))
    assert len(pairs) == len(shape.kinds) == len(theirs["kinds"]), "layers are grouped alike"


def compare_layer(shape: ModelShape, steps: tuple[Step, ...], layer: int, theirs: dict[str, Any]) -> None:
    kind = next(kind for kind in shape.kinds if layer in kind.layers)
    assert (shape.n_heads, shape.n_kv_heads, shape.head_dim) == tuple(
        theirs[key] for key in ("heads", "kv_heads", "head_dim")
    )
    assert kind.window == max(theirs["window"], 0)
    scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
    assert scale == pytest.approx(theirs["scale"], rel=1e-5)
    assert shape.soft_cap == pytest.approx(theirs["cap"])
    assert shape.sinks is theirs["sinks"]
    query, rotated = np.array(theirs["query"]), np.array(theirs["rotated"])
    if kind.rope is not None:
        assert kind.rope.attention_factor == pytest.approx(theirs["factor"], rel=1e-5)
        query[: kind.rope.rotary_dim] /= theirs["factor"]
        query = turned(step_of(steps, "rope", layer), query)
    # transformers takes angles in f32: there they are off by up to 6e-5
    np.testing.assert_allclose(query, rotated, atol=1.5e-4 * np.abs(rotated).max())
    if "out" in theirs:
        for kernel in ("incremental_attention", "multi_head_attention"):
            spec = step_of(steps, kernel, layer, batched=False)
            small = dataclasses.replace(spec, max_len=32, window=min(spec.window, 32))  # a cache that is soon made
            found = attended(shape, small)
            np.testing.assert_allclose(found, theirs["out"], atol=2e-5, err_msg=kernel)


def turned(rope: Any, query: np.ndarray) -> np.ndarray:
    """A query of one head through the reference of the kernel that rotates."""
    rows = np.tile(query.astype(np.float32), (1, rope.n_heads, 1))
    keys = {"k": rows[:, : rope.n_kv_heads]} if rope.n_kv_heads else {}
    return np.asarray(rope.reference(q=rows, position=FAR, **keys)["q"][0, 0])


def arguments_of(shape: ModelShape, spec: Any) -> dict[str, Any]:
    """The numbers that the record drew, for a kernel of attention."""
    heads = (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)
    q, k, v = (drawn((1, n, LENGTH, shape.head_dim), seed)[0] for seed, n in enumerate(heads))
    decodes = spec.kernel_name == "incremental_attention"
    found: dict[str, Any] = {}
    for name, values in (("k", k), ("v", v)):
        cache = np.zeros((len(values), spec.max_len, shape.head_dim), np.float32)
        cache[:, :LENGTH] = values
        found[f"{name}_cache" if decodes else name] = cache
    if shape.sinks:
        found["sinks"] = np.linspace(-1, 1, shape.n_heads).astype(np.float32)
    one = np.array([LENGTH], np.int32)
    if decodes:
        return found | {"q": q[:, -1].astype(np.float32), "seq_len": one}
    rows = q.swapaxes(0, 1).astype(np.float32)
    return found | {"q": rows, "out": np.zeros_like(rows), "q_len": one, "kv_len": one}


def attended(shape: ModelShape, spec: Any) -> np.ndarray:
    """Head 0 of the last token, by the reference of a kernel of attention."""
    out = np.asarray(spec.reference(**arguments_of(shape, spec))["out"])
    return out[0] if out.ndim == 2 else out[-1, 0]


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_the_record(name: str) -> None:
    compare(name, RECORDED[name])


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
def test_attention_is_that_of_the_installed_classes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: transformers' models need it")
    pytest.importorskip("transformers", reason="transformers is not installed")
    for name, case in CASES.items():
        compare(name, record(*case, torch))


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2", "cohere2"])
def test_the_kernels_themselves_give_what_the_record_says(device: Device, name: str) -> None:
    """Sinks, windows, caps and neighbours that rotate, on the CPU executor; the first layer has a window."""
    shape = shape_of(name, max_len=32)
    steps = plan(shape, "sm_80")
    theirs = RECORDED[name]["kinds"][RECORDED[name]["layers"][0]]
    for kernel in ("incremental_attention", "multi_head_attention"):
        spec = step_of(steps, kernel, 0, batched=False)
        given = arguments_of(shape, spec)
        sizes = {} if "seq_len" in given else {"n_tokens": LENGTH}
        found = trial(spec, device, target="sm_80", arguments=given, **sizes).require()
        out = found.outputs["out"]
        np.testing.assert_allclose(out[0] if out.ndim == 2 else out[-1, 0], theirs["out"], atol=2e-5, err_msg=kernel)
    rope = step_of(steps, "rope", 0)
    trial(rope, device, target="sm_80", arguments=rope.example(np.random.default_rng(0))).require()


def test_every_family_has_a_case_and_one_that_leaves_out_what_it_can() -> None:
    def family(config: dict[str, Any]) -> set[str]:
        return {config["model_type"]} | ({config["text_config"]["model_type"]} if "text_config" in config else set())

    found = set().union(*(family(config) for config, _ in CASES.values()))
    same_text = {"gemma3n": "gemma3n_text", "qwen2_5_vl_text": "qwen2_5_vl"}
    assert FAMILIES.keys() - found == {*LIKE_LLAMA, *same_text}


@pytest.mark.parametrize("family", LIKE_LLAMA)
def test_families_without_a_class_read_as_llama(family: str) -> None:
    config, max_len = CASES["llama"]
    given = config | {"num_key_value_heads": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    llama, other = (model_shape(given | {"model_type": name}, max_len=max_len) for name in ("llama", family))
    assert dataclasses.replace(other, family="llama") == llama
