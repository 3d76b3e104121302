"""Records what llama.cpp makes of the shipped model and of small vocabularies.

`python -m tests.tools.record.llama_cpp` writes tests/data/llama_cpp.json. Needs llama_cpp, built from its source for
the CPU: `pip install --no-binary llama-cpp-python llama-cpp-python`. The tests compare with the record, and with
llama.cpp itself where it is installed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benchmarks.report.sentence import in_a_sentence, show_help

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "tests" / "data" / "llama_cpp.json"
MODELS = {kind: ROOT / "examples" / "models" / f"kjv-{kind}.gguf" for kind in ("f16", "q8_0")}
WIDE = "q8_0_f32"  # the values of q8_0 in f32 matrices, which llama.cpp multiplies by activations as they are
KINDS = (*MODELS, WIDE)
PROMPTS = (
    "In the beginning", "And Jesus said unto them,", "Psalms 23\nThe LORD", "Blessed are",
    "Now these are the names of", "The wicked",
)  # fmt: skip
N_TOKENS = 64
SAMPLES = (
    "In the beginning God created the heaven and the earth.",
    "And God said, Let there be light:\nand there was light.",
    "it's  we'll\tthey'VE don't 12345 3.14 x=1;\r\n\n  indented\n",
    "naïve café, Ünïcödé, 日本語のテキスト, Привет мир, 👩‍👩‍👧 emoji",
    "   leading and trailing   ",
    "one</s>two<s> three",
)


def open_llama(path: Path, **options: Any) -> Any:
    """llama.cpp's model of a file."""
    from llama_cpp import Llama

    return Llama(str(path), n_ctx=512, n_threads=2, verbose=False, **options)


def split(llama: Any, text: str, add_bos: bool = True) -> list[int]:
    """The tokens of a text."""
    return list(llama.tokenize(text.encode(), add_bos=add_bos, special=True))


def greedy(llama: Any, tokens: list[int], count: int = N_TOKENS) -> list[int]:
    """The likeliest tokens after a prompt, one by one."""
    found: list[int] = []
    llama.reset()
    for token in llama.generate(tokens, temp=0.0, top_k=1, repeat_penalty=1.0):
        found.append(int(token))
        if len(found) == count:
            break
    return found


def completions(kind: str) -> list[dict[str, Any]]:
    """Each prompt with its tokens, and those after it."""
    with tempfile.TemporaryDirectory() as folder:
        path = widened(MODELS["q8_0"], Path(folder) / "f32.gguf") if kind == WIDE else MODELS[kind]
        llama = open_llama(path)
        found = []
        for prompt in PROMPTS:
            tokens = split(llama, prompt)
            found.append({"prompt": prompt, "tokens": tokens, "next": greedy(llama, tokens)})
        return found


def widened(path: Path, out: Path) -> Path:
    """A copy of a model file with the same values, all of them in f32."""
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(out, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":  # which the writer says itself
            continue
        inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, 0 if name == "general.file_type" else field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def write_vocabulary(path: Path, fields: dict[str, Any]) -> Path:
    """A GGUF file with a vocabulary and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        name = key.removeprefix("tokenizer.ggml.")
        if name in ("model", "pre"):
            writer.add_string(key, value)
        elif name.endswith("_id"):
            writer.add_uint32(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        else:
            writer.add_array(key, [item.item() if hasattr(item, "item") else item for item in value])
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def splits(fields: dict[str, Any]) -> list[list[int]]:
    """The samples' tokens in a vocabulary."""
    with tempfile.TemporaryDirectory() as folder:
        llama = open_llama(write_vocabulary(Path(folder) / "vocabulary.gguf", fields), vocab_only=True)
        return [split(llama, sample, add_bos=False) for sample in SAMPLES]


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Metadata as JSON holds it."""
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in fields.items()}


def main() -> None:
    import llama_cpp

    from ptxgen.models.text.bytelevel import CUTS
    from tests.support.models.vocabularies import pieces, trained

    scored, merged = pieces()[0], trained("gpt-2")[0]
    record = {
        "llama_cpp": llama_cpp.__version__,
        "completions": {kind: completions(kind) for kind in KINDS},
        "pieces": {"fields": plain(scored), "splits": splits(scored)},
        "byte_level": {
            "fields": plain(merged),
            "splits": {name: splits(merged | {"tokenizer.ggml.pre": name}) for name in CUTS},
        },
    }
    RECORD.write_text(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{RECORD}: llama_cpp {llama_cpp.__version__}")


if __name__ == "__main__":
    show_help(__doc__)
    in_a_sentence(main)
