"""What the parts of prefill agree on: the attention, and how rows of tokens come and go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ptxgen.attention.attention import Attention
from ptxgen.attention.problem import Problem
from ptxgen.errors import SpecError


def problem_rules(problem: Problem) -> Iterator[str]:
    """Why these main loops cannot compute a problem: they take rows of many query positions, of q, K, V and out of one
    width."""
    if problem.queries == 1:
        yield "queries: prefill takes all positions of a prompt (got 1; nearest: 'n_tokens')"
    if problem.v_dim != problem.qk_dim:
        yield (
            f"v_dim: prefill takes rows of q, K, V and out of one width (got v_dim={problem.v_dim}, "
            f"qk_dim={problem.qk_dim}; nearest: {problem.qk_dim})"
        )
    if problem.v_in_k:
        yield "v_in_k: prefill reads V from its own buffer (got v_in_k=True; nearest: False)"


@dataclass(frozen=True)
class Prefill:
    """Attention of many query rows; the kernel type that asks for it is not known here.

    `indirect`: lengths are read from device memory. A batched cache makes a ragged batch. `lse`: the log-sum-exp is an
    output. `fp8`: queries become e4m3, a scale a row. `widened`: keys and values of 8 bits become 16-bit ones in memory
    first. `split_keys`: CTAs may share the keys of a tile of rows.
    """

    attention: Attention
    indirect: bool = False
    lse: bool = False
    fp8: bool = False
    widened: bool = False
    split_keys: bool = False

    def __post_init__(self) -> None:
        reasons = tuple(problem_rules(self.attention.problem))
        if reasons:
            raise SpecError("; ".join(reasons))

    @property
    def dim(self) -> int:
        """Elements of a row of q, K, V and out: `problem_rules` refuses those of several widths."""
        return self.attention.problem.qk_dim
