"""The tokenizer of a Hugging Face folder: `tokenizer.json` through `tokenizers`, stops from the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptxgen.errors import FileError, brief
from ptxgen.files.regular import size_of
from ptxgen.files.small_json import read_json
from ptxgen.models.text import STOP_NAMES, Text, bytelevel, sentencepieces

_MODEST = 1 << 20  # ids that any file may have
_LARGEST = 1 << 26  # bytes of tokenizer.json: the largest vocabularies take half of that


def text_of(folder: Path) -> Text:
    """The tokenizer of a folder. Raises `FileError` where it has none that can be read."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    _check(path)
    with _of_tokenizers(f"{path}: is no tokenizer"):
        tokenizer = Tokenizer.from_file(str(path))
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
        with _of_tokenizers(f"{path}: cannot split {brief(text)}"):
            found: list[int] = tokenizer.encode(text).ids  # with what its post-processor puts before it
        return found

    stops = {n for n, token in special.items() if token.content in STOP_NAMES} | _configured(folder, size)
    return Text(pieces, split, None, frozenset(stops), '"Strip"' in decoder)


@contextmanager
def _of_tokenizers(said: str) -> Iterator[None]:
    """What the package raises, or panics with, as a `FileError` that begins so."""
    try:
        yield
    except BaseException as wrong:  # Exception is its only type, and a panic is none
        if not isinstance(wrong, Exception) and type(wrong).__name__ != "PanicException":
            raise
        raise FileError(f"{said} ({str(wrong).splitlines()[0]})") from None


def _check(path: Path) -> None:
    """Refuse what `tokenizers` ends the process for, or panics over: ids far beyond what the file can list, for which
    it has a table of so many entries, and templates with tokens that they do not define."""
    try:
        nbytes = size_of(path)
        data = path.read_bytes() if nbytes <= _LARGEST else b"{}"
        held = json.loads(data)
    except OSError as wrong:
        raise FileError(f"{path}: cannot be read ({wrong.strerror or wrong})") from None
    except (ValueError, RecursionError) as wrong:
        raise FileError(f"{path}: is no tokenizer ({wrong})") from None
    if nbytes > _LARGEST:
        raise FileError(f"{path}: must be at most {_LARGEST >> 20} MiB (got {nbytes} bytes)")
    model, added = (held.get(key) for key in ("model", "added_tokens")) if isinstance(held, dict) else (None, None)
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocab.values()) if isinstance(vocab, dict) else []
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    most, largest = max(len(data), _MODEST), max((one for one in ids if type(one) is int), default=0)
    if largest > most:
        raise FileError(f"{path}: an id must be from 0 to {most} in a file of {len(data)} bytes (got {largest})")
    if absent := next(_undefined(held.get("post_processor") if isinstance(held, dict) else None), None):
        raise FileError(f"{path}: post_processor: must define the special tokens that it puts (got {brief(absent)})")


def _undefined(processor: Any) -> Iterator[str]:
    """Special tokens that templates put and do not define."""
    left = [processor]
    while left:
        one = left.pop()
        if not isinstance(one, dict):
            continue
        inner, defined = one.get("processors"), one.get("special_tokens")
        left += inner if isinstance(inner, list) else []
        for pieces in (one.get("single"), one.get("pair")):
            for piece in pieces if isinstance(pieces, list) else []:
                special = piece.get("SpecialToken") if isinstance(piece, dict) else None
                name = special.get("id") if isinstance(special, dict) else None
                if isinstance(name, str) and isinstance(defined, dict) and name not in defined:
                    yield name


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
