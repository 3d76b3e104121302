"""The classes that vLLM asks a backend for: what it can, a batch's metadata, and a layer's attention.

vLLM's blocks are our pages in the layout "nhd": K and V of a layer lie in a piece each, `[blocks, block_size, kv_heads,
head_size]`. Versions up to 0.26 ask for the shape `[2, blocks, …]` of both; 0.33 hands out `[blocks, slots, block_size,
content]`, and is asked for two slots, K and V, in the layout that has a slot's blocks side by side. Interface tested
against a recorded contract, never run in vLLM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm import envs
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from ptxgen.errors import SpecError
from ptxgen.torch_pages import append, attend

MOST_HEAD_SIZE = 512


class PtxgenAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """What the kernels can, as vLLM asks."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update: bool = True
    accept_output_buffer: bool = True

    @staticmethod
    def get_name() -> str:
        """The name of the slot that vLLM keeps for others' backends."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[PtxgenAttentionImpl]:
        """What computes a layer."""
        return PtxgenAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[PtxgenMetadataBuilder]:
        """What prepares a batch."""
        return PtxgenMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Sizes of a page."""
        return [MultipleOf(16)]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Two slots, K and V, of all heads' rows. Raises `SpecError` for values of another width than keys."""
        if spec.state_content_bytes is not None:
            return spec
        if spec.head_size_v != spec.head_size:
            raise SpecError(f"head_size_v: must be head_size={spec.head_size} (got {spec.head_size_v})")
        content = spec.num_kv_heads * spec.head_size * spec.dtype.itemsize
        return replace(spec, num_head_slots=2, state_content_bytes=content)

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """A slot's blocks side by side."""
        from vllm.v1.kv_cache_interface import KVCacheLayout

        return (KVCacheLayout.LHBNC,)

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """K and V in one piece each, as asked up to 0.26. Raises `SpecError` for a block size that is no multiple of
        16."""
        if block_size % 16:
            raise SpecError(f"block_size: must be a multiple of 16 (got {block_size})")
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Multiples of 8 up to 512."""
        return head_size % 8 == 0 and 0 < head_size <= MOST_HEAD_SIZE

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Windows of any width; vLLM asks since 0.26."""
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        """A logit per head without a value."""
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Results of a request do not depend on the batch; asked for by VLLM_BATCH_INVARIANT."""
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Turing and later."""
        return tuple(capability) >= (7, 5)

    @staticmethod
    def use_cascade_attention(*_: Any, **__: Any) -> bool:
        """A common prefix is not treated apart."""
        return False


@dataclass
class PtxgenMetadata:
    """A batch as the kernels take it: requests' tokens one after the other, keys in pages."""

    num_actual_tokens: int
    single: bool  # a token of every request
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_block: Tensor  # int32 [tokens, 1]: the page of a token's key; below 0: none
    slot_row: Tensor  # int32 [tokens]: its row there


class PtxgenMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Metadata of a batch; made once for all layers of a group."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.block_size: int = kv_cache_spec.block_size

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> PtxgenMetadata:
        """From what vLLM knows of the batch. Raises `SpecError` for attention that is not causal."""
        common = common_attn_metadata
        if common.causal is not True:
            raise SpecError("causal: must be True for every request (got another value)")
        slots = common.slot_mapping
        return PtxgenMetadata(
            num_actual_tokens=common.num_actual_tokens,
            single=common.max_query_len == 1 and common.num_reqs == common.num_actual_tokens,
            query_start_loc=common.query_start_loc,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_block=torch.div(slots, self.block_size, rounding_mode="floor").int()[:, None],
            slot_row=torch.where(slots < 0, -1, slots % self.block_size).int(),
        )


class PtxgenAttentionImpl(AttentionImpl):  # type: ignore[misc]
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
        **_: Any,
    ) -> None:
        if alibi_slopes is not None:
            raise SpecError("alibi_slopes: prefill has none (got some); choose another attention backend")
        if attn_type != AttentionType.DECODER:
            raise SpecError(f"attn_type: must be {AttentionType.DECODER!r} (got {attn_type!r})")
        if kv_cache_dtype not in PtxgenAttentionBackend.supported_kv_cache_dtypes:
            known = ", ".join(PtxgenAttentionBackend.supported_kv_cache_dtypes)
            raise SpecError(f"kv_cache_dtype: must be one of {known} (got {kv_cache_dtype!r})")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.window, self.soft_cap = sliding_window or 0, logits_soft_cap or 0.0
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks  # their values are loaded later
        self.invariant = bool(getattr(envs, "VLLM_BATCH_INVARIANT", False))

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: PtxgenMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Append key and value `[tokens, kv_heads, head_size]`, attend with query `[tokens, heads, head_size]`, fill
        output `[tokens, heads · head_size]`; without metadata, on vLLM's profiling run, zeros. Raises `SpecError` for
        a cache of another shape or layout than was asked for, and for outputs that are quantised."""
        if output_scale is not None or output_block_scale is not None:
            raise SpecError("output_scale: outputs are not quantised (got a scale)")
        if attn_metadata is None:
            return output.zero_()
        tokens, shape = attn_metadata.num_actual_tokens, (-1, self.num_heads, self.head_size)
        sinks = None if self.sinks is None else self.sinks.float()
        k, v = self._planes(kv_cache)
        if self.kv_sharing_target_layer_name is None and key is not None:
            append(key[:tokens], value[:tokens], k, v, attn_metadata.slot_block, attn_metadata.slot_row)
        attend(
            query[:tokens].view(shape), k, v, output[:tokens].view(shape), attn_metadata.block_table,
            attn_metadata.query_start_loc, attn_metadata.seq_lens, sinks, scale=self.scale,
            soft_cap=self.soft_cap, window=self.window, single=attn_metadata.single, invariant=self.invariant,
        )  # fmt: skip
        return output

    def _planes(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """K and V `[blocks, block_size, kv_heads, head_size]`, in one piece each."""
        heads, shape = (self.num_kv_heads, self.head_size), kv_cache.shape
        if len(shape) == 5 and shape[0] == 2 and shape[3:] == heads:
            k, v = kv_cache.unbind(0)
        elif len(shape) == 4 and shape[1] == 2 and shape[3] == math.prod(heads):
            k, v = (slot.unflatten(-1, heads) for slot in kv_cache.unbind(1))
        else:
            raise SpecError(
                f"kv_cache: must be [2, blocks, block_size, {heads[0]}, {heads[1]}] or [blocks, 2, block_size, "
                f"{math.prod(heads)}] (got {list(shape)})"
            )
        if not (k.is_contiguous() and v.is_contiguous()):
            raise SpecError(
                f"kv_cache: K and V must lie in one piece each, layout LHBNC (got strides {kv_cache.stride()})"
            )
        return k, v
