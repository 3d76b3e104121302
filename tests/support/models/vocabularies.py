"""Small vocabularies of both kinds, as a GGUF file's metadata and as `tokenizers` has them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ptxgen.models.text.bytelevel import CUTS
from tests.support.models.model_files import WORDS

SAMPLES = (
    "In the beginning God created the heaven and the earth.",
    "And God said, Let there be light: and there was light.\nAnd God saw the light, that it was good.",
    "it's  we'll\tthey'VE don't 12345 3.14 x=1;\r\n\n  indented\n",
    "naïve café, Ünïcödé, 日本語のテキスト, Привет мир, مرحبا, 👩‍👩‍👧 emoji",
    "   leading and trailing   ",
    "\u00a0no-break\u2028line\u0000nul",
    "",
    "a",
)
KEY = "tokenizer.ggml."


def trained(name: str) -> tuple[dict[str, Any], Tokenizer]:
    """A small byte-level vocabulary cut as `tokenizer.ggml.pre` = name says, as metadata and as tokenizers has it."""
    from tokenizers import Regex

    tokenizer = Tokenizer(models.BPE(ignore_merges=CUTS[name].whole_words))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in CUTS[name].patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(SAMPLES * 3, trainer)
    data = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(data["vocab"], key=data["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["merges"]]
    kinds = np.array([3, *([1] * (len(tokens) - 1))], np.int32)
    fields = {"model": "gpt2", "pre": name, "tokens": tokens, "merges": merges, "token_type": kinds, "eos_token_id": 0}
    return {KEY + key: value for key, value in fields.items()}, tokenizer


def pieces(samples: tuple[str, ...] = SAMPLES) -> tuple[dict[str, Any], Tokenizer]:
    """A SentencePiece-style vocabulary: as metadata with scores, and as tokenizers' BPE with the merges it has."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=460, special_tokens=WORDS, show_progress=False, limit_alphabet=60)
    tokenizer.train_from_iterator(samples, trainer)
    data = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(data["vocab"], key=data["vocab"].get)
    rank = {"".join(merge): n for n, merge in enumerate(data["merges"])}
    tokenizer = Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()) | {"added_tokens": []}))
    scores = np.array([-float(rank.get(token, 1000)) for token in tokens], np.float32)
    kinds = np.array([2, 3, 3, *([6] * 256), *([1] * (len(tokens) - 259))], np.int32)
    fields = {
        "model": "llama", "tokens": tokens, "scores": scores, "token_type": kinds, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return {KEY + key: value for key, value in fields.items()}, tokenizer
