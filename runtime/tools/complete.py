"""A prompt completed as text, piece by piece, with its figures. Owns neither the model nor the tokenizer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen.errors import ConfigWarning, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from ptxgen.models.files import ModelFile
    from ptxgen.models.text import Text
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.model.model import Model
    from ptxgen.runtime.model.weights import Progress

_LEAST_CONTEXT = 64


@dataclass
class Figures:
    """What a completion took: tokens of the prompt and after it, and the seconds of each, from the host's clock. The
    prompt's end with the first token, the others are between that and the last one."""

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        said = f"prompt of {self.prompt_tokens} tokens in {self.prompt_s:.2f} s; {self.tokens} tokens"
        if self.tokens < 2:
            return said
        rate = (self.tokens - 1) / max(self.seconds, 1e-9)
        return f"{said} in {self.seconds:.2f} s, {rate:.1f} tokens/s"


class Completion:
    """A model file opened to complete `prompt`, with room for `max_tokens` after it.

    The context is the model's own, or `max_len`, or else the power of two that has room: kernels and cache are made for
    it. `quantise`, `quantise_head`: as `Model.load` has them. Raises `FileError` for a file that cannot be had,
    `SpecError` where there is no room.
    """

    def __init__(
        self, path: str | Path, prompt: str, max_tokens: int, max_len: int | None = None, *,
        quantise: str | None = None, quantise_head: str | None = None,
    ) -> None:  # fmt: skip
        from ptxgen.models.files import open_model, quantised

        with warnings.catch_warnings():
            if max_len is None:  # it is opened once more, for the context that is needed, and warns then
                warnings.simplefilter("ignore", ConfigWarning)
            self.file: ModelFile = open_model(path, max_len)
        self.text: Text = self.file.text()
        self.prompt, self.max_tokens = prompt, max_tokens
        self.tokens = self.text.encode(prompt)
        longest = self.file.spec.shape.max_len
        if not self.tokens or len(self.tokens) >= longest:
            enough = f"; a context of {len(self.tokens) + 1} has room" if max_len is not None and self.tokens else ""
            raise SpecError(
                f"prompt: must be 1 to {longest - 1} tokens, the context is {longest} (got {len(self.tokens)}{enough})"
            )
        if max_len is None:
            room = max(len(self.tokens) + max_tokens, _LEAST_CONTEXT)
            self.file = open_model(path, min(longest, 1 << (room - 1).bit_length()))
        self.file = quantised(self.file, quantise, quantise_head)
        self.figures = Figures(len(self.tokens))
        self.written: list[int] = []

    def load(self, device: Device, kv_dtype: object = "f16", progress: Progress | None = None, **options: Any) -> Model:
        """The model on a device."""
        from ptxgen.runtime.model.model import Model

        return Model(self.file, device, kv_dtype, progress=progress, **options)

    @property
    def filled(self) -> bool:
        """Whether the text ended because the context was full, before `max_tokens`."""
        figures = self.figures
        return figures.tokens < self.max_tokens and len(self.tokens) + figures.tokens > self.file.spec.shape.max_len

    def run(self, model: Model, **options: Any) -> Iterator[str]:
        """The text after the prompt, as it comes; `options` as `Model.tokens`. Fills `figures` and `written`."""
        stream = self.text.stream(continues=True)
        started = time.perf_counter()
        first = started
        for token in model.tokens(self.tokens, self.max_tokens, stop_ids=tuple(self.text.stops), **options):
            now = time.perf_counter()
            if not self.figures.tokens:
                first, self.figures.prompt_s = now, now - started
            self.written.append(token)
            self.figures.tokens += 1
            self.figures.seconds = now - first
            if piece := stream.push(token):
                yield piece
        if rest := stream.end():
            yield rest
