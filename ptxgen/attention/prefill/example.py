"""An example of prefill: lengths, tokens dealt out to a batch, large queries, and what each row of out and lse must
hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import lengths
from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.problem import Problem
from ptxgen.attention.reference import as_e4m3, attend, cached_rows
from ptxgen.spec.cache_fields import given_head_scales

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray]


def past(prefill: Prefill, arguments: Arrays) -> lengths.Past:
    """What lies behind the tokens and the keys that count."""
    cache, problem = prefill.attention.cache, prefill.attention.problem
    q, keys = arguments["q"], [arguments[x] for x in ("k", "v", "k_scales", "v_scales") if x in arguments]
    if cache.batched:
        yield q, slice(arguments["q_starts"][-1], None)
        if cache.page_size:
            yield from lengths.past_pages(keys, arguments["page_table"], arguments["kv_lens"], cache.heads_inside)
        else:
            yield from lengths.past_lengths(keys, arguments["kv_lens"])
        return
    q_len, kv_len = (int(x[0] if prefill.indirect else x) for x in (arguments["q_len"], arguments["kv_len"]))
    yield q, slice(q_len, None) if problem.by_token else (slice(None), slice(q_len, None))
    in_rows = slice(kv_len, None) if cache.by_token else (slice(None), slice(kv_len, None))
    yield from ((x, in_rows) for x in keys)


def given(prefill: Prefill, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Lengths, tables and scales; in a batch the tokens are dealt out and the lengths drawn at random. With `q_factor`
    queries are normal numbers times that."""
    import numpy as np

    from ptxgen.spec.examples import scaled

    attention = prefill.attention
    cache = attention.cache
    out: dict[str, Any] = {"q_rows": sizes["n_tokens"], "kv_rows": sizes["n_keys"]}
    if cache.batched:
        inner = np.sort(rng.integers(0, sizes["n_tokens"], sizes["batch"] - 1, endpoint=True))
        out["q_starts"] = np.array([0, *inner, sizes["n_tokens"]], np.int32)
        out["kv_lens"] = rng.integers(0, cache.max_len, sizes["batch"], np.int32, endpoint=True)
        out["n_sequences"] = sizes["batch"]
        out |= cache.given_table(rng, sizes, out["kv_lens"])
    else:
        room = {"q_len": sizes["n_tokens"], "kv_len": cache.max_len or sizes["n_keys"]}
        for name, most in room.items():
            length = most if sizes[name] < 0 else sizes[name]
            out[name] = np.array([length], np.int32) if prefill.indirect else length
    if attention.variant.head_scales:
        out |= given_head_scales(rng, attention.problem.n_kv_heads)
    if sizes["q_factor"] != 1:
        out["q"] = scaled(attention.problem.q(), rng, sizes, sizes["q_factor"])
    return out | cache.given_scales(rng, sizes, 0.005, 0.02)


def reference(prefill: Prefill, a: Mapping[str, Any]) -> Arrays:
    """out and lse; rows that no token has stay as they are."""
    import numpy as np

    attention, problem = prefill.attention, prefill.attention.problem
    out: Arrays = {name: a[name].copy() for name in ("out", "lse") if name in a}
    if attention.cache.batched:
        starts, count = a["q_starts"], int(a["n_sequences"])
        spans: list[tuple[int, ...]] = [
            (int(starts[s]), int(starts[s + 1] - starts[s]), int(a["kv_lens"][s])) for s in range(count)
        ]
    else:
        spans = [(0, int(np.ravel(a["q_len"])[0]), int(np.ravel(a["kv_len"])[0]))]
    for s, (first, q_len, kv_len) in enumerate(spans):
        k, v = (rows[:, : max(0, kv_len)] for rows in cached_rows(attention, a, s, ""))
        tokens = slice(first, first + max(0, q_len))
        q = _by_head(problem, a["q"], tokens)
        if prefill.fp8:
            q = as_e4m3(q)
        values, sums = attend(attention, q.reshape(problem.n_heads, -1, prefill.dim), k, v, k.shape[1] - 1, a)
        for name, found in (("out", values.astype(problem.q_dtype.numpy)), ("lse", sums)):
            if name in out:
                rows = _by_head(problem, out[name], tokens)
                rows[...] = found.reshape(rows.shape)
    return out


def _by_head(problem: Problem, array: np.ndarray, tokens: slice) -> np.ndarray:
    """A view of these tokens' rows of q, out or lse, their axis behind those of heads."""
    if problem.by_token:
        array = array.swapaxes(0, 1)
    rows: np.ndarray = array[:, tokens]
    return rows.swapaxes(1, 2) if problem.heads_inside else rows
