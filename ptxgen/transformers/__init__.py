"""Our attention kernels inside Hugging Face transformers: `install()`, then `attn_implementation="ptxgen"`.

Importing this imports neither torch nor transformers; `install` does.
"""

from __future__ import annotations

from typing import Any

from ptxgen.errors import SpecError

NAME = "ptxgen"
PAGED = f"paged|{NAME}"


def install() -> None:
    """Register `attn_implementation="ptxgen"` with transformers, and "paged|ptxgen" for its continuous batching
    (from 5.19 on it refuses implementations that are not its own).

    Prefill runs through `MultiHeadAttention`, decoding through `IncrementalAttention`, with dynamic and static caches,
    windows, soft caps, sinks and padding on the left; also under `torch.compile(fullgraph=True)` and in CUDA graphs.
    What the kernels cannot (another mask, dropout, gradients, a head size that is no multiple of 8) runs through sdpa,
    or where that lacks soft caps and sinks in plain torch, and one warning names the reason. Models that choose among
    attention classes of their own (Falcon, GPT-Neo) are a `ValueError`. Calling it again changes nothing. Raises
    `ImportError` with the extra to install where torch or transformers is missing.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface

        from ptxgen.transformers.attention import attention
        from ptxgen.transformers.classes import refuse_by_name
        from ptxgen.transformers.mask import bounds_mask
        from ptxgen.transformers.paged import paged_attention
    except ImportError as missing:
        raise ImportError(f"ptxgen.transformers.install: {missing}: pip install 'ptxgen[transformers]'") from missing
    AttentionInterface.register(NAME, attention)
    AttentionInterface.register(PAGED, paged_attention)
    AttentionMaskInterface.register(NAME, bounds_mask)
    refuse_by_name(NAME)


def growing_cache(config: Any) -> Any:
    """A cache to give a model with this `config` as `past_key_values`: a `DynamicCache` that appends keys and values in
    place, where transformers' own copies all of them for every token.

    It keeps room for an eighth more positions, or for 256. Where gradients are enabled, in code that torch compiles,
    and after beams were reordered or positions cropped, it copies as a `DynamicCache` does. Layers with a window are
    transformers' own. For every implementation of attention; ours reads keys and values where they lie. Raises
    `ImportError` with the extra to install where torch or transformers is missing, `SpecError` for what is no config.
    """
    try:
        from transformers import PretrainedConfig

        from ptxgen.transformers.cache import GrowingCache
    except ImportError as missing:
        raise ImportError(f"ptxgen.transformers.growing_cache: {missing}: pip install 'ptxgen[transformers]'") from None
    if config is not None and not isinstance(config, PretrainedConfig):
        got = config.__name__ if isinstance(config, type) else type(config).__name__
        raise SpecError(f"growing_cache(config): must be a model's config, as model.config (got {got})")
    return GrowingCache(config=config)
