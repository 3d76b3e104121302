"""The tokenizer of a Hugging Face folder: `tokenizer.json` through `tokenizers`, stops from the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ptxgen.errors import FileError
from ptxgen.models.files.stored import read_json
from ptxgen.models.text import STOP_NAMES, Text, bytelevel, sentencepieces


def text_of(folder: Path) -> Text:
    """The tokenizer of a folder. Raises `FileError` where it has none that can be read."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as wrong:  # its only type
        raise FileError(f"{path}: is no tokenizer ({str(wrong).splitlines()[0]})") from None
    decoder = json.dumps(json.loads(tokenizer.to_str()).get("decoder"))
    kinds = {"ByteLevel": bytelevel.piece_bytes, "ByteFallback": sentencepieces.piece_bytes}
    spelt = next((kinds[kind] for kind in kinds if f'"{kind}"' in decoder), None)
    if spelt is None:
        raise FileError(f"{path}: decoder: must spell bytes, {' or '.join(kinds)} (got {decoder})")
    special = {n: token for n, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    added = {n: token.content for n, token in tokenizer.get_added_tokens_decoder().items()}
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    tokens = [tokenizer.id_to_token(n) or "" for n in range(size)]
    pieces = [
        b"" if n in special else added[n].encode() if n in added else spelt(token) for n, token in enumerate(tokens)
    ]

    def split(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text).ids  # with what its post-processor puts before it
        return found

    stops = {n for n, token in special.items() if token.content in STOP_NAMES} | _configured(folder, size)
    return Text(pieces, split, None, frozenset(stops), '"Strip"' in decoder)


def _configured(folder: Path, size: int) -> set[int]:
    """`eos_token_id` of the generation's configuration and of the model's: a number or several."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        values: Any = read_json(folder / name) if (folder / name).exists() else {}
        given = values.get("eos_token_id") if isinstance(values, dict) else None
        for value in given if isinstance(given, list) else [given]:
            if type(value) is int and 0 <= value < size:
                found.add(value)
    return found
