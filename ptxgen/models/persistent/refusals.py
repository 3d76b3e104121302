"""What stands against a step in one launch, in the words of a model's config. Owns no rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ptxgen.errors import SpecError

# Ops that such a step lacks, by the role that they have in a Program, the telling ones first
_OPS: Mapping[str, str] = {
    **dict.fromkeys(("q_norm", "k_norm"), "norms of q and k"),
    **dict.fromkeys(("post_attention_layernorm", "post_feedforward_layernorm"), "norms behind attention and the MLP"),
    "soft_cap": "a cap of logits",
    "append": "q and k that do not rotate",
    "activation": "an MLP with a bias",
    "q_proj": "q, k and v that are not one matrix",
}
# Fields of an op's spec with values that such a step lacks
_FIELDS: Mapping[str, str] = {
    "window": "a window of {} positions", "soft_cap": "scores capped at {}", "sinks": "sinks", "bias": "a bias",
    "scale": "scores times {} in place of 1/√head_dim", "ring": "a ring of {} positions",
    "v_weights": "another format of v than of q and k, {}",
}  # fmt: skip
# Fields of PersistentStep that a model's config or the device has other names for
_NAMES: Mapping[str, str] = {
    "n_layers": "num_hidden_layers", "dim": "hidden_size", "hidden": "intermediate_size",
    "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads",
    "ctas": "multiprocessors of the device", "shared_bytes": "shared memory of a multiprocessor",
}  # fmt: skip


def refusal(why: str) -> SpecError:
    """The error of a model that is not to be had as such a step; `why` is a sentence."""
    return SpecError(f"Model.persistent: {why}; without it a step is a graph of launches")


def other_ops(where: str, roles: Iterable[str]) -> SpecError:
    """The error for ops that such a step lacks."""
    found = sorted(roles)
    said = list(dict.fromkeys(text for role, text in _OPS.items() if role in found))
    return refusal(f"{where} has {' and '.join(said) or ', '.join(found)}, which a persistent step lacks")


def other_value(where: str, field: str, got: object) -> SpecError:
    """The error for a field of an op's spec."""
    said = _FIELDS[field].format(got) if field in _FIELDS else f"{field}={got!r}"
    return refusal(f"{where} has {said}, which a persistent step lacks")


def other_sizes(reasons: Iterable[str]) -> SpecError:
    """The error for a model of which `PersistentStep` says `field: what must be (got …)`."""
    said = list(reasons)
    if of_cache := [reason for reason in said if reason.startswith("kv_dtype:")]:
        return SpecError(f"Model.{of_cache[0]} for a persistent step")  # an option of its own
    return refusal("; ".join(map(_in_words, said)))


def _in_words(reason: str) -> str:
    field, colon, rest = reason.partition(":")
    return f"{_NAMES.get(field, field)}{colon}{rest}"
