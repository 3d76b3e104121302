"""Step 3 of 3, on a CPU: weights and tokenizer -> GGUF files that llama.cpp reads, in F16 and Q8_0.

    python export.py build weights.npz ../models

Reads `build/tokenizer.json`; writes `kjv-f16.gguf`, `kjv-q8_0.gguf` and `tokenizer.json`. Needs numpy and gguf.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

HERE = Path(__file__).parent
KINDS = {
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{NAMES[parts[2]]}.weight"
    return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[parts[0]]


def adjacent_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head from split halves to adjacent pairs: llama.cpp rotates pairs in files of the llama family."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def write_settings(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_name("King James Bible 1.9M")
    writer.add_description("A small Llama trained on the King James Bible; an example model of ptxgen")
    writer.add_license("MIT")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])


def write_vocabulary(writer: gguf.GGUFWriter, tokenizer: dict, config: dict) -> None:
    special = {entry["id"] for entry in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([text for text, _ in tokens])
    types = (gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for _, number in tokens)
    writer.add_token_types([int(kind) for kind in types])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(True)


def write(path: Path, kind: str, config: dict, tokenizer: dict, weights: dict[str, np.ndarray]) -> None:
    data_type, file_type = KINDS[kind]
    writer = gguf.GGUFWriter(path, "llama")
    write_settings(writer, config)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    write_vocabulary(writer, tokenizer, config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in weights.items():
        part = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if part in heads:
            weight = adjacent_pairs(weight, heads[part])
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name), weight.astype(np.float32))
        else:
            writer.add_tensor(gguf_name(name), quantize(weight, data_type), raw_dtype=data_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(prepared: Path, weights_file: Path, out: Path) -> None:
    config = json.loads((HERE / "config.json").read_text())
    tokenizer = json.loads((prepared / "tokenizer.json").read_text())
    with np.load(weights_file) as file:
        weights = {name: np.ascontiguousarray(file[name], np.float32) for name in file.files}
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(prepared / "tokenizer.json", out / "tokenizer.json")
    for kind in KINDS:
        path = out / f"kjv-{kind}.gguf"
        write(path, kind, config, tokenizer, weights)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
