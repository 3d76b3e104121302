"""What the parts of prefill agree on: the attention, and how rows of tokens come and go."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.attention.problem import Attention


@dataclass(frozen=True)
class Prefill:
    """Attention of many query rows; the kernel type that asks for it is not known here.

    `by_token`: q, out and lse are `[n_tokens, n_heads, …]`, else `[n_heads, n_tokens, …]`. `indirect`: lengths are read
    from device memory. A batched cache makes a ragged batch. `lse`: the log-sum-exp is an output.
    """

    attention: Attention
    by_token: bool
    indirect: bool = False
    lse: bool = False

    @property
    def dim(self) -> int:
        """Elements of a row of q, K, V and out: this main loops' tiles are of one width."""
        return self.attention.problem.qk_dim
