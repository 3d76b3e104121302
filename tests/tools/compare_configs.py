"""Holds the configurations of a folder against transformers' own classes: `python -m tests.tools.compare_configs DIR`.

Needs torch and transformers. A model is made small where attention does not see it: few layers, a narrow residual
stream where the size of a head stands for itself, one thin feed-forward part. Exit 1 where one that is served differs.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from benchmarks.report.sentence import show_help
from ptxgen.errors import SpecError
from ptxgen.models.config.families import FAMILIES
from ptxgen.models.survey import survey
from tests.support.models.attention_oracle import FAR, compare, shape_of
from tests.support.models.config_cases import LIKE_LLAMA, Config
from tests.tools.record.attention import record

THIN = {
    "vocab_size": 32, "intermediate_size": 16, "intermediate_size_mlp": 16, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1,
    "pad_token_id": 0,
}  # fmt: skip
LAYERS = 8
OF_OTHERS = ("bias", "attn_implementation", "scale_emb", "scale_depth", "dim_model_base")  # of LIKE_LLAMA alone


def small(config: Config) -> Config:
    """The same attention in a model that takes no memory."""
    family = FAMILIES[config["model_type"]]
    if family.nested and family.nested in config:
        return config | {family.nested: small({"model_type": family.inner} | config[family.nested])}
    family = FAMILIES[family.inner] if family.inner else family
    found = config | {
        key: value for key, value in THIN.items() if key in config or key not in ("num_experts", "num_local_experts")
    }
    # the lists' lengths are held against the stream's width
    wide = "long_factor" in (config.get("rope_scaling") or {}) or not family.own_head_dim
    layers = min(int(config["num_hidden_layers"]), 2 if wide else LAYERS)
    found["num_hidden_layers"] = layers
    for key in ("layer_types", "no_rope_layers"):
        if config.get(key):
            found[key] = config[key][:layers]
    heads = config.get("num_attention_heads") or family.defaults.get("num_attention_heads")
    if "hidden_size" in config and heads and not wide:
        head_dim = config.get("head_dim") or family.defaults.get("head_dim") or config["hidden_size"] // heads
        found |= {"head_dim": head_dim, "hidden_size": 8 * heads}
    return found


def main(folder: str) -> int:
    """A line for each configuration."""
    try:
        import torch
    except ImportError as missing:
        raise SystemExit(f"compare_configs: {missing}") from None

    wrong = 0
    for verdict in survey(folder):
        outcome = verdict.verdict
        if verdict.verdict != "refused":
            path = Path(folder) / verdict.model
            outcome += ": " + (found := compared(json.loads(path.read_text()), torch))
            wrong += found.startswith("differs")
        print(f"{verdict.model}: {outcome}{''.join(f'; {reason}' for reason in verdict.reasons)}")
    return int(wrong > 0)


def compared(config: Config, torch: object) -> str:
    """Whether all is equal, or what differs, or that transformers' class does not take the configuration. The last
    token is behind the original context where there is one."""
    config = small(config)
    if config["model_type"] in LIKE_LLAMA:  # transformers has no class of them; theirs are llama's with other names
        config = {key: value for key, value in config.items() if key not in OF_OTHERS} | {"model_type": "llama"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            shape = shape_of(config, None)
            rope = config.get("rope_scaling") or {}
            behind = "long_factor" in rope and config.get("original_max_position_embeddings", 0) < shape.max_len
            far = 5000 if behind else FAR
            try:
                theirs = record(config, shape.max_len, torch, far)
            except Exception as refused:  # whatever its classes raise
                return f"not compared, transformers does not load it ({str(refused).strip().splitlines()[0]})"
            compare(shape, theirs, far)
        except (AssertionError, SpecError) as wrong:
            return f"differs ({str(wrong).strip().splitlines()[0]})"
    return "equal to transformers"


if __name__ == "__main__":
    show_help(__doc__)
    if len(sys.argv) != 2:
        raise SystemExit("compare_configs: give one folder of config.json files")
    sys.exit(main(sys.argv[1]))
