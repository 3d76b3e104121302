"""A model's sequence on a device. Owns where it is, and what the host and the device know of each other.

One graph launch and one copy of 4 bytes a token: the step reads the token that the step before left, and counts its
position itself. The host says them only where they are others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.dtypes import s32
from ptxgen.errors import CapacityError, LogitsError, SpecError, brief
from ptxgen.integers import as_index
from ptxgen.models import ModelShape
from ptxgen.models.memory_plan import positions_at_once
from ptxgen.models.packing import WeightSource, formats_of
from ptxgen.models.program import Program
from ptxgen.models.step.prompt_steps import apart_from, steps_of
from ptxgen.models.step.row_forms import PRECISIONS
from ptxgen.runtime.core.step import Step
from ptxgen.runtime.kv.kvcache import KvCache
from ptxgen.runtime.kv.layers import cache_dtype, flags, within
from ptxgen.runtime.model.sampling import Sampling, checked
from ptxgen.runtime.model.steps import NAN_TOKEN, Steps
from ptxgen.runtime.model.timing import StepTime, step_time
from ptxgen.runtime.model.weights import Progress

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.memory.buffer import Buffer
    from ptxgen.runtime.kv.snapshot import Snapshot

CHUNK = 512  # positions of a prompt that one step takes
NO_TOKEN = -1  # of a position whose token is not known


class Sequenced:
    """`Model` without texts: its constructor, and what is done with a sequence, token by token and prompt by prompt."""

    def __init__(
        self,
        source: WeightSource,
        device: Device | None = None,
        kv_dtype: object = "f16",
        *,
        chunk: int = CHUNK,
        deterministic: bool | None = None,
        precision: str = "exact",
        progress: Progress | None = None,
        weights: Mapping[str, Buffer] | None = None,
        rings: bool = False,
        persistent: bool = False,
        timed: bool = False,
    ) -> None:
        if device is None:
            from ptxgen.runtime.opening import open_device

            device = open_device()
        if (size := as_index(chunk)) is None or size < 1 or size & (size - 1):
            raise SpecError(f"Model.chunk: must be a power of two (got {chunk!r})")
        if precision not in PRECISIONS:
            raise SpecError(f"Model.precision: must be one of {', '.join(PRECISIONS)} (got {brief(precision)})")
        given = os.environ.get("PTXGEN_DETERMINISTIC") == "1"
        self.deterministic = given if deterministic is None else deterministic
        flags("Model", deterministic=self.deterministic, rings=rings, persistent=persistent, timed=timed)
        self.device, self.source, self.spec = device, source, source.spec
        self.chunk = positions_at_once(size, self.shape.max_len)
        self.stream = device.default_stream
        overlaps = not self.deterministic
        kind = cache_dtype("Model.kv_dtype", kv_dtype)
        self.steps = Steps(device, source, kind, self.chunk, overlaps, progress, weights, precision, rings, persistent)
        self._token_out = device.pinned(1, s32)
        self._read_token = self.steps.tokens.reader(self._token_out, self.stream)
        self._wait = self.stream.waiter()
        self._apart = apart_from(precision, formats_of(source))
        self._length = 0
        self._changes = 0  # of the sequence, so that an iterator notices those that are not its own
        self._known: tuple[int, int] | None = None  # the token and the position (−1: another) that the device has
        self._ids = np.zeros(self.shape.max_len, np.int32)  # the sequence
        self._remembers = False  # whether the device has them, too
        self.timed = timed
        self.timings: list[StepTime] = []

    @property
    def weights(self) -> Mapping[str, Buffer]:
        """The weights in device memory, by the names that a Program gives them."""
        return self.steps.weights

    @property
    def shape(self) -> ModelShape:
        """The spec's attention shape."""
        return self.spec.shape

    def program(self, step: str = "decode", rows: int = 1, **options: Any) -> Program:
        """The Program of a step of this model on this device; `options` are those of `step_program`."""
        return self.steps.program(step, rows, **options)

    # the sequence -----------------------------------------------------------------------------------------------------
    @property
    def length(self) -> int:
        """Positions of the sequence."""
        return self._length

    @property
    def cache(self) -> KvCache:
        """The sequence's keys and values, with lengths as they are now."""
        for layer in range(self.shape.n_layers):
            self.steps.cache.set_length(layer, self._length)
        return self.steps.cache

    def reset(self) -> None:
        """Forget the sequence: its length is 0."""
        self.rollback(0)

    def rollback(self, position: int) -> None:
        """Forget the positions from `position` on; never lengthens the sequence."""
        place = within("Model.rollback: position", position, 0, self.shape.max_len)
        self._rewind(place)
        self._changes += place < self._length
        self._length = min(self._length, place)

    def _rewind(self, position: int) -> None:
        """Whether the sequence can go on from an earlier position; where it cannot, nothing has changed."""
        if self.steps.rings and position < self._length:
            self.cache.rollback(position)

    def snapshot(self) -> Snapshot:
        """Keys and values of the sequence with its tokens, on the host: a prompt that can be restored."""
        self.stream.synchronize()
        tokens = self._ids[: self._length].copy()
        return replace(self.cache.snapshot(), tokens=tokens, model=self.steps.identity)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot. One that holds no tokens, a cache's, leaves none that a penalty could be for. Raises
        `SpecError` for one of another model: of other weights, too. After an error the sequence is what it was, or
        empty, where rows have been written over it."""
        tokens = getattr(snapshot, "tokens", None)
        if tokens is not None and len(tokens) != snapshot.layers[0].seq_len:
            raise SpecError(f"Model.restore: must have {snapshot.layers[0].seq_len} tokens (got {len(tokens)})")
        vocab = self.shape.vocab
        if wrong := [int(token) for token in (() if tokens is None else tokens) if not NO_TOKEN <= token < vocab]:
            raise SpecError(f"Model.restore: must have tokens from 0 to {vocab - 1} (got {wrong[0]})")
        if (theirs := getattr(snapshot, "model", "")) and theirs != (ours := self.steps.identity):
            raise SpecError(f"Model.restore: must be a snapshot of this model, {ours} (got one of {theirs})")
        cache, length, changes = self.cache, self._length, self._changes
        try:
            cache.restore(snapshot)
        except BaseException:
            self._end_at(cache.length(0))
            if self._length == length:
                self._changes = changes  # it is what it was
            raise
        self._changes += 1
        self._length = cache.length(0)
        self._ids[: self._length] = NO_TOKEN if tokens is None else tokens
        self._remembers = False

    def _place(self, token: int, position: int, known: tuple[int, int] | None = None) -> None:
        """Let the device go on with this token at this position; `known` are those that it would go on with."""
        if known is None or known[1] != position:
            self.steps.counters.copy_from(np.array([position, position + 1], np.int32), self.stream)
        if known is None or known[0] != token:
            self.steps.tokens.copy_from(np.array([token], np.int32), self.stream)

    def _check(self, token: object, position: object) -> tuple[int, int]:
        at = self._length if position is None else position
        most = self.shape.max_len
        if self._length >= most and at == self._length:
            raise CapacityError(f"Model: the sequence has all {most} positions; rollback or reset make room")
        place = within("Model: position", at, 0, min(self._length, self.shape.max_len - 1))
        checked = within("Model: token", token, 0, self.shape.vocab - 1)
        self._rewind(place)
        return checked, place

    # one token --------------------------------------------------------------------------------------------------------
    def forward(self, token: int, position: int | None = None) -> np.ndarray:
        """Append a token at `position` (None: at the end; an earlier one discards the positions from there on);
        the logits `[vocab]` of the next, float32. After an error the sequence ends before that position."""
        token, place = self._check(token, position)
        try:
            self._step(token, place, None)
            self._known = None  # the device has chosen a token that we have not seen
            return np.asarray(self.steps.logits.numpy()[0])
        except BaseException:
            self._end_at(place)
            raise

    def forward_to_token(self, token: int, position: int | None = None, sampling: Sampling | None = None) -> int:
        """Append a token as `forward` does; the likeliest next token, the lowest among equals, or with `sampling` one
        that is drawn. Raises `CapacityError` where all `shape.max_len` positions are taken, `SpecError` for a token or
        a position that there is not, `LogitsError` where logits are NaN."""
        if self.deterministic and sampling is None:
            logits = self.forward(token, position)
            try:
                return self._likeliest(logits)
            except LogitsError:
                self._end_at(self._length - 1)
                raise
        known, place = self._known, self._length
        if known is None or token != known[0] or position not in (None, place) or place != known[1]:
            token, place = self._check(token, position)
        elif place >= self.shape.max_len:
            self._check(token, position)
        try:
            self._step(token, place, sampling)
            return self._take_token()
        except BaseException:
            self._end_at(place)
            raise

    def _end_at(self, place: int) -> None:
        """After an error: the positions from `place` on, some of which may have been written, do not count."""
        self._known, self._remembers, self._length = None, False, place
        self._changes += 1

    def _step(self, token: int, place: int, sampling: Sampling | None) -> None:
        """One decode step."""
        step = self.steps.decode if sampling is None else self.steps.step(0, sampling, self.stream)
        self._ids[place] = token
        self._changes += 1
        known, self._known = self._known, None  # until it has been submitted
        self._place(token, place, known)
        if sampling is not None and sampling.penalises:
            if not self._remembers or known != (token, place):
                self._remember(place + 1)
        else:
            self._remembers = False
        self._launch(step, place)
        self._length = place + 1

    def _remember(self, count: int) -> None:
        """Say the first tokens of the sequence to the device, which adds those that it draws."""
        self.steps.settings.remember(self._ids[:count], self.stream)
        self._remembers = True

    def _launch(self, step: Step, position: int, rows: int = 1) -> None:
        if self.timed:
            us = step.times(self.stream)
            self.timings.append(step_time(step.program, self.spec.block, us, position, rows))
        elif self.deterministic:
            step.launch(self.stream)
        else:
            step.graph.launch(self.stream)

    def _likeliest(self, logits: np.ndarray) -> int:
        """The likeliest token by a step's logits, chosen on the host."""
        token = int(np.argmax(logits))
        self.steps.refuse_nan(logits[token], f"at position {self._length - 1}")
        return token

    def _take_token(self) -> int:
        """The token that the last step chose."""
        self._read_token()
        self._wait()
        token = int(self._token_out[0])
        if token == NAN_TOKEN:
            self.steps.refuse_nan(self.steps.logits.numpy(), f"at position {self._length - 1}")
        self._known = (token, self._length)
        return token

    # a prompt ---------------------------------------------------------------------------------------------------------
    def prefill(self, prompt: Sequence[int], position: int | None = None, sampling: Sampling | None = None) -> int:
        """Append a prompt of one token or more at `position` (None: at the end), in chunks; the likeliest token after
        it, or with `sampling` one that is drawn. Raises `CapacityError`, changing nothing, for more tokens than there
        is room for, `SpecError` for what is no token of the vocabulary, `LogitsError` where logits are NaN. After that,
        or an error of the device, the sequence ends before the prompt; with rings, which may have lost what it would
        need there, before a chunk."""
        sampling = checked(sampling)
        tokens, place = self._check_prompt(prompt, position)
        try:
            self._prefill(tokens, place, sampling)
            if self.deterministic and sampling is None:
                return self._likeliest(self.steps.logits.numpy()[0])
            token = self._take_token()
        except BaseException:
            self._end_at(self._length if self.steps.rings else place)
            raise
        self._known = (token, -1)  # a chunk counts no position
        return token

    def _check_prompt(self, prompt: Sequence[int], position: int | None) -> tuple[np.ndarray, int]:
        """The tokens, and where they go."""
        tokens = self._tokens_of(prompt)
        start = self._length if position is None else position
        place = within("Model: position", start, 0, self._length)
        if place + len(tokens) > self.shape.max_len:
            fits = f"{len(tokens)} tokens from position {place} on do not fit {self.shape.max_len}"
            raise CapacityError(f"Model: {fits}; nothing was changed")
        self._rewind(place)
        return tokens, place

    def _prefill(self, tokens: np.ndarray, place: int, sampling: Sampling | None) -> None:
        self._known, self._remembers, self._length = None, False, place
        self._changes += 1
        self._ids[place : place + len(tokens)] = tokens
        for rows, at, count in steps_of(len(tokens), self.chunk, self._apart):
            ends = at + count == len(tokens)
            if ends and sampling is not None and sampling.penalises:
                self._remember(place + len(tokens))
            self._run_chunk(rows, tokens[at : at + count], place + at, sampling if ends else None, ends)
            self._length = place + at + count

    def _run_chunk(self, rows: int, tokens: np.ndarray, position: int, sampling: Sampling | None, ends: bool) -> None:
        """A step of so many rows, of which these tokens are the last: what the others compute is dropped."""
        step = self.steps.step(rows, sampling, self.stream, ends=ends)
        end = position + len(tokens)
        step.write("prompt", np.pad(tokens, (rows - len(tokens), 0)), self.stream)
        inputs = {
            "q_len": [rows],
            "kv_len": [end],
            "n_kept": [position],
            "query_lengths": range(end - rows + 1, end + 1),
        }
        for name, values in inputs.items():
            if name in step.program.tensors:  # few rows need no lengths of all, one row is no other's
                step.write(name, np.array(values, np.int32), self.stream)
        self.steps.counters.copy_from(np.array([end - rows, end - rows + 1], np.int32), self.stream)
        self._launch(step, position, len(tokens))

    def _tokens_of(self, prompt: Sequence[int]) -> np.ndarray:
        """A prompt as s32, every token within the vocabulary."""
        try:
            tokens = np.asarray(prompt)
        except ValueError:  # lists of different lengths
            tokens = np.zeros(0)
        lists = tokens.ndim == 1 and not isinstance(prompt, np.ndarray)  # in which NumPy counts True as 1
        if lists and any(isinstance(token, bool) for token in prompt):
            tokens = np.zeros(0)
        if isinstance(prompt, str):
            raise SpecError(f"Model: a prompt must be tokens, as source.text().encode makes them (got {brief(prompt)})")
        if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind not in "iu":
            raise SpecError(f"Model: a prompt must be a list of integers, one at least (got {brief(prompt)})")
        if tokens.min() < 0 or tokens.max() >= self.shape.vocab:
            wrong = tokens[(tokens < 0) | (tokens >= self.shape.vocab)][0]
            raise SpecError(f"Model: tokens must be within 0 … {self.shape.vocab - 1} (got {wrong})")
        return tokens.astype(np.int32)

    def __repr__(self) -> str:
        size = f"{self.shape.family} {self.shape.n_layers} × {self.spec.dim}"
        return f"<Model {size}, {self._length} of {self.shape.max_len} positions, {self.device.name}>"
