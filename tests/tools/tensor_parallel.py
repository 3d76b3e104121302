"""Whether models that transformers shards over processes choose the tokens of whole ones, with our attention in both.

    torchrun --nproc-per-node 2 -m tests.tools.tensor_parallel [FAMILY …]

Needs accelerate, as `tp_plan` does. A GPU a process and NCCL, or without GPUs gloo and the CPU executor. Every process
builds the same model with random weights, rank 0 saves it, and all load it with `tp_plan="auto"`. Exit 1: a token
differs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

try:
    import accelerate  # noqa: F401
    import torch
    import torch.distributed as dist
    import transformers
except ImportError as missing:
    raise SystemExit(f"tensor_parallel: {missing}") from None

from tests.transformers.models import build, continued, prompts

FAMILIES = ("llama", "qwen3", "mistral")


def main(families: list[str]) -> int:
    rank, cuda = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    where = f"cuda:{rank}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=60))
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, 0, device=torch.device(where) if cuda else None)
    same = [compare(family, where, Path(folder[0]) / family, rank) for family in families]
    dist.destroy_process_group()
    return 0 if all(same) else 1


def compare(family: str, where: str, path: Path, rank: int) -> bool:
    """Whether the tokens of all three are the same: the whole model eagerly and with ours, the sharded one."""
    whole = build(family, where, num_attention_heads=8, num_key_value_heads=4)
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
        print(f"{family}: {tokens.numel()} tokens {said}, {heads} of 4 KV heads a process", flush=True)
    return same


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(FAMILIES)))
