"""Products of one token in a chain, as the layers of real models have them: each waits for the one before.

    python -m benchmarks.product_chain                                       measure on a GPU, print, append rows
    python -m benchmarks.product_chain --models tinyllama-1.1b --weights q4_k,bf16 --geometries 16x2x132,8x4x264

Of every layer QKV, O, gate and up, and down, with norms and residuals; matrices all distinct, so that a pass reads as
much as a step of the model does (attention and head are left out). Nodes are launched programmatically. `alone`: the
same without programmatic launches. `floor`: reading as many bytes by one kernel. A geometry is warps of a CTA, tiles on
their way, and CTAs; without one, the table's.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from benchmarks.cases.models import MODELS
from benchmarks.products import PATTERN, _pattern
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import SECONDS, in_time
from ptxgen.generator import generate
from ptxgen.kernels import Gemv
from ptxgen.tuning import ProductChoice, fixed, using
from ptxgen.weights import weight_format

WEIGHTS = ("q4_k", "q6_k", "bf16", "q8_0", "int4_g128", "e4m3_channel")


def layer(config: dict[str, Any], weights: str) -> tuple[Gemv, ...]:
    """The products of a layer."""
    dim, hidden = config["hidden_size"], config["intermediate_size"]
    head_dim, kv_heads = config["head_dim"], config["num_key_value_heads"]
    wide = config["num_attention_heads"] * head_dim
    return (
        Gemv(wide + 2 * kv_heads * head_dim, dim, weights, norm="rms"),
        Gemv(dim, wide, weights, residual=True),
        Gemv(hidden, dim, weights, norm="rms", gated=True, activation="silu"),
        Gemv(dim, hidden, weights, residual=True),
    )


def chosen(given: str) -> AbstractContextManager[object]:
    """A geometry for all products, instead of the table's."""
    return using(fixed(ProductChoice(*map(int, given.split("x"))))) if given else nullcontext()


class Chain:
    """The weights and vectors of a model's layers on the device."""

    def __init__(self, config: dict[str, Any], weights: str) -> None:
        import torch

        self.specs, self.layers = layer(config, weights), config["num_hidden_layers"]
        self.weights = [[_matrix(spec) for spec in self.specs] for _ in range(self.layers)]
        self.nbytes = sum(each.numel() for per_layer in self.weights for each in per_layer)
        widths = (self.specs[0].n, self.specs[1].n, self.specs[2].n)
        self.qkv, self.stream, self.hidden = (torch.zeros(width, device="cuda") for width in widths)
        self.gains = torch.ones(self.specs[0].k, device="cuda")

    def us(self, target: str, *, programmatic: bool) -> float:
        """Microseconds of all layers."""
        import torch

        from benchmarks.timing.gpu import Loaded, graph_us

        self.stream.copy_(torch.randn(self.stream.numel(), generator=torch.Generator().manual_seed(0)))
        specs = [dataclasses.replace(spec, programmatic=programmatic) for spec in self.specs]
        kernels = [Loaded(generate(spec, target)) for spec in specs]
        stream, qkv, hidden = self.stream, self.qkv, self.hidden
        ways = ((stream, qkv), (qkv, stream), (stream, hidden), (hidden, stream))
        calls = []
        for matrices in self.weights:
            for spec, kernel, matrix, (x, out) in zip(specs, kernels, matrices, ways, strict=True):
                norm = {"norm_weight": self.gains} if spec.norm else {}
                calls.append(kernel.bind(x=x, weight=matrix, out=out, **norm))
        us = graph_us(calls, replays=7) * len(calls)
        for kernel in kernels:
            kernel.close()
        return us

    def result(self) -> Any:
        """The residual stream after the passes since it was last set: the same for every geometry but for rounding."""
        return self.stream.cpu()


def _matrix(spec: Gemv) -> Any:
    """Packed weights whose rows repeat."""
    import torch

    kind = weight_format(spec.weights)
    packed, _ = _pattern(spec.weights, spec.k)
    pattern = torch.from_numpy(packed).cuda().reshape(PATTERN // 16, -1)
    records = kind.records(spec.n) * spec.parts
    return pattern.repeat(-(-records // (PATTERN // 16)), 1)[:records].contiguous()


def main(run: Run, given: argparse.Namespace) -> None:
    """All models and weights, or those chosen, as far as the time goes."""
    import torch

    from benchmarks.peers.read_floor import Floor
    from ptxgen.targets import target_of_capability

    ends = time.monotonic() + given.seconds
    target = target_of_capability(*torch.cuda.get_device_capability()).name
    floor = Floor() if given.floor else None
    for model, weights in in_time(list(itertools.product(given.models.split(","), given.weights.split(","))), ends):
        chain = Chain(MODELS[model], weights)
        case = {"model": model, "weights": weights}
        for each in given.geometries.split(","):
            with chosen(each):
                for impl in ("programmatic", "alone") if each in ("", "16x2x132") else ("programmatic",):
                    us = chain.us(target, programmatic=impl == "programmatic")
                    more = {"geometry": each} if each else {}
                    measures = {"us": us, "bytes": chain.nbytes, "tbs": chain.nbytes / us / 1e6}
                    run.add(case | more, impl, **measures)
                    finite = bool(torch.isfinite(chain.result()).all())
                    print(case | more, impl, f"{us:.1f} us {chain.nbytes / us / 1e6:.2f} TB/s", finite, flush=True)
        if floor is not None:
            us = floor.us(min(chain.nbytes, 2_000_000_000)) * max(1.0, chain.nbytes / 2e9)
            run.add(case, "floor", us=us, bytes=chain.nbytes, tbs=chain.nbytes / us / 1e6)
            print(case, "floor", f"{us:.1f} us", flush=True)
        del chain
        torch.cuda.empty_cache()


OPTIONS = (
    ("--models", {"default": "tinyllama-1.1b,qwen2.5-1.5b,llama-3-8b", "help": "only these, separated by commas"}),
    ("--weights", {"default": ",".join(WEIGHTS), "help": "only these formats"}),
    ("--geometries", {"default": "", "help": "warps x tiles on their way x CTAs, each instead of the table's"}),
    SECONDS,
    ("--no-floor", {"dest": "floor", "action": "store_false", "help": "leave the read out"}),
)

if __name__ == "__main__":
    command("product_chain", __doc__, main, *OPTIONS, device=gpu, at_once=True)
