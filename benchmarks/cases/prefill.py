"""What prefill attention is measured on: lengths of one prompt, and what else a server asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

Case = dict[str, Any]
SHAPES = ((32, 8, 128), (32, 4, 64))
WIDE, PADDED = (32, 8, 256), (32, 8, 120)
SHAPES_OF = {"head_dim 256": (WIDE,), "8 bits, head_dim 120": (PADDED,)}  # of groups; of all others SHAPES
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
SOME = (1024, 4096, 16384)
UNEQUAL = (4096, 129, 2500, 31, 1024, 3000, 700, 2048, 64, 1500)  # tokens of the sequences of a batch
SAMPLED_ROWS = 96
SETS_BYTES = 200e6  # of all sets of inputs and outputs: beyond the L2 cache


def cases(
    group: str, dtype: str = "bf16", lengths: Sequence[int] = LENGTHS, shapes: Sequence[Sequence[int]] = ()
) -> Iterator[Case]:
    """The cases of one of `GROUPS`, of these (query heads, KV heads, head_dim) or of the group's own.

    Beside heads, tokens and dtype a case has what differs from a causal prompt alone: `causal`; `keys`, of which the
    tokens are the last; `lengths` of a batch's sequences; `page_size` of its caches; `seconds` without a pause;
    `kv_dtype` of keys and values of 8 bits, and `fp8` products of queries with them.
    """
    for heads in shapes or SHAPES_OF.get(group, SHAPES):
        given = dict(zip(("n_heads", "n_kv_heads", "head_dim"), heads, strict=True))
        for tokens, more in _of(group, lengths):
            yield {**given, "tokens": tokens, "dtype": dtype, **more}


def _of(group: str, lengths: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    if group == "prompts":
        yield from ((n, {}) for n in lengths)
    elif group == "sustained":
        yield from ((n, {"seconds": 0.2}) for n in (4096, 16384))
    elif group == "head_dim 256":
        yield from ((n, {}) for n in SOME)
    elif group == "not causal":
        yield from ((n, {"causal": False}) for n in SOME)
    elif group == "chunk":
        yield 512, {"keys": 32768}
    elif group == "few":
        yield from ((64, {"keys": 4096}), (64, {"keys": 16384}), (256, {"keys": 16384}))
    elif group == "unequal":
        yield sum(UNEQUAL), {"lengths": list(UNEQUAL)}
    elif group == "8 bits":
        for more in ({"kv_dtype": "e4m3"}, {"kv_dtype": "s8"}, {"kv_dtype": "e4m3", "fp8": True}):
            yield from ((n, more) for n in SOME[1:])
    elif group == "8 bits, head_dim 120":
        yield from ((n, {"kv_dtype": kind}) for kind in ("e4m3", "s8") for n in SOME[1:])
    elif group == "paged":
        yield from ((sum(n), {"lengths": list(n), "page_size": 16}) for n in ((8192,), UNEQUAL))


GROUPS = (
    "prompts", "chunk", "few", "paged", "unequal", "head_dim 256", "sustained", "8 bits", "8 bits, head_dim 120",
    "not causal",
)  # fmt: skip


def is_alone(case: Case) -> bool:
    """Whether a case is a causal prompt alone, of the heads that all are measured on."""
    return case.keys() == {"n_heads", "n_kv_heads", "head_dim", "tokens", "dtype"} and case["head_dim"] != WIDE[2]


def sequences(case: Case) -> list[tuple[int, int]]:
    """Tokens and keys of every sequence of a case."""
    if "lengths" in case:
        return [(n, n) for n in case["lengths"]]
    tokens: int = case["tokens"]
    return [(tokens, case.get("keys", tokens))]


def flops(case: Case) -> float:
    """Multiply-adds of both products, of the keys that a token sees, counted as two."""
    pairs = 0.0
    for tokens, keys in sequences(case):
        pairs += tokens * keys - (tokens * (tokens - 1) / 2 if case.get("causal", True) else 0)
    return 4 * float(case["n_heads"] * case["head_dim"]) * pairs


class Inputs:
    """Sets of inputs of one case, together more than the L2 cache holds, and float32 results of some rows of the first.

    A set has q, k, v of every sequence as torch tensors `[1, heads, tokens or keys, head_dim]`.
    """

    def __init__(self, case: Case) -> None:
        import torch

        from benchmarks.timing.gpu import sets_for

        self.case, self.flops = case, flops(case)
        h, kv, d = (case[x] for x in ("n_heads", "n_kv_heads", "head_dim"))
        kind = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[case["dtype"]]
        torch.manual_seed(0)
        lengths = sequences(case)
        sets = sets_for(4 * d * sum(h * tokens + kv * keys for tokens, keys in lengths), SETS_BYTES)
        self.sets = [
            [
                [torch.randn(1, heads, n, d, device="cuda", dtype=kind) for heads, n in ((h, tokens), (kv, n), (kv, n))]
                for tokens, n in lengths
            ]
            for _ in range(sets)
        ]
        self.held: list[list[dict[str, Any]]] = []  # by set and sequence: K and V of 8 bits, and their scales
        if "kv_dtype" in case:
            self.held = [[self._hold(each) for each in some] for some in self.sets]
        self.rows = [
            torch.linspace(0, tokens - 1, min(tokens, SAMPLED_ROWS), device="cuda").long().unique()
            for tokens, _ in lengths
        ]
        self.wanted = [self._reference(q, k, v, rows) for (q, k, v), rows in zip(self.sets[0], self.rows, strict=True)]

    def _hold(self, sequence: list[Any]) -> dict[str, Any]:
        """Keys and values of 8 bits, which take the place of those of a sequence: e4m3 with a scale a head, int8 with
        one for 32 values."""
        import torch

        held: dict[str, Any] = {}
        for n, name in ((1, "k"), (2, "v")):
            wide = sequence[n][0].float()
            if self.case["kv_dtype"] == "e4m3":
                held[f"{name}_scale"] = torch.full((wide.shape[0],), 2.0**-5, device="cuda")
                held[name] = (wide * 2**5).to(torch.float8_e4m3fn)
                wide = held[name].float() * 2**-5
            else:
                groups = torch.nn.functional.pad(wide, (0, -wide.shape[-1] % 32)).unflatten(-1, (-1, 32))
                scales = (groups.abs().amax(-1) / 127).half()
                values = (groups / scales[..., None].float()).round().clamp(-127, 127)
                dim = wide.shape[-1]
                held[name] = values.flatten(-2)[..., :dim].to(torch.int8).contiguous()
                held[f"{name}_scales"] = scales
                wide = (values * scales[..., None].float()).flatten(-2)[..., :dim]
            sequence[n] = wide.to(sequence[n].dtype)[None]
        return held

    def _reference(self, q: Any, k: Any, v: Any, rows: Any) -> Any:
        import torch

        group = self.case["n_heads"] // self.case["n_kv_heads"]
        keys = torch.arange(k.shape[2], device="cuda")
        last = rows[:, None] + (k.shape[2] - q.shape[2])
        out = []
        for head in range(self.case["n_heads"]):
            scores = q[0, head, rows].float() @ k[0, head // group].float().T / math.sqrt(self.case["head_dim"])
            if self.case.get("causal", True):
                scores = scores.masked_fill(keys > last, -math.inf)
            out.append(torch.softmax(scores, -1) @ v[0, head // group].float())
        return torch.stack(out)

    def error(self, outs: Sequence[Any]) -> float:
        """‖out − wanted‖ / ‖wanted‖ over the sampled rows; `outs` are `[heads, tokens, head_dim]`, a sequence each."""
        import torch

        wanted = torch.cat([each.flatten() for each in self.wanted])
        got = torch.cat([out[:, rows].float().flatten() for out, rows in zip(outs, self.rows, strict=True)])
        return float(torch.linalg.norm(got - wanted) / torch.linalg.norm(wanted))
