"""The families of models whose attention is covered: a table of what a `config.json` of each leaves unsaid.

Defaults are those of transformers' configuration classes (of internlm2's and minicpm's own for these two); the tests
hold them against the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ptxgen.files.jsonfields import Fields
from ptxgen.models.config import layers
from ptxgen.models.config.layers import ByLayer


@dataclass(frozen=True)
class Scale:
    """The factor of q·k: `of(config)`, which reads `keys`; None is 1/√head_dim."""

    said: str
    of: Callable[[Fields], float | None]
    keys: tuple[str, ...] = ()


def _query_scalar(read: Fields) -> float:
    return float(read.number("query_pre_attn_scalar") ** -0.5)


def _multiplier(read: Fields) -> float:
    return read.number("attention_multiplier", 1.0)


BY_HEAD_DIM = Scale("1/√head_dim", lambda _: None)
BY_QUERY_SCALAR = Scale("query_pre_attn_scalar^-1/2", _query_scalar, ("query_pre_attn_scalar",))
BY_MULTIPLIER = Scale("attention_multiplier", _multiplier, ("attention_multiplier",))
ONE = Scale("1", lambda _: 1.0)


def _key_value_heads(read: Fields, n_heads: int) -> int:
    return read.count("num_key_value_heads", n_heads)


def _falcon_heads(read: Fields, n_heads: int) -> int:
    """`num_kv_heads` counts in the newer architecture; the older one has one head, or as many as queries."""
    if read.flag("new_decoder_architecture"):
        return read.count("num_kv_heads", n_heads)
    if read.flag("multi_query"):
        return 1
    if read.count("num_kv_heads", n_heads) != n_heads:
        raise read.error("num_kv_heads", f"must be {n_heads} without new_decoder_architecture and multi_query")
    return n_heads


@dataclass(frozen=True)
class KvHeads:
    """The number of KV heads: `of(config, query heads)`, which reads `keys`."""

    of: Callable[[Fields, int], int] = _key_value_heads
    keys: tuple[str, ...] = ("num_key_value_heads",)


@dataclass(frozen=True)
class Limit:
    """What begins behind some position, and is not covered: `of(config)` positions are without it (None: all are)."""

    key: str
    why: str
    of: Callable[[Fields], int | None]
    keys: tuple[str, ...] = ()


def _before_tuning(read: Fields) -> int | None:
    """The factor log(floor((position + 1) / floor_scale) + 1) · attn_scale + 1 is 1 for the first positions."""
    return read.count("floor_scale", 8192, least=2) - 1 if read.values.get("attn_temperature_tuning") else None


def _first_chunk(read: Fields) -> int | None:
    return read.count("attention_chunk_size", 0) or None


def _first_of_two_chunks(read: Fields) -> int | None:
    """Attention in two chunks is plain within the first, less what it shares with the second."""
    given = Fields(read.table("dual_chunk_attention_config"), f"{read.source}: dual_chunk_attention_config")
    return given.count("chunk_size") - given.count("local_size", 0, least=0) if given.values else None


def _original_context(read: Fields) -> int | None:
    """Where the frequencies of older and newer implementations part."""
    scaling = read.table("rope_scaling") or read.table("rope_parameters")
    if str(scaling.get("rope_type") or scaling.get("type") or "default") == "default":
        return None
    inner = Fields(scaling, f"{read.source}: rope_scaling")
    key = "original_max_position_embeddings"
    return read.count(key, inner.count(key, read.count("max_position_embeddings")))


CHUNKS = Limit("attention_chunk_size", "chunked attention has no kernels here", _first_chunk, ("attention_chunk_size",))
TUNING = Limit(
    "attn_temperature_tuning", "queries that grow with their position have no kernels here", _before_tuning,
    ("attn_temperature_tuning", "floor_scale", "attn_scale"),
)  # fmt: skip
DUAL_CHUNKS = Limit(
    "dual_chunk_attention_config", "chunked attention has no kernels here", _first_of_two_chunks,
    ("dual_chunk_attention_config",),
)  # fmt: skip
ORIGINAL = Limit(
    "rope_scaling", "implementations of this family differ in the frequencies of a longer context", _original_context
)


@dataclass(frozen=True)
class Family:
    """`windows`, `rotates`: by layer. `rotary`: the part of a head that rotates where a config does not say it; None:
    no config does, and all of it rotates. `rope_style`: "neox" rotates halves, "norm" neighbours; `scalings`: types of
    rope_scaling that it has, all where empty; `default_rope`: where a config says nothing of scaling. `local_theta`:
    sliding layers have a RoPE base of their own, under that key, and no scaling. `capped`: scores may be capped.
    `sinks`: every head has a logit that takes weight. `own_head_dim`: a config may state head_dim. `names`: what the
    family calls a key. `fixed`: keys with one covered value. `nested`: where a multimodal config keeps the text model,
    `inner` the family of that; `flat`: it may stand at the top as well. `note`: what a host has to know.
    """

    windows: ByLayer[int] = layers.NO_WINDOW
    rotates: ByLayer[bool] = layers.ALL_ROTATE
    rotary: float | None = None
    rope_style: str = "neox"
    scalings: tuple[str, ...] = ()
    default_rope: Mapping[str, Any] = field(default_factory=dict)
    local_theta: str = ""
    scale: Scale = BY_HEAD_DIM
    kv_heads: KvHeads = KvHeads()
    capped: bool = False
    sinks: bool = False
    own_head_dim: bool = True
    limits: tuple[Limit, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    nested: str = ""
    inner: str = ""
    flat: bool = False
    note: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> frozenset[str]:
        """What it reads of a config beyond the keys that all families do."""
        rules: tuple[Any, ...] = (self.windows, self.rotates, self.scale, self.kv_heads, *self.limits)
        found = {key for rule in rules for key in rule.keys} | set(self.fixed)
        found |= ({"rope_theta"} | ({"partial_rotary_factor"} if self.rotary else set())) - self.names.keys()
        found |= set(self.names.values())
        found |= {self.local_theta} - {""}
        found |= {"attn_logit_softcapping"} if self.capped else set()
        found |= {"head_dim"} if self.own_head_dim else set()
        return frozenset(found)


_ROPES = ("default", "linear", "llama3", "yarn", "longrope", "su", "dynamic")
_QWEN = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA3: dict[str, Any] = {
    "rope_theta": 1e6, "rope_local_base_freq": 1e4, "query_pre_attn_scalar": 256, "head_dim": 256,
    "num_key_value_heads": 4, "sliding_window": 4096, "sliding_window_pattern": 6,
    "vocab_size": 262208,
}  # fmt: skip
_GEMMA3_SIZES = {"num_attention_heads": 8, "hidden_size": 2304, "num_hidden_layers": 26}
_GEMMA3N: dict[str, Any] = {
    "rope_theta": 1e6, "rope_local_base_freq": 1e4, "head_dim": 256, "num_key_value_heads": 2, "sliding_window": 512,
    "num_kv_shared_layers": 15, "vocab_size": 262400,
}  # fmt: skip
_GEMMA3N_SIZES = {"num_attention_heads": 8, "hidden_size": 2048, "num_hidden_layers": 35}
_MISTRAL = {"num_key_value_heads": 8, "sliding_window": 4096}
_LLAMA4: dict[str, Any] = {
    "rope_theta": 5e5, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192,
    "attn_temperature_tuning": True, "floor_scale": 8192, "vocab_size": 202048,
}  # fmt: skip
_QWEN_VL = {"rope_theta": 1e6, "num_key_value_heads": 8, "sliding_window": 4096, "max_window_layers": 80}
_GLM = {"num_key_value_heads": 2, "head_dim": 128}
_GPT_OSS_ROPE = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip

_GEMMA3_TEXT = Family(layers.PATTERN, scale=BY_QUERY_SCALAR, local_theta="rope_local_base_freq", defaults=_GEMMA3)
_GEMMA3N_TEXT = Family(
    layers.BUT_EVERY_FIFTH, scale=ONE, local_theta="rope_local_base_freq",
    fixed={"num_kv_shared_layers": 0, "sliding_window_pattern": 5}, defaults=_GEMMA3N,
)  # fmt: skip
_LLAMA4_TEXT = Family(
    layers.CHUNKED_LAYERS,
    layers.LISTED,
    rope_style="norm",
    limits=(CHUNKS, TUNING),
    defaults=_LLAMA4,
    note="its norm of rotated queries and keys has no weight, so it may come before the rotation",
)
_QWEN_VL_TEXT = Family(
    layers.FROM_A_LAYER,
    scalings=(*_ROPES, "mrope"),
    own_head_dim=False,
    defaults=_QWEN_VL,
    note="positions of text, not of images",
)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(layers.EVERY_LAYER, defaults=_MISTRAL),
    "mistral3": Family(
        nested="text_config", inner="mistral",
        defaults={"num_attention_heads": 32, "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000},
    ),
    "mixtral": Family(layers.EVERY_LAYER, defaults={"rope_theta": 1e6, "num_key_value_heads": 8}),
    "qwen2": Family(layers.FROM_A_LAYER, limits=(DUAL_CHUNKS,), defaults=_QWEN),
    "qwen2_moe": Family(layers.BELOW_A_LAYER, defaults=_QWEN | {"num_key_value_heads": 16}),
    "qwen2_5_vl": Family(nested="text_config", inner="qwen2_5_vl_text", flat=True),
    "qwen2_5_vl_text": _QWEN_VL_TEXT,
    "qwen3": Family(layers.FROM_A_LAYER, defaults=_QWEN | {"head_dim": 128}),
    "qwen3_moe": Family(layers.SWITCHED, defaults={"num_key_value_heads": 4, "sliding_window": 4096}),
    "gemma": Family(defaults={"head_dim": 256, "num_key_value_heads": 16}),
    "gemma2": Family(
        layers.ALTERNATE, scale=BY_QUERY_SCALAR, capped=True,
        defaults={"head_dim": 256, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
                  "num_key_value_heads": 4, "sliding_window": 4096},
    ),
    "gemma3": Family(nested="text_config", inner="gemma3_text", defaults=_GEMMA3_SIZES),
    "gemma3_text": _GEMMA3_TEXT,
    "gemma3n": Family(nested="text_config", inner="gemma3n_text", defaults=_GEMMA3N_SIZES),
    "gemma3n_text": _GEMMA3N_TEXT,
    "phi": Family(rotary=0.5),
    "phi3": Family(
        layers.EVERY_LAYER, rotary=1.0, scalings=("default", "longrope", "su"),
        defaults={"original_max_position_embeddings": 4096},
    ),
    "phimoe": Family(
        layers.EVERY_LAYER, scalings=("default", "longrope"), limits=(ORIGINAL,),
        defaults={"rope_theta": 1e6, "num_key_value_heads": 8},
    ),
    "smollm3": Family(
        layers.UNROTATED_LAYERS, layers.LISTED, defaults={"rope_theta": 2e6, "num_key_value_heads": 4}
    ),
    "olmo2": Family(),
    "olmo3": Family(
        layers.BUT_EVERY_FOURTH, local_theta="rope_theta", fixed={"rope_theta": 500000, "sliding_window_pattern": 4},
        defaults={"rope_theta": 500000, "sliding_window": 4096},
    ),
    "granite": Family(scale=BY_MULTIPLIER),
    "granitemoe": Family(scale=BY_MULTIPLIER),
    "starcoder2": Family(layers.EVERY_LAYER, defaults={"num_key_value_heads": 2}),
    "cohere": Family(rope_style="norm", defaults={"rope_theta": 500000.0}),
    "cohere2": Family(
        layers.PATTERN, layers.SLIDING_ROTATE, rope_style="norm", own_head_dim=False,
        defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "glm": Family(rotary=0.5, rope_style="norm", defaults=_GLM),
    "glm4": Family(rotary=0.5, rope_style="norm", defaults=_GLM),
    "ernie4_5": Family(
        rope_style="norm", defaults={"rope_theta": 500000.0, "num_key_value_heads": 2, "head_dim": 128}
    ),
    "gpt_oss": Family(
        layers.ALTERNATE, sinks=True, default_rope=_GPT_OSS_ROPE,
        defaults={"rope_theta": 150000.0, "head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128},
    ),
    "exaone4": Family(
        layers.PATTERN_IF_ANY, layers.SLIDING_ROTATE_IF_ANY,
        defaults={"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "llama4": Family(
        nested="text_config", inner="llama4_text",
        defaults={"num_attention_heads": 40, "hidden_size": 5120, "num_hidden_layers": 48},
    ),
    "llama4_text": _LLAMA4_TEXT,
    "nemotron": Family(rotary=0.5),
    "falcon": Family(
        own_head_dim=False,
        kv_heads=KvHeads(_falcon_heads, ("num_kv_heads", "multi_query", "new_decoder_architecture")),
        defaults={"multi_query": True},
    ),
    "stablelm": Family(rotary=0.25, own_head_dim=False, defaults={"num_key_value_heads": 32}),
    "gpt_neox": Family(
        rotary=0.25, own_head_dim=False,
        kv_heads=KvHeads(lambda read, n_heads: n_heads, ()),
        names={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    ),
    "internlm2": Family(),
    "minicpm": Family(),
}  # fmt: skip

_CONTEXTS: Mapping[int, str] = {
    2048: "llama phi olmo2 olmo3 granite granitemoe exaone4 falcon gpt_neox internlm2 minicpm",
    4096: "phi3 starcoder2 nemotron stablelm",
    8192: "gemma gemma2 cohere cohere2",
    32768: "qwen2 qwen2_moe qwen2_5_vl_text qwen3 qwen3_moe gemma3n_text smollm3",
    131072: "mistral mixtral gemma3_text phimoe glm glm4 ernie4_5 gpt_oss llama4_text",
}
# The longest context where a config.json does not say it, by family.
CONTEXTS: Mapping[str, int] = {name: longest for longest, names in _CONTEXTS.items() for name in names.split()}
