"""`Model`: a whole model on a device: from a file to tokens and texts. Its sequence is `sequenced.py`'s."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ptxgen.errors import SpecError, brief, nearest
from ptxgen.runtime.kv.layers import within
from ptxgen.runtime.model.sampling import Sampling
from ptxgen.runtime.model.sequenced import Sequenced

if TYPE_CHECKING:
    from pathlib import Path

    from ptxgen.runtime.model.batch import Batch
    from ptxgen.runtime.model.profile import Profile


class Model(Sequenced):
    """A model that decodes: `forward` gives logits, `forward_to_token` and `generate` tokens.

    `source` is an opened file (`ptxgen.models.files.open_model`; `load` opens it). `kv_dtype` is the cache's. `chunk`:
    a prompt goes in steps of so many positions, the last with as many rows as what is left needs. `deterministic`
    (default: whether PTXGEN_DETERMINISTIC=1): launches one after the other, and the likeliest token is chosen on the
    host. `precision`
    of prompts and batches: "exact", as one token is; "fast": on GPUs with wgmma their activations are rounded to bf16
    before each product, a relative error of 2⁻⁹ in each, and a prompt's queries and keys once more before they rotate
    (to the cache's type, where it has 16 bits), as in other engines; "e4m3": the same, but before products with weights
    in e4m3 to e4m3, an error of 2⁻⁴, as such checkpoints mean it. `weights`: another model's of the same
    source, which lie on the device already; then `source` is not read. `rings`: layers with a window keep the last
    window + chunk − 1 positions, not all; going back beyond those is a `CapacityError`. `persistent`: a token that is
    not drawn is one kernel, whose CTAs wait for each other; `SpecError` for a model that has none. `timed`: launches go
    one after the other, and `timings` holds how long the parts of every step took, which the logger "ptxgen.model" says
    at level INFO, too.

    One sequence at a time, at `length` positions; `batch` decodes several. One thread at a time.
    """

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: object = None,
        kv_dtype: object = "f16",
        max_len: int | None = None,
        *,
        quantise: str | None = None,
        quantise_head: str | None = None,
        **options: Any,
    ) -> Model:
        """The model of a file: GGUF, a folder with safetensors and config.json, a llama2.c checkpoint.

        `device` is a `Device` or the name of one (None: CUDA where there is one, else the CPU executor); `max_len`
        replaces the longest context; `quantise` is another weight format for the matrices of the layers, and
        `quantise_head` for head and embedding, as `ptxgen.models.files.quantised` has them; `options` are the
        constructor's. Raises `FileError` before anything is allocated for what is damaged or not covered, and while it
        quantises, for NaN, infinities and values beyond a format's range; `CapacityError` for what the device's free
        memory does not hold.
        """
        from ptxgen.models.files import open_model, quantised
        from ptxgen.runtime.core.device import Device
        from ptxgen.runtime.opening import open_device

        _check_options("Model.load", cls, 3, options, ("quantise", "quantise_head"))
        source = quantised(open_model(path, max_len), quantise, quantise_head)
        return cls(source, device if isinstance(device, Device) else open_device(device), kv_dtype, **options)  # type: ignore[arg-type]

    # text -------------------------------------------------------------------------------------------------------------
    @overload
    def generate(
        self, prompt: Sequence[int], max_new_tokens: int, *, stream: Literal[False] = False, **options: Any
    ) -> list[int]: ...

    @overload
    def generate(
        self, prompt: Sequence[int], max_new_tokens: int, *, stream: Literal[True], **options: Any
    ) -> Iterator[int]: ...

    def generate(
        self, prompt: Sequence[int], max_new_tokens: int, *, stream: bool = False, **options: Any
    ) -> list[int] | Iterator[int]:
        """The prompt's tokens and up to `max_new_tokens` after them, a list; with `stream` an iterator, which decodes a
        token when it is asked for the next. `options` are those of `tokens`, which gives the tokens after the prompt
        alone. Raises as `prefill`."""
        given = self._tokens_of(prompt).tolist()
        found = itertools.chain(given, self.tokens(prompt, max_new_tokens, **options))
        return found if stream else list(found)

    def tokens(
        self,
        prompt: Sequence[int],
        max_new_tokens: int | None = None,
        *,
        sampling: Sampling | None = None,
        stop_ids: int | Iterable[int] = (),
        stop: str | Iterable[str] = (),
        decode: Any = None,
        keep: bool = False,
    ) -> Iterator[int]:
        """Tokens after a prompt, one by one, the likeliest or drawn by `sampling`.

        Ends at `max_new_tokens`, a full cache, one of `stop_ids` (which is not given), or text that holds `stop`, a
        string or one of several (whose last token is given); `decode` turns tokens into text (default: the file's
        tokenizer). `keep`: the prompt goes
        on where the sequence is, which otherwise begins anew. Raises `SpecError` when the sequence was changed between
        two tokens, by another iterator or a batch's `join`. The last token given is not in the sequence yet: a prompt
        that goes on behind it begins with that token. Where one of `stop_ids` ended the tokens, it is in the sequence.
        """
        if max_new_tokens is not None:
            within("Model.tokens: max_new_tokens", max_new_tokens, 0, sys.maxsize)
        stop = _several("Model.tokens: stop", stop, str)
        stop_ids = _several("Model.tokens: stop_ids", stop_ids, Integral)
        if "" in stop:
            raise SpecError("Model.tokens: stop strings must not be empty (got '')")
        if stop and decode is None:
            if not hasattr(self.source, "text"):
                raise SpecError("Model.tokens: stop strings need decode, which turns tokens into text (got none)")
            decode = partial(self.source.text().decode, continues=True)
        found: list[int] = []
        reach = 8 + 4 * max(map(len, stop), default=0)  # tokens that a stop string spans, and some that are no text
        token = self.prefill(prompt, None if keep else 0, sampling)
        changes = self._changes
        while max_new_tokens is None or len(found) < max_new_tokens:
            if token in stop_ids:
                return
            found.append(token)
            yield token
            if stop and any(one in decode(found[-reach:]) for one in stop):
                return
            if self._length >= self.shape.max_len or len(found) == max_new_tokens:
                return
            if self._changes != changes:
                wanted = "a model has one sequence at a time, and Model.batch several"
                raise SpecError(
                    f"Model.tokens: the sequence was changed by another call after {len(found)} tokens; {wanted}"
                )
            token = self.forward_to_token(token, sampling=sampling)
            changes = self._changes

    # more -------------------------------------------------------------------------------------------------------------
    def batch(self, slots: int, **options: Any) -> Batch:
        """Decode up to `slots` sequences at once, which join and leave between steps; `options` are `Batch`'s, which
        says what they do. Raises `CapacityError` where the memory for `slots` caches is not there."""
        from ptxgen.runtime.model.batch import Batch

        _check_options("Model.batch", Batch, 2, options)
        return Batch(self, slots, **options)

    def profile(self, token: int = 0, position: int | None = None, repeats: int = 5) -> Profile:
        """Time and bytes of every op of a step, run `repeats` times; the sequence stays as it is."""
        from ptxgen.runtime.model.profile import profile

        return profile(self, token, position, repeats)

    def attention_with_cache(
        self, q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, k: np.ndarray, v: np.ndarray, layer: int = 0
    ) -> np.ndarray:
        """Attention of one token in a layer from host arrays, float32: q `[n_heads · head_dim]`; k, v, its own key and
        value, `[n_kv_heads · head_dim]`; caches of the positions before it, `[positions, n_kv_heads · head_dim]`.

        Gives `[n_heads · head_dim]`; rotation is the caller's. The model's own sequence has no part in it.
        """
        from ptxgen.runtime.model.hosted import attention_with_cache

        return attention_with_cache(self.device, self.spec, layer, q, (k_cache, v_cache), (k, v))


def _check_options(label: str, made: type, first: int, options: Mapping[str, object], own: Sequence[str] = ()) -> None:
    """`SpecError` for names that are no options of a class: none of its constructor's parameters behind the `first`.
    `own`: the caller's options."""
    from inspect import signature

    known = [*own, *list(signature(made).parameters)[first:]]
    if unknown := [name for name in options if name not in known]:
        raise SpecError(f"{label}: takes {', '.join(known)} (got {', '.join(unknown)}{nearest(unknown[0], known)})")


def _several(label: str, given: object, kind: type) -> tuple[Any, ...]:
    """One of a kind, or several, as several."""
    found = (given,) if isinstance(given, kind) else tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(one, kind) and not isinstance(one, bool) for one in found):
        what = "a string or strings" if kind is str else "an integer or integers"
        raise SpecError(f"{label}: must be {what} (got {brief(given)})")
    return found
