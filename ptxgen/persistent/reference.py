"""The step in NumPy, float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxgen.idioms import activation as activations
from ptxgen.idioms import rope as rotary
from ptxgen.weights.format import separate

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.kernels.persistent_step import PersistentStep


def reference(spec: PersistentStep, a: dict[str, Any]) -> dict[str, np.ndarray]:
    """The caches and the logits afterwards; `a` by parameter name."""
    import numpy as np

    plan, position = spec.plan, int(a["position"][0])
    kind, group = plan.kind, spec.n_heads // spec.n_kv_heads
    out = {name: a[name].copy() for name in a if "_cache_" in name}

    def product(number: int, name: str, x: np.ndarray) -> list[np.ndarray]:
        made, packed = plan.products[number], a[name].reshape(-1)
        packs = separate(packed, made.records(kind)) if made.gated else (packed,)
        return [kind.values(each, made.rows, made.cols).astype(np.float64) @ x for each in packs]

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        scaled = x / np.sqrt(np.mean(x**2) + spec.eps)
        return np.asarray(scaled * (a[name].astype(np.float64) + spec.norm_offset))

    if spec.embeds:
        x = kind.values(a["table"].reshape(-1), spec.vocab, spec.dim)[int(a["token"][0])].astype(np.float64)
    else:
        x = a["x"].astype(np.float64)
    for i in range(spec.n_layers):
        (qkv,) = product(0, f"qkv_{i}", normed(x, f"norm_{i}"))
        if spec.bias:
            qkv = qkv + a[f"bias_{i}"]
        q, k, v = np.split(qkv, (plan.q_width, plan.q_width + plan.kv_width))
        at = np.array([position])
        q = rotary.rotate_rows(spec.rotation, q.reshape(1, -1, spec.head_dim), at)[0]
        k = rotary.rotate_rows(spec.rotation, k.reshape(1, -1, spec.head_dim), at)[0]
        rows = [out[f"{side}_cache_{i}"] for side in "kv"]
        seen = []
        for cache, new in zip(rows, (k, v.reshape(-1, spec.head_dim)), strict=True):
            rounded = new.astype(spec.kv_dtype.numpy)
            if position < spec.max_len:
                cache[:, position] = rounded
            before = cache[:, : min(position, spec.max_len)].astype(np.float64)
            seen.append(np.concatenate([before, rounded[:, None].astype(np.float64)], 1))
        keys, values = (np.repeat(each, group, 0) for each in seen)
        scores = np.einsum("hd,hpd->hp", q, keys) / np.sqrt(spec.head_dim)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        attended = np.einsum("hp,hpd->hd", weights, values).reshape(-1)
        x = x + product(1, f"o_{i}", attended)[0]
        gate, up = product(2, f"gate_up_{i}", normed(x, f"mlp_norm_{i}"))
        x = x + product(3, f"down_{i}", activations.reference(spec.activation, gate) * up)[0]
    logits = product(4, "head", normed(x, "norm"))[0]
    counted = int(0 <= position < spec.max_len)
    out |= {name: a[name] + np.int32(counted) for name in ("position", "length")}
    return {**out, "logits": logits.astype(np.float32), "chosen": np.array([logits.argmax()], np.int32)}
