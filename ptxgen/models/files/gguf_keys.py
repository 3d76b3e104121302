"""Metadata keys of GGUF files by architecture: what llama.cpp needs, what is read, what changes what is computed, what
has no effect. Reads no file.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.errors import ConfigWarning, brief, near, nearest
from ptxgen.models.config.fields import ALIKE
from ptxgen.models.config.warned import MOST_NEAREST


@dataclass(frozen=True)
class Arch:
    """A GGUF architecture: the family whose configuration it fills and which pairs of a head rotate ("norm": adjacent,
    its q and k rows are reordered for it).

    `keys`: further metadata keys by the configuration's. `fixed`: what llama.cpp knows without metadata. `required`:
    metadata keys that a file must have beside those of all architectures. `one_added`: its norm weights hold 1 +
    weight. `wide`: so many layers mean logits scaled by embedding / heads in place of the head's size.
    """

    family: str
    rope_style: str = "neox"
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    one_added: bool = False
    wide: int = 0


KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
# What llama.cpp refuses a file without, or (the number of heads, the feed-forward part's width) takes for 0.
REQUIRED = (
    "embedding_length", "block_count", "context_length", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)  # fmt: skip
# What llama.cpp takes for a key that is absent, where it is not what the family's configuration class does.
DEFAULTS = {"rope_theta": 10000.0, "num_key_value_heads": None}
_SLIDING = {"sliding_window": "attention.sliding_window"}
PATTERN, _LOCAL_BASE = "attention.sliding_window_pattern", "rope.freq_base_swa"
_BY_LAYER = {**_SLIDING, "layer_types": PATTERN}
SCALING = "rope.scaling."
_CAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
ARCHS: dict[str, Arch] = {
    "llama": Arch("llama", "norm"),
    "qwen2": Arch("qwen2"),
    "qwen3": Arch("qwen3"),
    "gemma": Arch("gemma", one_added=True),
    "gemma2": Arch(
        "gemma2",
        keys=_BY_LAYER | _CAPS,
        one_added=True,
        wide=46,
    ),
    "gemma3": Arch(
        "gemma3_text",
        keys=_BY_LAYER | {"rope_local_base_freq": _LOCAL_BASE},
        fixed={"rope_local_base_freq": 10000.0, "sliding_window_pattern": 6},
        required=("attention.sliding_window",),
        one_added=True,
        wide=62,
    ),
    "phi3": Arch("phi3", keys=_SLIDING),
    "smollm3": Arch("smollm3", "norm", fixed={"no_rope_layer_interval": 4}),
    "olmo2": Arch("olmo2"),
}
TABLE = "token_embd.weight"


# -- metadata that must say nothing ------------------------------------------------------------------------------------


def equals(value: Any, *others: Any) -> bool:
    """Whether a value is one of these; an array equals nothing."""
    return bool(np.isscalar(value)) and any(np.isscalar(other) and value == other for other in others)


def scaling_factor(said: Said) -> Any:
    """By its key, or by the one of older files; None without one."""
    return said.get(f"{SCALING}factor", said.get("rope.scale_linear"))


def scaling_type(said: Said) -> Any:
    """The way of scaling: linear where it is not said, and linear scaling without a factor, or with 0, is none."""
    kind, factor = said.get(f"{SCALING}type", "linear"), scaling_factor(said)
    return "none" if equals(kind, "linear") and (factor is None or equals(factor, 0)) else kind


def _only(*harmless: Any) -> _Harmless:
    return lambda value, arch, said: equals(value, *harmless)


def _no_other_windows(value: Any, arch: Arch, said: Said) -> bool:
    """All layers have the window of the architecture, or none has one where it has none; 0 was never set."""
    slides = "sliding_window" in arch.keys
    flags = value.tolist() if isinstance(value, np.ndarray) else []
    return equals(value, 0, 0 if slides else 1) or (bool(flags) and all(flag == slides for flag in flags))


def _no_other_base(value: Any, arch: Arch, said: Said) -> bool:
    """Of layers with a window; where there are such, it is the base of all."""
    return "sliding_window" not in arch.keys or equals(value, said.get(KEYS["rope_theta"], 0), 0)


def _no_other_mix(value: Any, arch: Arch, said: Said) -> bool:
    """How much yarn mixes frequencies: wholly where the type is yarn, else not at all. Below 0 was never set, and
    without scaling there is nothing to mix."""
    kind = scaling_type(said)
    return type(value) in (int, float) and (value < 0 or kind == "none" or value == (1 if kind == "yarn" else 0))


Said = Mapping[str, Any]  # the architecture's metadata, without its name before each key
_Harmless = Callable[[Any, Arch, Said], bool]
# Metadata that can change what is computed, and whether a value does not: another is not covered, but where the
# architecture has a key for it.
CHANGES: dict[str, _Harmless] = {
    **dict.fromkeys(
        (
            "expert_count", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "logit_scale",
            "residual_scale", "embedding_scale", "attention.sliding_window", *_CAPS,
        ),
        _only(0),
    ),
    **dict.fromkeys(("attention.causal", "rope.scaling.yarn_attn_factor"), _only(1)),
    PATTERN: _no_other_windows,
    _LOCAL_BASE: _no_other_base,
    "rope.scaling.yarn_ext_factor": _no_other_mix,
}  # fmt: skip


# -- metadata that there may be ---------------------------------------------------------------------------------------

# Read by llama.cpp for other architectures, for embeddings or for its own report: of no effect on what is computed.
_WITHOUT_EFFECT = (
    "vocab_size", "tensor_data_layout", "pooling_type", "classifier.output_labels", "attention.layer_norm_epsilon",
    "rope.scaling.finetuned", "expert_used_count", "expert_group_count", "expert_group_used_count",
)  # fmt: skip
# Keys of RoPE's scaling by those of a configuration's table.
_SCALING_KEYS = {
    "rope_type": "type", "type": "type", "factor": "factor",
    "original_max_position_embeddings": "original_context_length", "attention_factor": "attn_factor",
    "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow",
}  # fmt: skip
_LONGEST_KEY = 64  # that a warning shows whole
_MOST_COMPARED = 64  # unknown keys among which one is looked for that is near
_KNOWN = frozenset(
    (
        *KEYS.values(), *CHANGES, *_WITHOUT_EFFECT, *(f"{SCALING}{key}" for key in _SCALING_KEYS.values()),
        "rope.scale_linear", "rope.dimension_count", "attention.value_length",
    )
)  # fmt: skip


def warn_of_unknown(said: Said, at: str, arch: Arch) -> None:
    """A `ConfigWarning` for each key of the architecture that no table has."""
    known = _KNOWN.union(arch.keys.values())
    for count, key in enumerate(_unknown(said, arch)):
        hint = nearest(key, known, ALIKE) if count < MOST_NEAREST else ""
        name = key if len(key) <= _LONGEST_KEY and key.isprintable() else brief(key)
        warnings.warn(f"{at}{name}: is not known (got {brief(said[key])}{hint})", ConfigWarning, stacklevel=2)


def lacking(said: Said, name: str, arch: Arch) -> list[str]:
    """The required keys that a file of the architecture `name` lacks, each with an unknown one of it that is near."""
    unknown = [key for key in itertools.islice(_unknown(said, arch), _MOST_COMPARED) if key.isprintable()]
    absent = [key for key in (*REQUIRED, *arch.required) if key not in said]
    found = {key: near(key, unknown, ALIKE) for key in absent}
    return [f"{name}.{key}" + (f" (it has {name}.{other})" if other else "") for key, other in found.items()]


def _unknown(said: Said, arch: Arch) -> Iterator[str]:
    return (key for key in said if key not in _KNOWN and key not in arch.keys.values())


def in_words_of_the_file(text: str, path: Path, name: str, arch: Arch, said: Said) -> str:
    """A sentence about a configuration's key as one about the metadata or the tensor that it comes from."""
    words = {ours: f"{name}.{theirs}" for ours, theirs in {**KEYS, **arch.keys}.items()}
    words |= {"vocab_size": TABLE, "layer_types": f"{name}.{PATTERN}"}
    words |= {f"{length}_factor": f"rope_factors_{length}.weight" for length in ("long", "short")}
    words["original_max_position_embeddings"] = f"{name}.{SCALING}original_context_length"
    if KEYS["head_dim"] not in said:
        words["head_dim"] = f"{words['hidden_size']} / {words['num_attention_heads']}"

    def word(found: re.Match[str]) -> str:
        if found[1] and found[2] in _SCALING_KEYS:
            return f"{name}.{SCALING}{_SCALING_KEYS[found[2]]}"
        return words[found[2]] if found[2] in words else found[0]

    lines = []
    for line in text.splitlines():
        said_of, got, value = line.removeprefix(f"{path}: ").rpartition(" (got ")
        if not got:
            said_of, value = value, ""
        lines.append(f"{path}: {re.sub(r'(rope_scaling: )?([a-z_]+)', word, said_of)}{got}{value}")
    return "\n".join(lines)
