"""A model in float64 NumPy, straight from its architecture: what every device has to agree with.

Shares no code with the Program and the kernels, and reads weights as plain arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ptxgen.dtypes import dtype
from ptxgen.errors import SpecError
from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.models.spec import QKV, ModelSpec


class ReferenceModel:
    """One sequence. `weights` by the names and shapes of `ModelSpec.tensors`; `kv_dtype` rounds what the cache holds
    (None: it is float64, as all the rest). `e4m3`: the matrices whose inputs are rounded to e4m3, and how many columns
    share a scale (0: a row's)."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, np.ndarray],
        kv_dtype: object = None,
        e4m3: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.spec = spec
        self._e4m3 = e4m3
        self._kv = None if kv_dtype is None else dtype(kv_dtype).numpy
        self._weights: dict[str, np.ndarray] = {}
        for name, shape in spec.tensors().items():
            if name not in weights or weights[name].shape != shape:
                got = weights[name].shape if name in weights else "none"
                raise SpecError(f"ReferenceModel: {name} must have shape {shape} (got {got})")
            self._weights[name] = np.asarray(weights[name], np.float64)
        head = (spec.shape.n_kv_heads, spec.shape.head_dim)
        self._cache = [[np.zeros((0, *head)) for _ in "kv"] for _ in range(spec.shape.n_layers)]

    @property
    def length(self) -> int:
        """How many positions its cache holds."""
        return len(self._cache[0][0])

    def rollback(self, position: int) -> None:
        """Forget the positions from `position` on."""
        self._cache = [[part[:position] for part in layer] for layer in self._cache]

    def forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Append tokens; the logits `[tokens, vocab]` after each of them."""
        spec, block = self.spec, self.spec.block
        x = self._weights["embed_tokens"][list(tokens)] * spec.embedding_scale
        for layer in range(spec.shape.n_layers):
            attended = self._attention(layer, self._norm(layer, block.attention_norm, x))
            x = x + self._norm(layer, block.attention_post_norm, attended)
            forwarded = self._mlp(layer, self._norm(layer, block.mlp_norm, x))
            x = x + self._norm(layer, block.mlp_post_norm, forwarded)
        x = self._rms(x, self._weights["norm"])
        logits = self._times(x, spec.head)
        if spec.head_bias:
            logits = logits + self._weights["lm_head.bias"]
        return np.asarray(spec.soft_cap * np.tanh(logits / spec.soft_cap) if spec.soft_cap else logits)

    def generate(self, prompt: Sequence[int], n: int) -> list[int]:
        """The `n` likeliest tokens after a prompt, one by one; the lowest among equals."""
        found: list[int] = []
        given = list(prompt)
        for _ in range(n):
            found.append(int(np.argmax(self.forward(given)[-1])))
            given = found[-1:]
        return found

    # parts of a layer -------------------------------------------------------------------------------------------------
    def _times(self, x: np.ndarray, name: str) -> np.ndarray:
        """x times a matrix."""
        if name in self._e4m3:
            x = _in_e4m3(x, self._e4m3[name])
        return np.asarray(x @ self._weights[name].T)

    def _rms(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.spec.norm_eps)
        return np.asarray(scaled * (self.spec.block.norm_offset + weight))

    def _norm(self, layer: int, name: str, x: np.ndarray) -> np.ndarray:
        return self._rms(x, self._weights[f"layers.{layer}.{name}"]) if name else x

    def _products(self, layer: int, names: tuple[str, ...], fused: str, x: np.ndarray) -> list[np.ndarray]:
        """The products of x with the matrices `names` of a layer, which the file may hold as one."""
        spec, at = self.spec, f"layers.{layer}."
        if spec.block.fused and fused:
            whole = self._times(x, at + fused)
            return np.split(whole, np.cumsum([spec.products()[name][0] for name in names])[:-1], axis=-1)
        found = [self._times(x, at + name) for name in names]
        return [
            y + self._weights[f"{at}{name}.bias"] if name in spec.biases else y
            for name, y in zip(names, found, strict=True)
        ]

    def _attention(self, layer: int, x: np.ndarray) -> np.ndarray:
        spec, shape = self.spec, self.spec.shape
        q, k, v = self._products(layer, QKV, "qkv_proj", x)
        if spec.block.qk_norm == "row":
            q, k = self._norm(layer, "q_norm", q), self._norm(layer, "k_norm", k)
        q, k, v = (part.reshape(len(x), -1, shape.head_dim) for part in (q, k, v))
        if spec.block.qk_norm == "head":
            q, k = self._norm(layer, "q_norm", q), self._norm(layer, "k_norm", k)
        kind = spec.layer(layer)
        first = self._cache[layer][0].shape[0]
        if kind.rope is not None:
            cos, sin = _angles(kind.rope, np.arange(first, first + len(x)))
            q, k = (_rotate(part, cos, sin, kind.rope.rotary_dim, spec.rope_style) for part in (q, k))
        held = self._cache[layer]
        for i, new in enumerate((k, v)):
            kept = new if self._kv is None else new.astype(np.float32).astype(self._kv).astype(np.float64)
            held[i] = np.concatenate([held[i], kept])
        out = self._attend(q, held[0], held[1], first, kind.window)
        return self._products(layer, ("o_proj",), "", out.reshape(len(x), -1))[0]

    def _attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, first: int, window: int) -> np.ndarray:
        """Row r of q is at position first + r and sees the positions up to its own, the last `window` of them."""
        shape = self.spec.shape
        group = shape.n_heads // shape.n_kv_heads
        k, v = (np.repeat(part, group, axis=1) for part in (k, v))
        scale = 1 / math.sqrt(shape.head_dim) if shape.scale is None else shape.scale
        scores = np.einsum("rhd,phd->hrp", q, k) * scale
        if shape.soft_cap:
            scores = shape.soft_cap * np.tanh(scores / shape.soft_cap)
        own, other = first + np.arange(len(q))[:, None], np.arange(len(k))[None, :]
        visible = (other <= own) & ((other > own - window) if window else True)
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed: np.ndarray = np.einsum("hrp,phd->rhd", weights / weights.sum(-1, keepdims=True), v)
        return mixed

    def _mlp(self, layer: int, x: np.ndarray) -> np.ndarray:
        gate, up = self._products(layer, ("gate_proj", "up_proj"), "gate_up_proj", x)
        return self._products(layer, ("down_proj",), "", _ACTIVATIONS[self.spec.activation](gate) * up)[0]


def _in_e4m3(x: np.ndarray, group: int) -> np.ndarray:
    """Rows rounded to e4m3, the largest of a row being 448 of its scale; that of a group is the least power of four
    with which the largest is no more."""
    columns = group or x.shape[1]
    parts = np.pad(x, ((0, 0), (0, -x.shape[1] % columns))).reshape(len(x), -1, columns)
    largest = np.abs(parts).max(-1, keepdims=True)
    scale = np.where(largest > 0, largest / 448, 1.0)
    if group:
        fraction, exponent = np.frexp(scale)
        exponent -= fraction == 0.5
        scale = np.ldexp(1.0, exponent + exponent % 2)
    rounded = (parts / scale).astype(np.float32).astype(dtype("e4m3").numpy).astype(np.float64)
    return np.asarray((rounded * scale).reshape(len(x), -1)[:, : x.shape[1]])


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * 0.5 * (1 + np.tanh(0.5 * x)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


_ACTIVATIONS = {"silu": _silu, "gelu_tanh": _gelu_tanh, "gelu": _gelu}


def _angles(rope: RopeSettings, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine `[positions, rotary_dim / 2]`."""
    frequencies = rope.theta ** (-2 * np.arange(rope.rotary_dim // 2) / rope.rotary_dim)
    if rope.freq_factors:
        frequencies = frequencies / np.array(rope.freq_factors)
    elif rope.scaling == "linear":
        frequencies = frequencies / rope.factor
    elif rope.scaling == "llama3":
        turns = rope.original_max_len * frequencies / (2 * math.pi)
        kept = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
        frequencies = frequencies * (kept + (1 - kept) / rope.factor)
    angles = positions[:, None] * frequencies
    return np.cos(angles) * rope.attention_factor, np.sin(angles) * rope.attention_factor


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, rotary_dim: int, style: str) -> np.ndarray:
    """x `[positions, heads, head_dim]` with the pairs of its first `rotary_dim` elements rotated."""
    pairs = np.arange(rotary_dim).reshape(-1, 2).T if style == "norm" else np.arange(rotary_dim).reshape(2, -1)
    one, two = x[..., pairs[0]], x[..., pairs[1]]
    out: np.ndarray = x.copy()
    cos, sin = cos[:, None], sin[:, None]
    out[..., pairs[0]], out[..., pairs[1]] = one * cos - two * sin, one * sin + two * cos
    return out
