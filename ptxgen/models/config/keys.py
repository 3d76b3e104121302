"""What the keys of a `config.json` mean to attention: tables of those that can change it and of those that cannot.

A family reads some of them (`Family.keys`) and every family the `COMMON` ones. Of the others, `CHANGES` and `STYLES`
list what would change attention, RoPE or shapes if it were there, with the values that say it is not; `MODEL` what
concerns other parts of a model; `WITHOUT_EFFECT` the rest that is known. What no table has is warned of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptxgen.errors import SpecError, brief

COMMON = frozenset(
    {
        "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
        "max_position_embeddings", "original_max_position_embeddings", "rope_scaling", "rope_parameters", "torch_dtype",
        "dtype", "quantization_config", "compression_config", "layer_types",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Key:
    """Why a key is not covered; `harmless`: values that change nothing, beside null, unless `null` is false. `same`: or
    the value that the shape has under this name; `twin`: or that this key has. `others`: whether there
    are families that it could be right in."""

    why: str
    harmless: tuple[object, ...] = ()
    null: bool = True
    same: str = ""
    twin: str = ""
    others: bool = False

    def allows(self, value: object, shape: Any, twins: Mapping[str, Any]) -> bool:
        """Whether a value changes nothing; `twins`: what keys have, read from where they count."""
        if value is None:
            return self.null
        if any(type(value) is type(one) and value == one for one in self.harmless):
            return True
        if self.twin and value == twins.get(self.twin):
            return True
        return bool(self.same) and shape is not None and value == getattr(shape, self.same)


def _differs(why: str, harmless: tuple[object, ...] = (), *, same: str = "", twin: str = "") -> Key:
    """A key that another family reads."""
    return Key(why, harmless, same=same, twin=twin, others=True)


_LATENT = Key("latent attention has no kernels here")
_HEADS = _differs("this family states its KV heads otherwise", same="n_kv_heads")
_HEAD_DIM = _differs("this family states the size of a head otherwise", same="head_dim")
_BIDIRECTIONAL = Key("attention here is causal", (False,))
_WINDOW = _differs("this family has no sliding window")
_SCALE = _differs("this family does not scale scores by it")
_THETA = _differs("this family states its RoPE base otherwise")
_PART = _differs("this family states otherwise which part of a head rotates", twin="partial_rotary_factor")
_NO_ROPE = _differs("every layer of this family rotates", (0, []))
_OTHER_LAYERS = Key("layers other than attention are not covered")
_SPARSE = Key("attention to chosen positions only has no kernels here", (False, 0))
_CHUNKED = Key("chunked attention has no kernels here", (False,))
_CROSS = Key("attention to another sequence is not covered", (False, []))
_SHARED = Key("layers that read other layers' caches are not covered", (0, 1, False))
_BY_LAYER = Key("heads that differ from layer to layer are not covered")
_AXES = Key("positions in several axes are not covered", (False,))
_LOGN = Key("scores that grow with the length have no kernels here", (False,))

CHANGES: Mapping[str, Key] = {
    "is_causal": Key("attention here is causal", (True,), null=False),  # transformers: what is not true is not causal
    "use_bidirectional_attention": _BIDIRECTIONAL, "bidirectional": _BIDIRECTIONAL, "use_prefix_lm": _BIDIRECTIONAL,
    "alibi": Key("slopes by position have no prefill here", (False,)),
    "use_alibi": Key("slopes by position have no prefill here", (False,)),
    "dual_chunk_attention_config": _CHUNKED, "dual_chunk_attention": _CHUNKED, "attention_chunk_size": _CHUNKED,
    "sliding_window": _WINDOW, "use_sliding_window": _differs("this family has no sliding window", (False,)),
    "sliding_window_size": _differs(_WINDOW.why, twin="sliding_window"), "window_size": _WINDOW,
    "attention_window": _WINDOW, "local_attention": _WINDOW,
    "sliding_window_pattern": _WINDOW, "_sliding_window_pattern": _WINDOW, "global_attn_every_n_layers": _WINDOW,
    "no_rope_layers": _NO_ROPE, "no_rope_layer_interval": _NO_ROPE, "nope_layer_interval": _NO_ROPE,
    "no_rope": _differs("every layer of this family rotates", (False,)),
    "use_rope": _differs("every layer of this family rotates", (True,)),
    "rotary": _differs("every layer of this family rotates", (True,)),
    "use_rotary_embeddings": _differs("every layer of this family rotates", (True,)),
    "attention_multiplier": _SCALE, "query_pre_attn_scalar": _SCALE, "attention_scale": _SCALE, "softmax_scale": _SCALE,
    "attn_scale": _SCALE, "logn_attention": _LOGN, "use_logn_attn": _LOGN, "attn_temperature_tuning": _LOGN,
    "scale_attn_weights": Key("scores are scaled here", (True,)),
    "scale_attn_by_inverse_layer_idx": Key("scores are scaled alike in all layers", (False,)),
    "attn_logit_softcapping": _differs("this family does not cap scores"),
    "attention_logit_cap": _differs("this family does not cap scores"),
    "attn_logit_cap": _differs("this family does not cap scores"),
    "clip_qkv": Key("clipped queries and keys are not covered"),
    "attention_sink": _differs("this family has no sinks", (False,)),
    "add_swa_attention_sink_bias": _differs("this family has no sinks", (False,)),
    "add_full_attention_sink_bias": _differs("this family has no sinks", (False,)),
    "attention_output_gate": Key("gates of attention's output are not covered", (False,)),
    "attn_output_gate": Key("gates of attention's output are not covered", (False,)),
    "gated_attention": Key("gates of attention's output are not covered", (False,)),
    "rope_theta": _THETA, "rotary_emb_base": _THETA, "rotary_base": _THETA, "rope_local_base_freq": _THETA,
    "local_rope_theta": _THETA, "global_rope_theta": _THETA, "swa_rope_theta": _THETA, "rope_base": _THETA,
    "rope_ratio": Key("scaled RoPE under this name is not covered", (1, 1.0)),
    "rotary_scaling_factor": Key("scaled RoPE under this name is not covered", (1, 1.0)),
    "use_dynamic_ntk": Key("scaled RoPE under this name is not covered", (False,)),
    "use_mrope": _AXES, "mrope_section": _AXES,
    "partial_rotary_factor": _differs("this family rotates whole heads, or has another key for the part", (1.0, 1)),
    "rotary_pct": _PART, "rope_pct": _PART, "rope_percent": _PART,
    "rotary_percent": _PART, "rotary_dim": _PART, "rotary_ndims": _PART, "rope_dim": _PART,
    "kv_lora_rank": _LATENT, "q_lora_rank": _LATENT, "qk_rope_head_dim": _LATENT, "qk_nope_head_dim": _LATENT,
    "v_head_dim": Key("values of another width than keys are not covered", same="head_dim"),
    "qk_head_dim": _HEAD_DIM, "head_dim": _HEAD_DIM, "kv_channels": _HEAD_DIM, "head_size": _HEAD_DIM,
    "attention_head_dim": _HEAD_DIM, "d_kv": _HEAD_DIM, "global_head_dim": _HEAD_DIM, "swa_head_dim": _HEAD_DIM,
    "num_key_value_heads": _HEADS, "num_kv_heads": _HEADS, "multi_query": _differs(_HEADS.why, (False,)),
    "multi_query_attention": _differs(_HEADS.why, (False,)), "multi_query_group_num": _HEADS, "n_head_kv": _HEADS,
    "num_global_key_value_heads": _HEADS, "swa_num_key_value_heads": _HEADS,
    "swa_num_attention_heads": _differs("this family states its heads otherwise", same="n_heads"),
    "new_decoder_architecture": _differs(_HEADS.why, (False,)),
    "num_kv_shared_layers": _SHARED, "cla_share_factor": _SHARED, "kv_sharing": _SHARED, "attention_k_eq_v": _SHARED,
    "per_layer_config": _BY_LAYER, "block_configs": _BY_LAYER, "num_attention_heads_per_layer": _BY_LAYER,
    "layers_block_type": _OTHER_LAYERS, "hybrid_override_pattern": _OTHER_LAYERS, "attn_type_list": _OTHER_LAYERS,
    "full_attention_interval": _OTHER_LAYERS, "attn_layer_indices": _OTHER_LAYERS, "full_attn_idxs": _OTHER_LAYERS,
    "linear_num_value_heads": _OTHER_LAYERS, "mamba_d_state": _OTHER_LAYERS, "ssm_cfg": _OTHER_LAYERS,
    "block_types": _OTHER_LAYERS, "state_size": _OTHER_LAYERS,
    "index_topk": _SPARSE, "sparse_config": _SPARSE, "sparse_attention": _SPARSE, "use_sparse_attention": _SPARSE,
    "is_encoder_decoder": _CROSS, "add_cross_attention": _CROSS, "cross_attention_layers": _CROSS,
    "differential_attention": Key("differences of attentions are not covered", (False,)),
}  # fmt: skip

ANYWHERE: Mapping[str, Key] = {name: key for name, key in CHANGES.items() if not key.others}


def _style(halves: bool) -> dict[str, Key]:
    pairs = Key(f"this family rotates {'halves of a head' if halves else 'neighbours'}", (not halves,))
    marks = ("rope", "rotary") if halves else ("rope", "rotary", "rope_gptj")
    return {
        **dict.fromkeys(("rope_interleaved", "rope_interleave", "rotary_interleaved"), pairs),
        "is_neox_style": Key(pairs.why, (halves,)),
        "position_embedding_type": Key("positions are not marked by this family's RoPE", marks),
    }


STYLES: Mapping[str, Mapping[str, Key]] = {"neox": _style(True), "norm": _style(False)}

_EXPERTS = Key("mixtures of experts are not covered", (0, 1))
_BIAS = Key("biases under this name are not covered", (False,))
_FACTOR = Key("factors of residuals, embeddings or logits are not covered", (1, 1.0))
_QK_NORM = Key("norms of queries and keys under this name are not covered", (False,))
_PARALLEL = Key("attention and feed-forward part side by side are not covered", (False,))
_NORM = Key("norms other than RMS norms are not covered")

# Other parts than attention and its cache: of no effect on their kernels. With `--weights` a value other than the
# harmless ones is refused where the family does not read it.
MODEL: Mapping[str, Key] = {
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), _EXPERTS),
    **dict.fromkeys(("use_bias", "bias", "use_qkv_bias", "lm_head_bias", "attn_bias"), _BIAS),
    **dict.fromkeys(
        ("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale", "scale_emb", "scale_depth"),
        _FACTOR,
    ),
    **dict.fromkeys(("use_qk_norm", "qk_layernorm", "qk_norm"), _QK_NORM),
    **dict.fromkeys(("use_parallel_residual", "parallel_attn"), _PARALLEL),
    **dict.fromkeys(
        ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps", "layernorm_epsilon", "norm_type"), _NORM
    ),
    "final_logit_softcapping": Key("this family does not cap logits"),
    "attention_bias": Key("this family has no biases of q, k, v and o", (False,)),
    "mlp_bias": Key("this family has no biases of the feed-forward part", (False,)),
    "qkv_bias": Key("this family states its biases otherwise", (True, False)),
    "hidden_size_per_layer_input": Key("embeddings of layers are not covered", (0,)),
    "altup_num_inputs": Key("several residual streams are not covered", (1,)),
}

# Read by `model_spec`, or beside a key of MODEL.
WHOLE = frozenset(
    {
        "intermediate_size", "rms_norm_eps", "hidden_act", "hidden_activation", "tie_word_embeddings",
        "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "decoder_sparse_step",
        "mlp_only_layers", "norm_topk_prob", "n_shared_experts", "moe_layers", "interleave_moe_layer_step",
        "intermediate_size_mlp", "swiglu_alpha", "swiglu_limit", "experts_per_token", "dim_model_base",
        "num_ln_in_parallel_attn", "ff_factor", "ffn_hidden_size", "activation",
        "apply_residual_connection_post_layernorm",
        "vocab_size_per_layer_input", "altup_active_idx", "altup_coef_clip", "altup_correct_scale", "laurel_rank",
        "activation_sparsity_pattern", "use_parallel_block", "use_parallel_embedding", "use_gated_activation",
        "use_embedding_sharing", "num_nextn_predict_layers", "mlp_type", "post_attention_layernorm",
        "reorder_and_upcast_attn",
    }
)  # fmt: skip

WITHOUT_EFFECT = frozenset(
    {
        # names and versions
        "architectures", "auto_map", "_name_or_path", "name_or_path", "transformers_version", "_commit_hash",
        "tokenizer_class", "finetuning_task", "task_specific_params", "problem_type", "id2label", "label2id",
        "num_labels", "is_llama_config", "transformers.js_config", "for_llm_compressor", "unsloth_version",
        "unsloth_fixed", "model_name", "base_model_name", "language", "license",
        # training
        "initializer_range", "initializer_factor", "attention_dropout", "attention_probs_dropout_prob",
        "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
        "hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop", "embedding_dropout",
        "residual_dropout", "residual_dropout_prob", "classifier_dropout", "pretraining_tp", "router_aux_loss_coef",
        "router_jitter_noise", "input_jitter_noise", "output_router_logits", "aux_loss_alpha", "z_loss_coefficient",
        "gradient_checkpointing", "use_fused_cross_entropy", "seq_aux", "hidden_dropout_p", "dropout",
        # how a framework runs it
        "use_cache", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
        "_flash_attn_2_enabled", "use_flash_attn", "use_flash_attention", "cache_implementation", "torchscript",
        "return_dict", "output_attentions", "output_hidden_states", "use_bfloat16", "tf_legacy_loss", "pruned_heads",
        "chunk_size_feed_forward", "use_return_dict", "is_decoder", "tie_encoder_decoder",
        "cross_attention_hidden_size",
        "experts_implementation", "use_xla", "fp32_residual", "fused_norm", "fuse_norm",
        # tokens
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "mask_token_id",
        "decoder_start_token_id", "image_token_id", "image_token_index", "video_token_id", "vision_token_id",
        "vision_start_token_id", "vision_end_token_id", "boi_token_index", "eoi_token_index", "boi_token_id",
        "eoi_token_id", "boa_token_id", "eoa_token_id", "audio_token_id", "mm_tokens_per_image",
        # how text is generated
        "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
        "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
        "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
        "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "prefix", "generation_config",
        # other parts of a multimodal model
        "vision_config", "audio_config", "text_config", "projector_hidden_act", "vision_feature_layer",
        "multimodal_projector_bias", "spatial_merge_size", "audio_soft_tokens_per_image",
        "vision_soft_tokens_per_image",
        # read only where another key switches them on, or a name that nothing reads
        "max_window_layers", "floor_scale", "initial_context_length", "order_of_interleaved_layers", "layer_switch",
        "max_sequence_length", "model_max_length", "full_attn_mod", "interpolate_factor", "compression_ratio",
        "seq_length", "n_positions", "rope_type", "dynamic_scale",
    }
)  # fmt: skip


def refusals(
    values: Mapping[str, Any], known: frozenset[str], table: Mapping[str, Key], shape: Any, twins: Mapping[str, Any]
) -> Iterator[str]:
    """Keys of a table with a value that changes what is computed, unless they are known: a reason each. `twins` and
    `shape` (None: there is none yet): as `Key.allows` takes them."""
    for name, value in values.items():
        if name in table and name not in known and not table[name].allows(value, shape, twins):
            key = table[name]
            works = list(dict.fromkeys(["absent", *(json.dumps(one) for one in key.harmless)]))
            if key.same and shape is not None:
                works.append(str(getattr(shape, key.same)))
            if twins.get(key.twin) is not None:
                works.append(json.dumps(twins[key.twin]))
            yield f"{name}: must be {' or '.join(works)}: {key.why} (got {brief(value)})"


def unknown(values: Mapping[str, Any], known: frozenset[str]) -> Iterator[str]:
    """Keys that no table has."""
    there_are = every(known)
    yield from (name for name, value in values.items() if value is not None and name not in there_are)


def every(known: frozenset[str]) -> frozenset[str]:
    """The keys of all tables, and these."""
    return known.union(COMMON, CHANGES, STYLES["neox"], MODEL, WHOLE, WITHOUT_EFFECT)


def check(
    values: Mapping[str, Any], known: frozenset[str], table: Mapping[str, Key], source: str, shape: Any,
    twins: Mapping[str, Any],
) -> None:  # fmt: skip
    """Raise `SpecError` with every refusal."""
    if found := list(refusals(values, known, table, shape, twins)):
        raise SpecError("\n".join(f"{source}: {reason}" for reason in found))
