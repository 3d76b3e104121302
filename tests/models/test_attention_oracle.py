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
from tests.support.config_cases import CASES, LIKE_LLAMA
from tests.tools.record_attention import FAR, POSITIONS, RECORD, drawn, record

RECORDED: dict[str, Any] = json.loads(RECORD.read_text())["cases"]
LENGTH = len(POSITIONS)


def shape_of(name: str) -> ModelShape:
    config, max_len = CASES[name]
    return dataclasses.replace(model_shape(config, name, max_len), dtype="f32")


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
            found = attended(shape, step_of(steps, kernel, layer, batched=False), kernel)
            np.testing.assert_allclose(found, theirs["out"], atol=2e-5, err_msg=kernel)


def turned(rope: Any, query: np.ndarray) -> np.ndarray:
    """A query of one head through the reference of the kernel that rotates."""
    rows = np.tile(query.astype(np.float32), (1, rope.n_heads, 1))
    keys = {"k": rows[:, : rope.n_kv_heads]} if rope.n_kv_heads else {}
    return np.asarray(rope.reference(q=rows, position=FAR, **keys)["q"][0, 0])


def attended(shape: ModelShape, spec: Any, kernel: str) -> np.ndarray:
    """Head 0 of the last token, by the reference of a kernel of attention, for the numbers that the record drew."""
    heads = (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)
    q, k, v = (drawn((1, n, LENGTH, shape.head_dim), seed)[0] for seed, n in enumerate(heads))
    caches = {}
    for name, values in (("k", k), ("v", v)):
        cache = np.zeros((len(values), spec.max_len, shape.head_dim), np.float32)
        cache[:, :LENGTH] = values
        caches[name] = cache
    sinks = {"sinks": np.linspace(-1, 1, shape.n_heads).astype(np.float32)} if shape.sinks else {}
    one = np.array([LENGTH], np.int32)
    if kernel == "incremental_attention":
        held = {f"{name}_cache": cache for name, cache in caches.items()}
        return np.asarray(spec.reference(q=q[:, -1].astype(np.float32), seq_len=one, **held, **sinks)["out"][0])
    rows = q.swapaxes(0, 1).astype(np.float32)
    out = np.zeros_like(rows)
    return np.asarray(spec.reference(q=rows, out=out, q_len=one, kv_len=one, **caches, **sinks)["out"][-1, 0])


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
