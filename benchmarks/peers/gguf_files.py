"""GGUF files of models with random weights, for programs that read nothing else. Needs the package `gguf`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.cases.models import RandomModel
from ptxgen.models.files.modelfile import is_vector

NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "q_proj": "attn_q", "k_proj": "attn_k",
    "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
    "down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def write_gguf(path: Path, model: RandomModel) -> Path:
    """A file with the same shapes, formats and values; its tokenizer is none."""
    import gguf

    spec, shape = model.spec, model.spec.shape
    writer = gguf.GGUFWriter(path, shape.family)
    writer.add_context_length(shape.max_len)
    writer.add_embedding_length(spec.dim)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(spec.hidden)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    rope = spec.layer(0).rope
    assert rope is not None
    writer.add_rope_freq_base(rope.theta)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")
    for name, info in model.tensors.items():
        (values,) = model.read(name).values()
        kind = gguf.GGMLQuantizationType[info.format.upper()]
        data = values if is_vector(name) else np.ascontiguousarray(values).view(np.uint8)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """A tensor's name in the file."""
    at, _, last = name.removesuffix(".bias").rpartition(".")
    layer = f"blk.{at.removeprefix('layers.')}." if at else ""
    return f"{layer}{NAMES[last]}.{'bias' if name.endswith('.bias') else 'weight'}"
