"""A vocabulary of pieces with scores, split as SentencePiece's BPE does it: the best-scored pair of neighbours first.

Spaces are U+2581 in the pieces; what no piece covers is spelt in byte tokens. Source: `llm_tokenizer_spm` of llama.cpp.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class SentencePieces:
    """`ids` and `scores` of the pieces; `byte_ids`: the 256 tokens of single bytes, -1 for one that is missing, for
    which `unknown` stands; `whole`: tokens that are cut out of a text before it is split."""

    ids: Mapping[str, int]
    scores: Sequence[float]
    byte_ids: Sequence[int]
    unknown: int
    whole: Mapping[str, int]
    space_prefix: bool

    def split(self, text: str) -> list[int]:
        """The tokens of a text."""
        if not text:
            return []
        names = sorted((name for name in self.whole if name and name in text), key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        out: list[int] = []
        begins = True  # a text, and what follows a whole token, begins with a space
        for part in parts:
            if part in self.whole:
                out.append(self.whole[part])
                begins = True
            elif part:
                spaced = " " + part if self.space_prefix and begins else part
                out += self._merge(spaced.replace(" ", _SPACE))
                begins = False
        return out

    def _merge(self, text: str) -> list[int]:
        parts: list[str] = list(text)  # "" once it is part of its left neighbour
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        heap: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right >= 0 and (number := self.ids.get(joined := parts[left] + parts[right])) is not None:
                heapq.heappush(heap, (-self.scores[number], left, right, joined))

        for right in range(1, len(parts)):
            offer(right - 1, right)
        while heap:
            _, left, right, joined = heapq.heappop(heap)
            if not parts[left] or not parts[right] or parts[left] + parts[right] != joined:
                continue  # one of the two has grown since
            parts[left], parts[right] = joined, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [number for part in parts if part for number in self._spell(part)]

    def _spell(self, part: str) -> list[int]:
        found = self.ids.get(part)
        if found is not None:
            return [found]
        spelt = [self.byte_ids[byte] for byte in part.encode("utf-8", "surrogatepass")]
        return spelt if min(spelt) >= 0 else [self.unknown]


def byte_of(token: str) -> int | None:
    """The byte of a token such as <0x0A>."""
    found = _BYTE.fullmatch(token)
    return int(found[1], 16) if found else None


def byte_ids(tokens: Sequence[str]) -> list[int]:
    """The tokens of the 256 bytes, -1 for a missing one."""
    found = [-1] * 256
    for number, token in enumerate(tokens):
        if (byte := byte_of(token)) is not None:
            found[byte] = number
    return found


def piece_bytes(token: str) -> bytes:
    """What a piece stands for."""
    byte = byte_of(token)
    return token.replace(_SPACE, " ").encode("utf-8", "surrogatepass") if byte is None else bytes([byte])
