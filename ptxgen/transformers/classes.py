"""Models that choose among attention classes of their own: they have no place for ours, and one sentence says so.

Owns nothing that computes.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from transformers import PreTrainedModel

NAMED = "_ATTENTION_CLASSES"  # how transformers' modules call these tables


def refuse_by_name(name: str) -> None:
    """Have such models (Falcon, GPT-Neo, Bark) raise a `ValueError` where `attn_implementation` is `name`, which
    is Python's KeyError otherwise. Calling it again changes nothing."""
    checked = PreTrainedModel.get_correct_attn_implementation
    if getattr(checked, "names", None) == name:
        return

    @functools.wraps(checked)
    def check(model: Any, requested: str | None, *more: Any, **options: Any) -> Any:
        if requested == name:
            for table in _tables(type(model)):
                table.setdefault(name, functools.partial(_refuse, name, sorted(table)))
        return checked(model, requested, *more, **options)

    check.names = name  # type: ignore[attr-defined]
    PreTrainedModel.get_correct_attn_implementation = check


def _tables(model: type) -> list[dict[str, Any]]:
    """The tables beside the class of a model."""
    module = vars(sys.modules.get(model.__module__, sys))
    return [table for key, table in module.items() if key.endswith(NAMED) and isinstance(table, dict)]


def _refuse(name: str, others: list[str], config: Any, *_: Any, **__: Any) -> None:
    said = f"models of type {config.model_type} have no place for attn_implementation={name!r}"
    raise ValueError(f"ptxgen.transformers: {said}: they choose among classes of their own, {', '.join(others)}")
