"""Who takes part in the decode attention benchmark: our kernel in its variants, torch's SDPA, FlashInfer.

An implementation takes the inputs of a case and returns its time and error; `Refused` says why it does not run one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.cases.decode import Case, Inputs
from benchmarks.timing.prepared import kernel
from ptxgen.kernel import KernelType

Measured = tuple[float, float]  # µs a call, error
Implementation = Callable[[Inputs], Measured]


class Refused(Exception):
    """A case that an implementation does not run, and why."""


def timed(inputs: Inputs, call_of: Callable[[Any], Callable[[], Any]], caches: list[Any], out: Any = None) -> Measured:
    """Time of the calls over all sets of caches, and the error of the first (in `out`, or returned by the call)."""
    import torch

    from benchmarks.timing.gpu import graph_us

    calls = [call_of(each) for each in caches]
    result = calls[0]()
    torch.cuda.synchronize()
    error = inputs.error(result if out is None else out)
    return graph_us(calls * max(1, -(-8 // len(calls)))), error


@contextmanager
def bound(inputs: Inputs, out: Any, target: str = "", **options: bool) -> Iterator[Callable[[Any], Callable[[], None]]]:
    """IncrementalAttention with the plan of `target` (default: of this GPU): from caches to the call that attends."""
    from benchmarks.timing.gpu import Loaded

    case, spec, machine = inputs.case, inputs.case.spec(**options), this_machine()
    loaded = Loaded(*kernel(spec, target or machine, machine), batch=case.batch, pages=inputs.shape[0])
    lengths = {"seq_lens" if spec.batched else "seq_len": inputs.lengths}
    table = {"page_table": inputs.table} if case.page_size else {}
    try:
        yield lambda kv: loaded.bind(q=inputs.q, out=out, **kv, **table, **lengths)
    finally:
        loaded.close()


def this_machine() -> str:
    """The GPU's architecture."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def ours(target: str = "", **options: bool) -> Implementation:
    """IncrementalAttention with these options."""

    def measure(inputs: Inputs) -> Measured:
        import torch

        out = torch.full_like(inputs.q, math.nan)
        with bound(inputs, out, target, **options) as call_of:
            return timed(inputs, call_of, inputs.caches, out)

    return measure


def sdpa(backend: str) -> Implementation:
    """torch's scaled_dot_product_attention with one of its backends."""

    def measure(inputs: Inputs) -> Measured:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        case = inputs.case
        if case.ragged or case.page_size or case.kv_dtype not in ("f16", "bf16"):
            raise Refused("takes equal lengths in f16 or bf16, not paged")
        q = inputs.q[:, :, None].to(inputs.caches[0]["k_cache"].dtype)

        def call(kv: dict[str, Any]) -> Callable[[], Any]:
            k, v = (kv[name][:, :, : case.context] for name in ("k_cache", "v_cache"))

            def attend() -> Any:
                with sdpa_kernel(getattr(SDPBackend, backend)):
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, enable_gqa=case.n_heads != case.n_kv_heads
                    )

            return attend

        return timed(inputs, call, inputs.caches)

    return measure


OURS: Mapping[str, tuple[str, dict[str, bool]]] = {  # target ("": this GPU's) and options
    "ptxgen": ("", {}),
    "ptxgen-programmatic": ("", {"programmatic": True}),
    "ptxgen-sm_80": ("sm_80", {}),
    "ptxgen-invariant": ("", {"batched": True, "batch_invariant": True}),
}


def kernels(cases: Iterable[Case], names: Iterable[str], machine: str) -> Iterator[tuple[KernelType, str]]:
    """Spec and target of what these implementations launch for these cases."""
    which = [OURS[name] for name in names if name in OURS]
    for case in cases:
        yield from ((case.spec(**options), target or machine) for target, options in which)


IMPLEMENTATIONS: dict[str, Implementation] = {
    **{name: ours(target, **options) for name, (target, options) in OURS.items()},
    "sdpa-cudnn": sdpa("CUDNN_ATTENTION"),
    "sdpa-flash": sdpa("FLASH_ATTENTION"),
}
