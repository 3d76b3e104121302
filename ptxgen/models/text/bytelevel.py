"""Byte-level BPE, GPT-2's way: the printable character that stands for each byte, and how text is cut before merging.

The merging itself is the package `tokenizers`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@cache
def byte_of_character() -> dict[str, int]:
    """The byte that each of the 256 characters of a byte-level vocabulary stands for."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


def piece_bytes(token: str) -> bytes:
    """What a token stands for; one that is not spelt in those characters stands for itself."""
    table = byte_of_character()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Cut:
    """How a vocabulary's text is cut into words: patterns applied one after the other. `whole_words`: a word that is a
    token needs no merges. `add_bos`: a prompt opens with it where the file does not say."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Words of capitals and then small letters. llama.cpp takes letters beyond ASCII for both.
_WORD = r"[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])%s(?:(?=\p{L})[^A-Z])%s"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = f"{_WORD % ('*', '+')}|{_WORD % ('+', '*')}|" + r"\p{N}" + _REST
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = f"{_WORD % ('*', '+')}{_SHORT}|{_WORD % ('+', '*')}{_SHORT}|" + r"\p{N}{1,3}" + _REST
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]")
# By `tokenizer.ggml.pre`, as llama.cpp has them.
_LLAMA3, _QWEN2 = Cut((_CL100K % "{1,3}",), whole_words=True, add_bos=True), Cut((_CL100K % "",))
CUTS = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo"), Cut((_GPT2,))),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Cut((_CL100K % "{1,3}",))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "smollm": Cut((r"\p{N}", _GPT2)),
    "tekken": Cut((_TEKKEN,), whole_words=True, add_bos=True),
    "gpt-4o": Cut((_O200K,)),
    "default": Cut(_DEFAULT),
}
