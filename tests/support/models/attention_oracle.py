"""Our kernels of a layer beside what `tests.tools.record.attention` saw transformers' layer do."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ptxgen.models import ModelShape, model_shape
from ptxgen.models.plan import Step, plan
from tests.support.models.config_cases import Config

POSITIONS = (0, 1, 2, 3, 4, 5, 6, 1000)
FAR = POSITIONS[-1]  # of the rotated query that is kept
LENGTH = len(POSITIONS)


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """The numbers that stand for q (0), k (1) and v (2)."""
    return np.random.default_rng(seed).standard_normal(shape)


def shape_of(config: Config, max_len: int | None) -> ModelShape:
    """The shape of a configuration, with a cache in f32; without `max_len` of its longest context."""
    return dataclasses.replace(model_shape(config, max_len=max_len), dtype="f32")


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


def compare(shape: ModelShape, theirs: dict[str, Any], far: int = FAR) -> None:
    """Our kernels do what the layers did there; the rotated query is at position `far`."""
    steps = plan(shape, "sm_90")
    assert len(theirs["layers"]) == shape.n_layers
    for layer, number in enumerate(theirs["layers"]):
        if theirs["layers"].index(number) == layer:  # the first of its kind
            compare_layer(shape, steps, layer, theirs["kinds"][number], far)
    ours = [next(i for i, kind in enumerate(shape.kinds) if layer in kind.layers) for layer in range(shape.n_layers)]
    pairs = set(zip(ours, theirs["layers"], strict=True))
    assert len(pairs) == len(shape.kinds) == len(theirs["kinds"]), "layers are grouped alike"


def compare_layer(shape: ModelShape, steps: tuple[Step, ...], layer: int, theirs: dict[str, Any], far: int) -> None:
    """A layer of ours, and what theirs did."""
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
        query = turned(step_of(steps, "rope", layer), query, far)
    # transformers takes angles in f32: they are off by up to 6e-8 of the position
    np.testing.assert_allclose(query, rotated, atol=1.5e-7 * far * np.abs(rotated).max())
    if "out" in theirs:
        for kernel in ("incremental_attention", "multi_head_attention"):
            spec = step_of(steps, kernel, layer, batched=False)
            small = dataclasses.replace(spec, max_len=32, window=min(spec.window, 32))  # a cache that is soon made
            found = attended(shape, small)
            np.testing.assert_allclose(found, theirs["out"], atol=2e-5, err_msg=kernel)


def turned(rope: Any, query: np.ndarray, position: int) -> np.ndarray:
    """A query of one head through the reference of the kernel that rotates."""
    rows = np.tile(query.astype(np.float32), (1, rope.n_heads, 1))
    keys = {"k": rows[:, : rope.n_kv_heads]} if rope.n_kv_heads else {}
    return np.asarray(rope.reference(q=rows, position=position, **keys)["q"][0, 0])


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
