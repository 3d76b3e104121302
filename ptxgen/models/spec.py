"""`ModelSpec`: everything of a model but its weights. Owns the table of what a family's block is made of.

A file reader makes one with `model_spec` from a Hugging Face `config.json`, or from the same keys gathered elsewhere;
`tensors` then says which weights it has to find, by name and shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ptxgen.errors import SpecError, brief
from ptxgen.files.jsonfields import Fields
from ptxgen.models.config.fields import check_family, config_fields, config_file, read_config
from ptxgen.models.config.keys import MODEL, check
from ptxgen.models.config.reader import model_shape
from ptxgen.models.config.shape import LayerKind, ModelShape

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu",
}  # fmt: skip
QKV = ("q_proj", "k_proj", "v_proj")
ATTENTION = (*QKV, "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Block:
    """What the layers of a family are made of.

    Norms are named as in the files, "" for none: `attention_norm` and `mlp_norm` stand before the two parts of a layer,
    `attention_post_norm` and `mlp_post_norm` on their results, before these are added. An RMS norm multiplies by
    `norm_offset` + weight. `qk_norm`: "head" norms every head of q and k, "row" all heads of a token together.
    `activation` is the default and `activation_key` where a config says another one. `biases`: of these products
    always; `attention_bias`, `mlp_bias`: where the config's switch of that name is on. `scaled_embedding`: times
    √hidden_size. `soft_capped`: the config may cap the logits. `fused`: files hold qkv_proj and gate_up_proj.
    """

    attention_norm: str = "input_layernorm"
    attention_post_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_post_norm: str = ""
    norm_offset: float = 0.0
    norm_eps: float = 1e-6
    qk_norm: str = ""
    activation: str = "silu"
    activation_key: str = "hidden_act"
    biases: tuple[str, ...] = ()
    attention_bias: bool = False
    mlp_bias: bool = False
    scaled_embedding: bool = False
    soft_capped: float = 0.0
    fused: bool = False
    tied: bool = False

    @property
    def keys(self) -> frozenset[str]:
        """What of `ptxgen.models.config.keys.MODEL` it reads."""
        switched = {"attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
        found = {key for key, on in switched.items() if on}
        return frozenset(found | ({"final_logit_softcapping"} if self.soft_capped else set()))


_FOUR_NORMS = {
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
_GEMMA = {
    "norm_offset": 1.0, "activation": "gelu_pytorch_tanh", "activation_key": "hidden_activation",
    "scaled_embedding": True, "tied": True, "attention_bias": True,
}  # fmt: skip
BLOCKS: dict[str, Block] = {
    "llama": Block(attention_bias=True, mlp_bias=True),
    "mistral": Block(),
    "qwen2": Block(biases=QKV),
    "qwen3": Block(qk_norm="head", attention_bias=True),
    "gemma": Block(**_GEMMA),  # type: ignore[arg-type]
    "gemma2": Block(**_GEMMA, **_FOUR_NORMS, soft_capped=30.0),  # type: ignore[arg-type]
    "gemma3_text": Block(**_GEMMA, **_FOUR_NORMS, qk_norm="head"),  # type: ignore[arg-type]
    "gemma3": Block(**_GEMMA, **_FOUR_NORMS, qk_norm="head"),  # type: ignore[arg-type]
    "phi3": Block(norm_eps=1e-5, fused=True),
    "smollm3": Block(attention_bias=True, mlp_bias=True, tied=True),
    "olmo2": Block(
        attention_norm="", attention_post_norm="post_attention_layernorm", mlp_norm="",
        mlp_post_norm="post_feedforward_layernorm", norm_eps=1e-5, qk_norm="row", attention_bias=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ModelSpec:
    """A model without its weights. `dim` is the residual stream's width, `hidden` the feed-forward part's.

    `biases` names the products that have one, `head_bias` says that the logits have one. `soft_cap` 0 is none, of the
    logits (attention's is `shape.soft_cap`).
    `rope_style`: "neox" rotates halves of a head, as in every Hugging Face file; "norm" adjacent pairs, as in llama2.c
    checkpoints and in GGUF files of the llama family.
    """

    shape: ModelShape
    block: Block
    dim: int
    hidden: int
    norm_eps: float
    activation: str
    biases: tuple[str, ...]
    tied: bool
    embedding_scale: float = 1.0
    soft_cap: float = 0.0
    rope_style: str = "neox"
    head_bias: bool = False

    def layer(self, index: int) -> LayerKind:
        """What layer `index` does about windows and RoPE."""
        for kind in self.shape.kinds:
            if index in kind.layers:
                return kind
        raise SpecError(f"layer: must be from 0 to {self.shape.n_layers - 1} (got {index!r})")

    @property
    def head(self) -> str:
        """The matrix whose product are the logits."""
        return "embed_tokens" if self.tied else "lm_head"

    @property
    def q_width(self) -> int:
        """Elements of a token's queries."""
        return self.shape.n_heads * self.shape.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys, and of its values."""
        return self.shape.n_kv_heads * self.shape.head_dim

    def products(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer, `[outputs, inputs]` by name; as the Program knows them, never fused."""
        return {
            "q_proj": (self.q_width, self.dim),
            "k_proj": (self.kv_width, self.dim),
            "v_proj": (self.kv_width, self.dim),
            "o_proj": (self.dim, self.q_width),
            "gate_proj": (self.hidden, self.dim),
            "up_proj": (self.hidden, self.dim),
            "down_proj": (self.dim, self.hidden),
        }

    def norms(self) -> dict[str, int]:
        """The norms of a layer with their widths."""
        block, head = self.block, self.shape.head_dim
        named = (block.attention_norm, block.attention_post_norm, block.mlp_norm, block.mlp_post_norm)
        found = {name: self.dim for name in named if name}
        if block.qk_norm:
            q, k = (head, head) if block.qk_norm == "head" else (self.q_width, self.kv_width)
            found |= {"q_norm": q, "k_norm": k}
        return found

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that a file of this model holds, by name: `(rows, cols)` of a matrix, `(n,)` of a vector."""
        products = self.products()
        if self.block.fused:
            parts = {"qkv_proj": QKV, "gate_up_proj": ("gate_proj", "up_proj")}
            for name, members in parts.items():
                shapes = [products.pop(member) for member in members]
                products[name] = (sum(rows for rows, _ in shapes), self.dim)
        found: dict[str, tuple[int, ...]] = {"embed_tokens": (self.shape.vocab, self.dim)}
        for layer in range(self.shape.n_layers):
            at = f"layers.{layer}."
            found |= {at + name: shape for name, shape in products.items()}
            found |= {f"{at}{name}.bias": (self.products()[name][0],) for name in self.biases}
            found |= {at + name: (width,) for name, width in self.norms().items()}
        found["norm"] = (self.dim,)
        if not self.tied:
            found["lm_head"] = (self.shape.vocab, self.dim)
        if self.head_bias:
            found["lm_head.bias"] = (self.shape.vocab,)
        return found


def model_spec(
    config: object,
    source: str = "config",
    max_len: int | None = None,
    *,
    strict: bool = False,
    warn: Callable[[str], None] | None = None,
) -> ModelSpec:
    """The model that a parsed `config.json` describes; `max_len` replaces its longest context.

    Raises `SpecError` naming the file, the key and the value, or the families that are covered; `strict`: for what is
    only warned of, too. `warn`: what takes warnings, which are `ConfigWarning`s without it.
    """
    check_family(config, source, BLOCKS, " to decode")
    shape = model_shape(config, source, max_len, strict=strict, warn=warn)
    read, _ = config_fields(config, source)
    block = BLOCKS[shape.family]
    check(read.values, block.keys, MODEL, source, shape, read.values)
    dim = read.count("hidden_size")
    biases = set(block.biases)
    if block.attention_bias and read.flag("attention_bias"):
        biases |= set(ATTENTION)
    if block.mlp_bias and read.flag("mlp_bias"):
        biases |= set(MLP)
    if block.fused and biases:
        raise SpecError(f"{source}: biases of fused products are not covered (got {', '.join(sorted(biases))})")
    tied = read.values.get("tie_word_embeddings")
    return ModelSpec(
        shape=shape,
        block=block,
        dim=dim,
        hidden=read.count("intermediate_size"),
        norm_eps=read.number("rms_norm_eps", block.norm_eps),
        activation=_activation(read, block),
        biases=tuple(name for name in (*ATTENTION, *MLP) if name in biases),
        tied=block.tied if tied is None else read.flag("tie_word_embeddings"),
        embedding_scale=math.sqrt(dim) if block.scaled_embedding else 1.0,
        soft_cap=_soft_cap(read, block),
    )


def load_spec(path: str | Path, max_len: int | None = None, *, strict: bool = False) -> ModelSpec:
    """The model whose `config.json` lies at `path`, or in that folder."""
    file = config_file(path)
    return model_spec(read_config(file), str(file), max_len, strict=strict)


def _soft_cap(read: Fields, block: Block) -> float:
    """The logits' cap: null in a config means none, and only an absent key the family's default."""
    key = "final_logit_softcapping"
    if not block.soft_capped or (key in read.values and read.values[key] is None):
        return 0.0
    return read.number(key, block.soft_capped)


def _activation(read: Fields, block: Block) -> str:
    """Our name of the feed-forward part's activation."""
    name = read.values.get(block.activation_key)
    name = block.activation if name is None else name
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise SpecError(f"{read.source}: {block.activation_key}: must be one of {known} (got {brief(name)})")
    return _ACTIVATIONS[name]
