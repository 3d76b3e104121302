"""What is known of a spec's fields beyond their rules: values to try, values to refuse, what they mean.

It stands beside the field, by `field(…)`; for names that many kernel types share, in `SHARED`; else it follows from the
field's rules and type. Tests and help texts read it, texts do not. Owns no rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import DTYPES, dtype
from ptxgen.spec.legality import bounds, choices

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType

Values = Sequence[object] | Callable[[Mapping[str, Any]], Sequence[object]]
MOST_DRAWN = 1 << 18  # of a size whose rule sets no closer bound


@dataclass(frozen=True)
class Domain:
    """What is known of a field."""

    draws: Values = ()
    """Values to try, or a function from the fields drawn before to such values. Without any the default is kept."""
    refuses: tuple[object, ...] = ()
    """Values that no spec has, whatever its other fields."""
    every: bool = False
    """Whether tests try every one of `draws`, not some."""
    local: bool = False
    """Whether another value changes only those lines of a text that hold it, where the launch's shape is the same."""
    silent: str = ""
    """Why the results of a run do not tell this field's value from its default; empty where they do."""
    later: bool = False
    """Whether the spec's repr, a text's first line, shows it only where it is not the default: texts from before the
    field stay as they were."""
    doc: str = ""
    """What it means: the help of the command line, where the class's docstring says nothing."""

    def values(self, drawn: Mapping[str, Any]) -> Sequence[object]:
        """The values to try beside the fields that are drawn already."""
        return self.draws(drawn) if callable(self.draws) else self.draws


def field(
    *,
    default: Any = MISSING,
    draws: Values | None = None,
    refuses: Sequence[object] | None = None,
    every: bool | None = None,
    local: bool | None = None,
    silent: str | None = None,
    later: bool | None = None,
    doc: str | None = None,
) -> Any:
    """A field of a kernel type, with what `Domain` says of each word; what is not given is as without `field`.

    `n: int = field(draws=(1, 7, 4096))` has no default, `eps: float = field(default=1e-5, draws=(0.0, 1e-6))` has.
    """
    given = {"draws": draws, "refuses": refuses, "every": every, "local": local, "silent": silent, "later": later,
             "doc": doc}  # fmt: skip
    said = {name: value for name, value in given.items() if value is not None}
    return dataclasses.field(default=default, metadata=said)


def domain(cls: type[KernelType], name: str) -> Domain:
    """What is known of a field of a kernel type."""
    found = {f.name: f for f in dataclasses.fields(cls)}[name]  # type: ignore[arg-type]
    known: dict[str, Any] = {**SHARED.get(name, {}), **found.metadata}
    if not known.keys() >= {"draws", "refuses"}:
        known = {**_by_rules(cls, found), **known}
    if not callable(known["draws"]) and not str(found.type).replace(" ", "").endswith("|None"):
        known["draws"] = tuple(value for value in known["draws"] if value is not None)
    return Domain(**{**known, "refuses": tuple(known["refuses"])})


def _by_rules(cls: type[KernelType], found: dataclasses.Field[Any]) -> dict[str, tuple[object, ...]]:
    """Values to draw and to refuse that follow from a field's type and rules."""
    kind = str(found.type).replace(" ", "").removesuffix("|None")
    if kind == "bool":
        return {"draws": (False, True), "refuses": ()}
    listed: tuple[object, ...] = choices(cls, found.name)
    if listed and kind == "DType":
        return {"draws": tuple(map(dtype, listed)), "refuses": tuple(t for t in DTYPES if t not in listed)[-1:]}
    if listed:
        return {"draws": listed, "refuses": ("?",)}
    within = bounds(cls, found.name) if kind in ("int", "float") else None
    if within is None:
        return {"draws": (), "refuses": ()}
    low, high, step = within
    draws = sizes(int(low), int(high), step) if kind == "int" else (low, high)
    return {"draws": draws, "refuses": (low - step,)}


def sizes(low: int, high: int, step: int = 1) -> tuple[int, ...]:
    """Numbers from `low` to `high` in steps: both ends, and those about powers of two."""
    near = {(1 << bits) + offset for bits in range(MOST_DRAWN.bit_length()) for offset in (-step, 0, step)}
    near |= {low, low + step, high - step, high}
    return tuple(sorted(n for n in near if low <= n <= high and (n - low) % step == 0))


def _query_heads(drawn: Mapping[str, Any]) -> Sequence[object]:
    return [group * max(1, drawn.get("n_kv_heads", 1)) for group in GROUPS]


def _windows(drawn: Mapping[str, Any]) -> Sequence[object]:
    longest = drawn.get("max_len") or MOST_DRAWN
    return [min(window, longest) for window in (0, 1, 100, 4096)]


def _rings(drawn: Mapping[str, Any]) -> Sequence[object]:
    window = drawn.get("window") or (0 if "window" in drawn else 1)
    return (0,) if drawn.get("page_size") or not window else (0, -(-window // 64) * 64, -(-window // 64) * 64 + 128)


GROUPS = (*range(1, 17), 24, 32, 64)  # query heads of a KV head
_CAPACITY = "no result depends on it within the capacity"

# Names that mean the same wherever they stand.
SHARED: Mapping[str, Mapping[str, Any]] = {
    "max_len": dict(
        doc="positions the cache holds for a sequence", draws=sizes(1, MOST_DRAWN), refuses=(-1,), local=True,
        silent=_CAPACITY,
    ),
    "head_dim": dict(doc="elements of a head", draws=tuple(range(8, 513, 8)), refuses=(100,), every=True),
    "n_heads": dict(doc="query heads", draws=_query_heads, refuses=(0,), every=True),
    "n_kv_heads": dict(
        doc="heads of K and V; n_heads is a multiple of it", draws=(1, 2, 3, 4, 8, 16), refuses=(-1,), local=True
    ),
    "kv_dtype": dict(doc="element type of the KV cache"),
    "q_dtype": dict(doc="element type of queries and outputs"),
    "src_dtype": dict(doc="element type of what is appended"),
    "dtype": dict(doc="element type"),
    "indirect": dict(doc="lengths or positions are read from device memory"),
    "batched": dict(doc="several sequences in one launch"),
    "causal": dict(doc="a query sees only positions up to its own"),
    "scale": dict(doc="factor of the logits; default 1 / sqrt(head_dim)", draws=(None, 0.0625, 1.0)),
    "soft_cap": dict(
        doc="logits become soft_cap * tanh(logit / soft_cap); 0: off", draws=(0.0, 30.0, 50.0), refuses=(-1.0,)
    ),
    "window": dict(doc="a query sees only that many latest positions; 0: all", draws=_windows, refuses=(-1,)),
    "theta": dict(doc="base of the RoPE frequencies", draws=(10000.0, 500000.0)),
    "style": dict(doc="pairs that rotate together: norm (adjacent) or neox (halves)"),
    "rotary_dim": dict(
        doc="elements of a head that are rotated, from its start", draws=(None, 8, 16, 32, 48), refuses=(4,)
    ),
    "scaling": dict(doc="of the RoPE frequencies for long contexts: default, linear or llama3"),
    "factor": dict(doc="how much longer the context becomes, with scaling linear or llama3", draws=(1.0, 8.0)),
    "low_freq_factor": dict(doc="llama3: wavelengths above original_max_len / it are scaled by the whole factor"),
    "high_freq_factor": dict(doc="llama3: wavelengths below original_max_len / it are not scaled"),
    "original_max_len": dict(doc="llama3: the context that the model was first trained for", draws=(8192,)),
    "freq_factors": dict(doc="a divisor of each RoPE frequency, separated by commas; none by default"),
    "attention_factor": dict(doc="factor of sine and cosine (YaRN, LongRoPE)"),
    "precise": dict(doc="sine and cosine by polynomials instead of the hardware's approximations"),
    "in_place": dict(doc="results replace the inputs"),
    "page_size": dict(doc="positions of a page of the cache; 0: no pages", draws=(0, 16, 48, 64), refuses=(-1,)),
    "page_layout": dict(
        doc="order of a page's axes: hnd (head, position, element) or nhd (position, head, element)",
        draws=lambda drawn: ("hnd", "nhd") if drawn.get("page_size") else ("hnd",), refuses=("?",),
    ),
    "ring": dict(
        doc="rows of a cache that holds the window's positions in turn, a multiple of 64; 0: all positions",
        draws=_rings, refuses=(-1, 63),
    ),
    "programmatic": dict(
        doc="may start before the kernel ahead of it ends, and waits for it where it reads its results",
        silent="it changes when a kernel starts, not what it computes",
    ),
    "sinks": dict(doc="a logit per head joins the softmax without a value, from a parameter"),
    "max_chunks": dict(
        doc="parts of a sequence at most, of whose results there is room for so many", silent=_CAPACITY
    ),
    "ctas": dict(doc="CTAs that keep the GPU busy: sequences are cut for no more"),
    "alibi": dict(doc="scores take a slope per head and distance, from a parameter"),
    "layout": dict(doc="order of the axes: tokens (token, head, element) or heads (head, token, element)"),
    "eps": dict(doc="added to the mean of squares", silent="beside squares about 1 it is less than a comparison tells"),
    "residual": dict(doc="the residual stream is added"),
    "bias": dict(doc="a vector is added to every row"),
    "lse": dict(doc="also write the log-sum-exp of each row"),
}  # fmt: skip
