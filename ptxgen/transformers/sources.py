"""What the source text of a module of transformers tells. Imports neither torch nor transformers."""

from __future__ import annotations


def reads_masks(source: str) -> bool:
    """Whether a model looks into the mask that it is given, to make another one (Doge, DeepSeek V3.2): such
    models first ask, by these words, whether it is one of booleans. Some that only leave out masked rows do, too."""
    return "attention_mask.dtype == torch.bool" in source
