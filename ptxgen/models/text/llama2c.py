"""llama2.c's `tokenizer.bin`: int32 longest piece, then for each token float32 score, int32 length, bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from ptxgen.errors import FileError
from ptxgen.models.text import Text
from ptxgen.models.text.sentencepieces import SentencePieces, byte_ids, byte_of

_BOS, _EOS, _FIRST_BYTE = 1, 2, 3  # of every such vocabulary: 0 unknown, 1, 2, then the 256 bytes
_LARGEST = 64 << 20


def text_of(candidates: Sequence[Path], vocab: int) -> Text:
    """The tokenizer in the first of the files that exists. Raises `FileError` where there is none, or a damaged one."""
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise FileError(f"{candidates[-1]}: is missing, the tokenizer lies beside the checkpoint")
    if path.stat().st_size > _LARGEST:
        raise FileError(f"{path}: must be at most {_LARGEST >> 20} MiB (got {path.stat().st_size} bytes)")
    scores, raw = _read(path, path.read_bytes(), vocab)
    tokens = [piece.decode("utf-8", "surrogateescape") for piece in raw]
    pieces = [b"" if n in (_BOS, _EOS) else _bytes(token, raw[n]) for n, token in enumerate(tokens)]
    spelt = byte_ids(tokens)
    if min(spelt) < 0:
        spelt = [_FIRST_BYTE + byte for byte in range(256)]
        if vocab < _FIRST_BYTE + 256:
            raise FileError(f"{path}: must have the 256 bytes as tokens from {_FIRST_BYTE} on (got {vocab} tokens)")
    ids = {token.replace(" ", "\u2581"): n for n, token in reversed(list(enumerate(tokens))) if n > _EOS}
    split = SentencePieces(ids, scores, spelt, 0, {}, True).split
    return Text(pieces, split, _BOS, frozenset({_BOS, _EOS}), True)


def _read(path: Path, data: bytes, vocab: int) -> tuple[list[float], list[bytes]]:
    at = 4
    scores, pieces = [], []
    for token in range(vocab):
        if at + 8 > len(data):
            raise FileError(f"{path}: ends within token {token} of {vocab}")
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if not 0 <= length <= len(data) - at:
            raise FileError(f"{path}: token {token}: {length} bytes cannot be, {len(data) - at} are left")
        scores.append(score)
        pieces.append(data[at : at + length])
        at += length
    return scores, pieces


def _bytes(token: str, raw: bytes) -> bytes:
    byte = byte_of(token)
    return raw if byte is None else bytes([byte])
