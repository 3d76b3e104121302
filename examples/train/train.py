"""Step 2 of 3, on a GPU: token ids -> float32 weights under Hugging Face's names of a Llama model.

    python train.py build OUT [--steps N] [--dropout 0.05,0.15] [--seconds S]

Trains one model for each dropout, keeps the weights with the lowest validation loss, measures those once on the test
chapters, and writes `OUT/weights.npz` and `OUT/train.json`. Needs torch and numpy only.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).parent
Config = dict


class Attention(nn.Module):
    def __init__(self, c: Config, dropout: float) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.dropout = dropout
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, c["hidden_size"], bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q = self.q_proj(x).view(rows, length, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(rows, length, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        drop = self.dropout if self.training else 0.0
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c, dropout)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = Mlp(c)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.drop(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))


class Llama(nn.Module):
    """The decoder of `transformers`' LlamaForCausalLM with a tied head; logits `[rows, length, vocabulary]`."""

    def __init__(self, c: Config, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, dropout) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.drop = nn.Dropout(dropout)
        half = c["head_dim"] // 2
        rates = c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(c["max_position_embeddings"], dtype=torch.float64)[:, None] * rates
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        deviation = 0.02
        for name, weight in self.named_parameters():
            if weight.dim() == 2:  # the projections back into the residual stream start smaller, as in GPT-2
                back = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=deviation / math.sqrt(2 * len(self.layers)) if back else deviation)

    def forward(self, ids: Tensor) -> Tensor:
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.drop(self.embed_tokens(ids))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.norm(x), self.embed_tokens.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE over split halves: dimension i turns with dimension i + head_dim / 2."""
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def loss_of(model: Llama, ids: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Llama, ids: Tensor, length: int) -> float:
    """Mean loss in nats a token over consecutive windows of `length` tokens."""
    model.eval()
    windows = ids[: (ids.numel() - 1) // length * length + 1].unfold(0, length + 1, length)
    total = sum(loss_of(model, part).item() * len(part) for part in windows.split(32))
    model.train()
    return total / len(windows)


def batch(ids: Tensor, rows: int, length: int, draw: torch.Generator) -> Tensor:
    starts = torch.randint(ids.numel() - length, (rows,), generator=draw).to(ids.device)
    return ids[starts[:, None] + torch.arange(length + 1, device=ids.device)]


def rate_at(step: int, args: argparse.Namespace) -> float:
    """The learning rate: 100 steps up, then a cosine down to a twentieth."""
    warm = min(1.0, (step + 1) / 100)
    return args.rate * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / args.steps))))


def optimiser(model: Llama, args: argparse.Namespace) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": args.decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.95), fused=torch.cuda.is_available())


def train(config: Config, data: dict[str, Tensor], dropout: float, args: argparse.Namespace, end: float) -> tuple:
    """One run: (validation loss, its step, the weights there, the log)."""
    torch.manual_seed(args.seed)
    draw = torch.Generator().manual_seed(args.seed)
    length = config["max_position_embeddings"]
    model = Llama(config, dropout).to(data["train"].device)
    step_once = torch.compile(loss_of) if args.compile else loss_of
    adam = optimiser(model, args)
    best: tuple = (math.inf, 0, {})
    log = []
    for step in range(args.steps):
        for group in adam.param_groups:
            group["lr"] = rate_at(step, args)
        loss = step_once(model, batch(data["train"], args.rows, length, draw))
        adam.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        last = step + 1 == args.steps or time.monotonic() > end
        if (step + 1) % args.every == 0 or last:
            valid = held_out_loss(model, data["valid"], length)
            log.append({"step": step + 1, "train": round(loss.item(), 4), "valid": round(valid, 4)})
            print(f"dropout {dropout}: {log[-1]}, {time.monotonic() - args.started:.0f} s", flush=True)
            if valid < best[0]:
                best = (
                    valid,
                    step + 1,
                    {k: v.detach().float().cpu().numpy().copy() for k, v in model.state_dict().items()},
                )
        if last:
            break
    return (*best, log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=48, help="windows a step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", default="0.05,0.15", help="one run each; the best validation loss is kept")
    parser.add_argument("--every", type=int, default=250, help="steps between validations")
    parser.add_argument("--seconds", type=float, default=240.0, help="stop training after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile the forward pass")
    args = parser.parse_args()
    args.started = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    config = json.loads((HERE / "config.json").read_text())
    with np.load(args.prepared / "tokens.npz") as file:
        data = {name: torch.from_numpy(file[name].astype(np.int64)).to(device) for name in file.files}
    rates = [float(value) for value in args.dropout.split(",")]
    runs = []
    for number, dropout in enumerate(rates):  # each run has an equal share of what time is left
        now = time.monotonic()
        end = now + (args.started + args.seconds - now) / (len(rates) - number)
        runs.append((dropout, *train(config, data, dropout, args, end)))
    dropout, valid, step, weights, _ = min(runs, key=lambda run: run[1])
    model = Llama(config, 0.0).to(device)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    record = {
        "dropout": dropout, "step": step, "validation_loss": round(valid, 4),
        "test_loss": round(held_out_loss(model, data["test"], config["max_position_embeddings"]), 4),
        "parameters": sum(p.numel() for p in model.parameters()), "seconds": round(time.monotonic() - args.started, 1),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__,
        "steps": args.steps, "rows": args.rows, "rate": args.rate, "decay": args.decay, "seed": args.seed,
        "runs": [{"dropout": run[0], "log": run[4]} for run in runs],
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    np.savez(args.out / "weights.npz", **{f"model.{name}": value for name, value in weights.items()})
    (args.out / "train.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({name: value for name, value in record.items() if name != "runs"}))


if __name__ == "__main__":
    main()
