"""`Batch`: several sequences of a model at once, which join and leave between steps. Owns their cache and slots."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import f32, s32
from ptxgen.errors import CapacityError, CudaError, SpecError
from ptxgen.runtime.core.step import Step
from ptxgen.runtime.kv.batched import BatchedKvCache
from ptxgen.runtime.kv.layers import flags, within
from ptxgen.runtime.model.sampling import GREEDY, Sampling, Settings, checked
from ptxgen.runtime.model.steps import NAN_TOKEN, layer_buffers

if TYPE_CHECKING:
    from ptxgen.runtime.model.sequenced import Sequenced

MOST_SLOTS = 65535  # CTAs of a grid along y and z


class Batch:
    """Up to `slots` sequences, one graph launch for a token of each.

    `invariant`: a sequence has the same bits whatever the others are, and with exact precision in a batch of any number
    of slots: alone in a batch of one slot, too. (`Model`'s own steps, of one token, add up in another order.)
    `sampling`: sequences may draw their tokens; `penalties`: by their own tokens, too. `page_size`, a power of two from
    16 on: keys and values lie in `n_pages` pages (default: as many as full sequences need), which sequences take as
    they grow. A prompt goes through the model's own sequence, which a `join` therefore overwrites, and from there into
    the slot.
    """

    def __init__(
        self, model: Sequenced, slots: int, invariant: bool = False, sampling: bool = False, penalties: bool = False,
        page_size: int = 0, n_pages: int | None = None,
    ) -> None:  # fmt: skip
        flags("Batch", invariant=invariant, sampling=sampling, penalties=penalties)
        self.model = model
        self.slots = within("Batch: slots", slots, 1, MOST_SLOTS)
        device, shape = model.device, model.shape
        if page_size and any(model.cache.rings.sizes):
            raise SpecError(f"Batch.page_size: needs a Model without rings (got page_size={page_size})")
        self.cache = BatchedKvCache(model.cache, self.slots, page_size, n_pages)
        self._next: dict[int, int] = {}  # slot → the token that it goes on with
        self._fresh: set[int] = set()  # slots whose token the device has not seen
        self._tokens = device.zeros(self.slots, s32)
        self._logits = device.empty((self.slots, shape.vocab), f32)
        self._tokens_out = device.pinned(self.slots, s32)
        self._penalties = penalties
        history = shape.max_len if penalties else 1
        self._settings = Settings(device, self.slots, history) if sampling or penalties else None
        choice = "penalise" if penalties else "sample" if sampling else "greedy"
        pages = self.cache.pages
        paged = {} if pages is None else {"page_size": pages.page_size, "pages": pages.n_pages, "rings": 0}
        program = model.program("batch", self.slots, batch_invariant=invariant, choice=choice, **paged)
        buffers = {**model.steps.weights, **layer_buffers(self.cache), "tokens": self._tokens, "logits": self._logits}
        buffers |= {"positions": self.cache.positions, "lengths": self.cache.lengths}
        if self._settings is not None:
            buffers |= self._settings.buffers
        if pages is not None:
            buffers["page_table"] = pages.buffer
        self._read = self._tokens.reader(self._tokens_out, model.stream)
        self._wait = model.stream.waiter()
        device.warmup(program.specs())
        self._step = Step(device, program, buffers)

    def __repr__(self) -> str:
        return f"Batch({len(self._next)} of {self.slots} slots taken, {self.model!r})"

    @property
    def active(self) -> tuple[int, ...]:
        """The slots that hold a sequence."""
        return tuple(sorted(self._next))

    def join(self, prompt: Sequence[int], sampling: Sampling | None = None) -> tuple[int, int]:
        """A sequence that begins with a prompt: its slot, and its first token. Raises `CapacityError` when no slot is
        free, or too few pages, and `SpecError` for `sampling` that the batch was not made for. After any error the
        slot is free."""
        sampling = checked(sampling)
        if sampling is not None and (self._settings is None or (sampling.penalises and not self._penalties)):
            want = f"needs a Batch made with {'penalties' if sampling.penalises else 'sampling'}=True"
            raise SpecError(f"Batch.join: sampling {want} (got {sampling})")
        free = next((slot for slot in range(self.slots) if slot not in self._next), None)
        if free is None:
            raise CapacityError(f"Batch: all {self.slots} slots are taken; leave one first")
        token = self.model.prefill(prompt, 0, sampling)
        if self._settings is not None:
            self._settings.put(sampling or GREEDY, free, self.model.stream)
        if self._settings is not None and self._penalties:
            self._settings.remember(np.array([*prompt, token], np.int32), self.model.stream, free)
        self.cache.scatter_from(self.model.cache, free, self.model.length)
        self._fresh.add(free)
        self._next[free] = token
        return free, token

    def leave(self, slot: int) -> None:
        """Let a sequence go; its slot is free for another. After an error it is there as before."""
        at = self._held(slot)
        self.cache.set_length(at, 0)
        del self._next[at]
        self._fresh.discard(at)

    def length(self, slot: int) -> int:
        """How many positions a sequence holds."""
        return self.cache.length(self._held(slot))

    def step(self) -> dict[int, int]:
        """One more token of every sequence: the tokens by slot. Raises `CapacityError` where a sequence is full, or
        pages run out: one must leave before; `SpecError` without a sequence, `LogitsError` where logits of one are NaN.
        After an error each is as long as it was.
        """
        if not self._next:
            raise SpecError("Batch.step: no sequence has joined")
        lengths = {slot: self.cache.length(slot) for slot in self._next}
        try:
            self._run()
        except BaseException:
            self._fresh.update(self._next)
            with contextlib.suppress(CudaError):  # of a device that is lost
                for slot, length in lengths.items():
                    self.cache.rollback(slot, length)
            raise
        for slot in self._next:
            self._next[slot] = int(self._tokens_out[slot])
        return {slot: self._next[slot] for slot in self.active}

    def _run(self) -> None:
        """A step of all sequences, and its tokens on the host."""
        stream = self.model.stream
        self.cache.step(self.active, stream)
        for slot in sorted(self._fresh):
            self._tokens[slot : slot + 1].copy_from(np.array([self._next[slot]], np.int32), stream)
        self._fresh.clear()
        if self.model.deterministic:
            self._step.launch(stream)
        else:
            self._step.graph.launch(stream)
        self._read()
        self._wait()
        for slot in map(int, np.flatnonzero(self._tokens_out == NAN_TOKEN)):
            if slot in self._next:
                self.model.steps.refuse_nan(self._logits[slot : slot + 1].numpy(), f"of slot {slot}, which may leave,")

    def logits(self) -> np.ndarray:
        """The logits of the last step, float32 `[slots, vocab]`, on the host; rows of free slots mean nothing, and a
        sequence that joined since has none."""
        return self._logits.numpy()

    def _held(self, slot: object) -> int:
        at = within("Batch: slot", slot, 0, self.slots - 1)
        if at not in self._next:
            raise SpecError(f"Batch: slot {at} holds no sequence")
        return at
