"""An attention: what is computed, what a score goes through, where the rows of K and V lie."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.attention.cache import Cache
from ptxgen.attention.problem import Problem
from ptxgen.attention.variant import Variant


@dataclass(frozen=True)
class Attention:
    """All that the parts of decode and of prefill are told of what they compute."""

    variant: Variant
    cache: Cache

    @property
    def problem(self) -> Problem:
        """Sizes and types, which the cache's rows have from here, too."""
        return self.cache.problem
