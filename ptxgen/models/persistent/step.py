"""A decode step's Program with all layers in one op, the persistent kernel; its tensors stay the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ptxgen.errors import SpecError
from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.kernel import KernelType
from ptxgen.kernels.persistent_step import FORMATS, PersistentStep
from ptxgen.models.persistent.refusals import other_ops, other_sizes, other_value, refusal
from ptxgen.models.program import Op, Program, Ref, Tensor

# How attention is distributed over CTAs, by query heads, KV heads and head_dim, if another distribution than
# PersistentStep's default was measured to be faster (`benchmarks/results/persistent_step.jsonl`).
SHARES: Mapping[tuple[int, int, int], Mapping[str, Any]] = {
    (32, 8, 64): {"group_parts": 2},
    (12, 2, 128): {"group_parts": 3, "split_rows": 64},
}
MOST_SHARED = PersistentStep.shared_bytes  # what sm_90 and sm_100 have
EXCHANGE = "workspace.persistent_step.exchange"


def persistent(program: Program, ctas: int, shared_bytes: int = MOST_SHARED) -> Program:
    """The Program with all of its layers, the logits and the choice of the token in one op, on so many CTAs, all of
    which must run at once, each with at most `shared_bytes` of shared memory. The embedding stays an op of its own
    unless its table and the matrices have one format.

    Raises `SpecError` naming the first op that such a step does not have; then the Program's own ops are the way.
    """
    _formats(program)
    layers = _by_layer(program)
    head = {op.role: op for op in program.ops if op.layer < 0}
    for role in ("embed_tokens", "lm_head"):
        if role not in head:
            raise refusal(f"an op {role} must be there (got {', '.join(head)})")
    _spec(head["lm_head"], head["lm_head"].spec.kernel_name, bias=False)
    _only(head.keys() - {"embed_tokens", "lm_head"})
    facts, refs = _layer_facts(layers)
    facts["vocab"] = _spec(head["lm_head"], "next_token", norm="rms").n
    _like(head["lm_head"], facts, ("weights", "eps", "norm_offset"))
    embedding = head["embed_tokens"]
    facts["embeds"] = embedding.spec.weights == facts["weights"] == "bf16" and embedding.spec.scale == 1.0  # type: ignore[attr-defined]
    refs |= {"norm": head["lm_head"].tensors["norm_weight"], "head": head["lm_head"].tensors["weight"]}
    refs |= {"logits": head["lm_head"].tensors["out"], "chosen": head["lm_head"].tensors["token"]}
    refs |= {name: head["lm_head"].tensors[name] for name in ("position", "length")}
    if facts["embeds"]:
        refs |= {"token": embedding.tensors["tokens"], "table": embedding.tensors["table"]}
    else:
        refs["x"] = embedding.tensors["out"]
    shares = SHARES.get((facts["n_heads"], facts["n_kv_heads"], facts["head_dim"]), {})
    try:
        spec = PersistentStep(n_layers=len(layers), ctas=ctas, shared_bytes=shared_bytes, **facts, **shares)
    except SpecError as error:
        raise other_sizes(getattr(error, "reasons", (str(error),))) from None
    exchange = Tensor(EXCHANGE, spec.params()[-1].dtype, (spec.plan.exchange_words,), "state", zeroed=True)
    refs["exchange"] = Ref(EXCHANGE)
    step = Op(spec, {param.name: refs[param.name] for param in spec.params()}, role="step")
    ops = (step,) if facts["embeds"] else (embedding, step)
    used = {ref.tensor for op in ops for ref in op.tensors.values()}
    kept = {name: tensor for name, tensor in program.tensors.items() if name in used}
    return Program({**kept, EXCHANGE: exchange}, ops)


def _formats(program: Program) -> None:
    """Refuse weights that such a step does not read, whatever else stands against it: what a file has comes first."""
    products = [op.spec for op in program.ops if op.role != "embed_tokens"]
    found = {getattr(spec, name, "") for spec in products for name in ("weights", "v_weights")} - {""}
    if others := sorted(found - set(FORMATS)):
        raise refusal(f"weights must be in {' or '.join(FORMATS)} (got {', '.join(others)})")


def _by_layer(program: Program) -> list[dict[str, Op]]:
    """The ops of every layer by role."""
    found: dict[int, dict[str, Op]] = {}
    for op in program.ops:
        if op.layer >= 0:
            found.setdefault(op.layer, {})[op.role] = op
    return [found[layer] for layer in sorted(found)]


ROLES = ("attention", "o_proj", "gate_up", "down_proj")


def _layer_facts(layers: list[dict[str, Op]]) -> tuple[dict[str, Any], dict[str, Ref]]:
    """What all layers have in common, as fields of the step, and their tensors by its parameters."""
    facts: dict[str, Any] = {}
    refs: dict[str, Ref] = {}
    for number, layer in enumerate(layers):
        heads = layer.get("qkv_append") or layer.get("rope_append")
        product = layer.get("qkv_append") or layer.get("qkv")
        if heads is None or product is None:
            raise other_ops(f"layers.{number}", layer.keys() - ROLES)
        extra = layer.keys() - {*ROLES, heads.role, product.role}
        if getattr(heads.spec, "qk_norm", False):  # within the launch that appends
            extra |= {"q_norm", "k_norm"}
        for role in ROLES:
            if role not in layer:
                raise other_ops(f"layers.{number}", extra or layer)
        if extra:
            raise other_ops(f"layers.{number}", extra)
        mine = _facts(layer, heads, product)
        facts = facts or mine
        for name, value in mine.items():
            if value != facts[name]:
                raise refusal(f"layers.{number}: {name} must be as in layer 0, {facts[name]!r} (got {value!r})")
        refs |= {
            f"norm_{number}": product.tensors["norm_weight"], f"qkv_{number}": product.tensors["weight"],
            f"k_cache_{number}": heads.tensors["k_cache"], f"v_cache_{number}": heads.tensors["v_cache"],
            f"o_{number}": layer["o_proj"].tensors["weight"], f"down_{number}": layer["down_proj"].tensors["weight"],
            f"mlp_norm_{number}": layer["gate_up"].tensors["norm_weight"],
            f"gate_up_{number}": layer["gate_up"].tensors["weight"],
        }  # fmt: skip
        if mine["bias"]:
            refs[f"bias_{number}"] = product.tensors["bias"]
    return facts, refs


def _facts(layer: Mapping[str, Op], heads: Op, product: Op) -> dict[str, Any]:
    """Fields of the step, from the specs of a layer's ops."""
    names = {f.name for f in fields(heads.spec)}  # type: ignore[arg-type]
    if other := getattr(product.spec, "v_weights", ""):
        raise other_value(product.name, "v_weights", other)
    _spec(heads, heads.spec.kernel_name, ring=0, precise=True)
    _spec(
        layer["attention"],
        "incremental_attention",
        scale=None,
        soft_cap=0.0,
        window=0,
        alibi=False,
        sinks=False,
        ring=0,
    )
    _spec(layer["o_proj"], "gemv", bias=False, activation="", norm="", residual=True)
    gate = _spec(layer["gate_up"], "gemv", bias=False, gated=True, norm="rms", residual=False)
    down = _spec(layer["down_proj"], "gemv", bias=False, activation="", norm="", residual=True)
    qkv = _spec(product, product.spec.kernel_name, norm="rms")
    found = {"dim": down.n, "hidden": down.k, "weights": qkv.weights, "eps": qkv.eps, "norm_offset": qkv.norm_offset}
    found |= {"activation": gate.activation, "bias": qkv.bias, "style": getattr(heads.spec, "style", "norm")}
    rope = [f.name for f in fields(RopeSettings) if f.name in names]
    shape = ("head_dim", "n_heads", "n_kv_heads", "max_len", "kv_dtype")
    found |= {name: getattr(heads.spec, name) for name in (*shape, *rope)}
    for op in (layer["o_proj"], layer["gate_up"], layer["down_proj"]):
        _like(op, found, ("weights",))
    _like(layer["gate_up"], found, ("eps", "norm_offset"))
    return found


def _spec(op: Op, kernel: str, **wanted: object) -> Any:
    """An op's spec, which is of that kernel type, with these values."""
    spec: KernelType = op.spec
    if spec.kernel_name != kernel:
        raise refusal(f"{op.name} must be a {kernel} (got {spec.kernel_name})")
    for name, value in wanted.items():
        if getattr(spec, name, value) != value:
            raise other_value(op.name, name, getattr(spec, name))
    return spec


def _like(op: Op, facts: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(op.spec, name) != facts[name]:
            raise refusal(f"{op.name}: {name} must be {facts[name]!r}, as in layer 0 (got {getattr(op.spec, name)!r})")


def _only(others: set[str]) -> None:
    if others:
        raise other_ops("the model", others)
