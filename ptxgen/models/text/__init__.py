"""Text to tokens and back. Owns streaming; how a vocabulary splits text is `sentencepieces.py` and `bytelevel.py`."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ptxgen.errors import FileError, SpecError, brief
from ptxgen.integers import as_index


@dataclass(frozen=True)
class Text:
    """A tokenizer.

    `pieces`: the bytes that each token stands for, none for control tokens. `split`: text to tokens. `bos` opens every
    prompt (None: nothing does), `stops` end a text. `space_prefix`: the vocabulary begins a text with a space that is
    not in it.
    """

    pieces: Sequence[bytes]
    split: Callable[[str], list[int]]
    bos: int | None = None
    stops: frozenset[int] = frozenset()
    space_prefix: bool = False

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt, `bos` first where the vocabulary asks for it. Raises `SpecError` for what is no str,
        and for half a surrogate pair, as Python makes them of bytes that are no UTF-8."""
        if not isinstance(text, str):
            raise SpecError(f"prompt: must be a str (got {brief(text)})")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SpecError(f"prompt: must be text that UTF-8 spells (got {brief(text)})") from None
        return [*(() if self.bos is None else (self.bos,)), *self.split(text)]

    def decode(self, tokens: Iterable[int], continues: bool = False) -> str:
        """The text of tokens, none of those behind the vocabulary; bytes that are no UTF-8 become U+FFFD. `continues`
        as in `stream`. Raises `SpecError` for what is no token."""
        stream = self.stream(continues)
        return "".join([*map(stream.push, tokens), stream.end()])

    def stream(self, continues: bool = False) -> Stream:
        """Text piece by piece; `continues`: after a prompt, so that a leading space is text."""
        return Stream(self.pieces, self.space_prefix and not continues)


class Stream:
    """Tokens one at a time to text: a character whose bytes spread over tokens appears with the last of them."""

    def __init__(self, pieces: Sequence[bytes], strip: bool) -> None:
        self._pieces, self._strip = pieces, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that a token completes, often its own, sometimes none."""
        number = as_index(token)
        if number is None or number < 0:
            raise SpecError(f"token: must be an int ≥ 0 (got {brief(token)})")
        piece = self._pieces[number] if number < len(self._pieces) else b""  # a row that fills the embedding up
        if self._strip and piece:
            piece, self._strip = piece.removeprefix(b" "), False
        return self._decoder.decode(piece)

    def end(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", True)


# Names of tokens that end a turn or a text, in vocabularies that do not list them all as such.
STOP_NAMES = frozenset({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "</s>"})


def token_id(value: object, size: int, what: str) -> int | None:
    """A token of a vocabulary of `size`, or None where it is not given."""
    if value is None or (type(value) is int and 0 <= value < size):
        return value
    raise FileError(f"{what}: must be a token from 0 to {size - 1} (got {brief(value)})")


__all__ = ["STOP_NAMES", "Stream", "Text", "token_id"]
