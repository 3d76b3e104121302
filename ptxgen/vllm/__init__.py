"""Our attention as a backend of vLLM, version 1: interface tested, never run in vLLM.

vLLM finds `register` by the entry point `vllm.general_plugins`; `--attention-backend CUSTOM` then chooses it. Importing
this imports neither torch nor vLLM.
"""

from __future__ import annotations

BACKEND = "ptxgen.vllm.backend.PtxgenAttentionBackend"


def register() -> None:
    """Make `AttentionBackendEnum.CUSTOM` ours, unless another plug-in has taken it. Nothing else of vLLM changes."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if not AttentionBackendEnum.CUSTOM.is_overridden():
        register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
