"""The tokenizer that a GGUF file holds: "llama" (pieces with scores) and "gpt2" (byte-level BPE with merges)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ptxgen.errors import FileError, brief
from ptxgen.models.text import STOP_NAMES, Text, bytelevel, sentencepieces, token_id

_AT = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # token types
# What no vocabulary needs and would take long: the largest have some thousand tokens that are found whole in a text.
_LONGEST_TOKEN, _MOST_WHOLE = 1 << 16, 1 << 16


def text_of(fields: Mapping[str, Any], source: str) -> Text:
    """The tokenizer of a file's metadata. Raises `FileError` naming the key."""
    at = {key.removeprefix(_AT): value for key, value in fields.items() if key.startswith(_AT)}
    made = {"llama": _pieces, "gpt2": _byte_level}.get(str(at.get("model")))
    if made is None:
        raise FileError(f"{source}: {_AT}model: must be llama or gpt2 (got {brief(at.get('model'))})")
    tokens = at.get("tokens")
    if not _is_list(tokens, str) or not tokens:
        raise FileError(f"{source}: {_AT}tokens: must be a list of strings (got {brief(tokens)})")
    types = at.get("token_type", np.ones(len(tokens), np.int32))
    if not isinstance(types, np.ndarray) or len(types) != len(tokens):
        raise FileError(f"{source}: {_AT}token_type: must be {len(tokens)} integers (got {brief(types)})")
    if (longest := max(map(len, tokens))) > _LONGEST_TOKEN:
        raise FileError(f"{source}: {_AT}tokens: must be of at most {_LONGEST_TOKEN} characters each (got {longest})")
    if (whole := int(np.isin(types, (_CONTROL, _USER_DEFINED)).sum())) > _MOST_WHOLE:
        must = f"must say of at most {_MOST_WHOLE} tokens that they are control tokens or the user's"
        raise FileError(f"{source}: {_AT}token_type: {must} (got {whole})")
    return made(at, tokens, [int(kind) for kind in types], source)


def _is_list(value: object, of: type) -> bool:
    return isinstance(value, list) and all(isinstance(one, of) for one in value)


def _pieces(at: Mapping[str, Any], tokens: list[str], types: list[int], source: str) -> Text:
    scores = at.get("scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens) or scores.dtype.kind != "f":
        raise FileError(f"{source}: {_AT}scores: must be {len(tokens)} numbers (got {brief(scores)})")
    space_prefix = bool(at.get("add_space_prefix", True))
    whole = {
        token: n for n, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind in (_CONTROL, _USER_DEFINED)
    }
    unknown = token_id(at.get("unknown_token_id", 0), len(tokens), f"{source}: {_AT}unknown_token_id")
    ids = {token: n for n, token in enumerate(tokens)}
    split = sentencepieces.SentencePieces(
        ids, [float(score) for score in scores], sentencepieces.byte_ids(tokens), unknown or 0, whole, space_prefix
    ).split
    pieces = [
        b"" if kind in (_UNKNOWN, _CONTROL) else sentencepieces.piece_bytes(token)
        for token, kind in zip(tokens, types, strict=True)
    ]
    return Text(pieces, split, _bos(at, tokens, True, source), _stops(at, tokens, types, source), space_prefix)


def _byte_level(at: Mapping[str, Any], tokens: list[str], types: list[int], source: str) -> Text:
    name = str(at.get("pre", "default"))
    cut = bytelevel.CUTS.get(name)
    if cut is None:
        raise FileError(f"{source}: {_AT}pre: must be one of {', '.join(bytelevel.CUTS)} (got {brief(name)})")
    merges: Any = at.get("merges")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges] if _is_list(merges, str) else None
    if pairs is None or any(len(pair) != 2 for pair in pairs):
        raise FileError(f"{source}: {_AT}merges: must be a list of pairs (got {brief(merges)})")
    control = {token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL}
    own = {token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED}
    split = _tokenizer(tokens, pairs, cut, control, own, source)
    pieces = [
        b"" if token in control else token.encode() if token in own else bytelevel.piece_bytes(token)
        for token in tokens
    ]
    return Text(pieces, split, _bos(at, tokens, cut.add_bos, source), _stops(at, tokens, types, source))


def _tokenizer(
    tokens: list[str], merges: list[tuple[str, str]], cut: bytelevel.Cut, control: set[str], own: set[str], source: str
) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    vocab = {token: n for n, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=cut.whole_words))
    except Exception as wrong:  # of its own type: a merge of what is no token
        raise FileError(f"{source}: {_AT}merges: {wrong}") from None
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in sorted(control)])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in sorted(own)])

    def split(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    return split


def _bos(at: Mapping[str, Any], tokens: list[str], default: bool, source: str) -> int | None:
    found = token_id(at.get("bos_token_id"), len(tokens), f"{source}: {_AT}bos_token_id")
    return found if at.get("add_bos_token", default) else None


def _stops(at: Mapping[str, Any], tokens: list[str], types: list[int], source: str) -> frozenset[int]:
    """The tokens that end a text: those the file names, and control tokens with a name for it."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    given = (token_id(at.get(key), len(tokens), f"{source}: {_AT}{key}") for key in keys)
    named = (n for n, token in enumerate(tokens) if types[n] == _CONTROL and token in STOP_NAMES)
    return frozenset({n for n in given if n is not None} | set(named))
