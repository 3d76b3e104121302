"""Whether models that transformers shards over processes choose the tokens of whole ones, our attention in both.

    torchrun --nproc-per-node 2 -m tests.tools.tensor_parallel [--backend gloo] [--seconds 60] [FAMILY …]

Needs accelerate, as `tp_plan` does, and pytest. Every process builds the same model with random weights, rank 0 saves
it, and all load it with `tp_plan="auto"`. Exit 1: a token differs; or so many seconds have passed, and every process
prints where it stands.

| there are | each process has | they speak by |
| --- | --- | --- |
| as many GPUs as processes | its own | NCCL |
| fewer | the first one | NCCL over sockets, which takes the processes for hosts of their own; or `--backend gloo` |
| none | the CPU executor | gloo |
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from benchmarks.report.sentence import show_help

if __name__ == "__main__":
    show_help(__doc__)  # before what may be missing
try:
    import accelerate  # noqa: F401
    import pytest  # noqa: F401
    import torch
    import torch.distributed as dist
    import transformers
except ImportError as missing:
    raise SystemExit(f"tensor_parallel: {missing}") from None

from tests.transformers.models import FAMILIES, build, continued, prompts

HEADS, KV_HEADS = 8, 4
SHARED = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


class Place(NamedTuple):
    """Where a process computes, by what it speaks to others, and both in words."""

    device: str
    backend: str
    words: str


def place(rank: int, processes: int, backend: str) -> Place:
    """Of the process of that rank; sets what NCCL and transformers read of the environment."""
    if not torch.cuda.is_available():
        return Place("cpu", "gloo", "the CPU executor, gloo")
    name = torch.cuda.get_device_name(0)
    if torch.cuda.device_count() >= processes:
        return Place(f"cuda:{rank}", backend, f"{processes} × {name}, {backend}")
    os.environ["LOCAL_RANK"] = "0"  # the number of the GPU to transformers
    if backend == "nccl":  # which refuses two ranks of one host on one GPU
        os.environ |= SHARED | {"NCCL_HOSTID": f"process{rank}"}
    how = " over sockets" if backend == "nccl" else ""
    return Place("cuda:0", backend, f"{processes} processes on one {name}, {backend}{how}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Do sharded models choose the tokens of whole ones?")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="between GPUs (default: nccl)")
    parser.add_argument("--seconds", type=float, default=60.0, help="the most that all of it may take (default: 60)")
    given = parser.parse_args(arguments)
    if unknown := set(given.families) - set(FAMILIES):
        parser.error(f"FAMILY: must be of {', '.join(FAMILIES)} (got {', '.join(sorted(unknown))})")
    if not {"RANK", "WORLD_SIZE"} <= set(os.environ):
        print(
            "tensor_parallel: runs under torchrun (--nproc-per-node 2 -m tests.tools.tensor_parallel)", file=sys.stderr
        )
        return 2
    faulthandler.dump_traceback_later(given.seconds, exit=True)
    warnings.filterwarnings("ignore", "Passing `tp_plan`", FutureWarning)
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = place(rank, processes, given.backend)
    if where.device != "cpu":
        torch.cuda.set_device(where.device)
    dist.init_process_group(where.backend, timeout=timedelta(seconds=given.seconds))
    if rank == 0:
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        print(f"{processes} processes: {where.words}; {versions}", flush=True)
    with tempfile.TemporaryDirectory() as own:
        folder = [own]  # of rank 0, which all read
        dist.broadcast_object_list(folder, 0, device=torch.device(where.device))
        families = given.families or list(FAMILIES)
        same = [compare(family, where.device, Path(folder[0]) / family, rank) for family in families]
        dist.barrier()
    dist.destroy_process_group()
    return 0 if all(same) else 1


def compare(family: str, where: str, path: Path, rank: int) -> bool:
    """Whether the tokens of all three are the same: the whole model eagerly and with ours, the sharded one."""
    whole = build(family, where, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS)
    if rank == 0:
        whole.save_pretrained(path)
    dist.barrier()
    ids, mask = prompts(where, "left")
    wanted = [continued(whole, name, ids, mask)[0] for name in ("eager", "ptxgen")]
    sharded = transformers.AutoModelForCausalLM.from_pretrained(
        path, tp_plan="auto", attn_implementation="ptxgen", dtype=torch.float32
    ).eval()
    attention = sharded.model.layers[0].self_attn
    widths: list[int] = []
    attention.k_proj.register_forward_hook(lambda _module, _inputs, out: widths.append(out.shape[-1]))
    tokens, _ = continued(sharded, "ptxgen", ids, mask)
    same = all(torch.equal(tokens, other) for other in wanted)
    if rank == 0:
        heads = widths[0] // attention.head_dim
        said = "the same" if same else "NOT the same"
        print(f"{family}: {tokens.numel()} tokens {said}, {heads} of {KV_HEADS} KV heads a process", flush=True)
    return same


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
