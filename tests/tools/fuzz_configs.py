"""Changes the oracle's configurations at random, and holds what is served of them against transformers' own classes.

    python -m tests.tools.fuzz_configs [--seconds 60] [--seed 1]

Needs torch and transformers. A change sets a key, of the family or not, to a value that files have somewhere, or takes
it away. What we refuse is not looked at, nor what transformers cannot load. Exit 1: a configuration is misread.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import sys
import time
import warnings
from collections import Counter
from typing import Any

from benchmarks.report.sentence import in_a_sentence
from ptxgen.errors import SpecError
from tests.support.models.attention_oracle import compare, shape_of
from tests.support.models.config_cases import CASES, LLAMA3, LONG, SHORT, SLIDING, YARN, Config
from tests.tools.record.attention import record

_LISTS = {"short_factor": SHORT, "long_factor": LONG}
_BOTH = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
}
_TABLES: list[Any] = [
    None, {}, {"rope_theta": 12345.0}, {"type": "default"}, {"rope_type": "default", "rope_theta": 3e4},
    {"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 0.5}, {"rope_type": "linear", "factor": 1},
    YARN, YARN | {"truncate": False}, YARN | {"attention_factor": 1.3, "beta_fast": 16, "beta_slow": 2},
    {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}, YARN | {"factor": 0.5}, YARN | {"factor": None},
    LLAMA3, {key: value for key, value in LLAMA3.items() if not key.startswith("original")},
    {"rope_type": "dynamic", "factor": 2.0},
    {"type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 512},
    {"rope_type": "default", "partial_rotary_factor": 0.5}, {"rope_type": "linear", "partial_rotary_factor": 0.5},
    {"rope_type": "longrope", **_LISTS, "original_max_position_embeddings": 512},
    {"type": "longrope", **_LISTS, "original_max_position_embeddings": 512, "factor": 4.0},
    {"type": "longrope", **_LISTS, "factor": 4.0, "attention_factor": 1.1},
    _BOTH, _BOTH | {"full_attention": YARN}, {"type": "mrope", "mrope_section": [2, 3, 3]},
    {"rope_type": "proportional", "factor": 2.0},
]  # fmt: skip
_SLIDE, _FULL = "sliding_attention", "full_attention"
VALUES: dict[str, list[Any]] = {
    "rope_scaling": _TABLES, "rope_parameters": _TABLES, "rope_theta": [None, 1e4, 500000, 2e4],
    "rope_local_base_freq": [None, 1e4, 3e4], "swa_rope_theta": [None, 1e4], "rotary_emb_base": [None, 1e4, 2e4],
    "partial_rotary_factor": [None, 1, 1.0, 0.5, 0.25, 0.75], "rotary_pct": [None, 1.0, 0.5], "rotary_dim": [None, 8],
    "original_max_position_embeddings": [None, 128, 512, 4096], "max_position_embeddings": [4096, 512, 131072],
    "num_key_value_heads": [1, 2, 4], "num_kv_heads": [None, 1, 2, 4], "multi_query": [True, False],
    "new_decoder_architecture": [True, False], "num_attention_heads": [4, 8], "num_hidden_layers": [4, 3],
    "head_dim": [None, 8, 16, 32], "hidden_size": [64, 128], "num_kv_shared_layers": [0, 2],
    "sliding_window": [None, 1, 2, 3, 5, 8, 4096, 8192], "use_sliding_window": [True, False, None],
    "max_window_layers": [0, 1, 2, 3, 4, 28], "sliding_window_pattern": [1, 2, 3, 4, 6],
    "_sliding_window_pattern": [None, 2, 3], "global_attn_every_n_layers": [None, 2],
    "layer_types": [None, SLIDING, [_FULL] * 4, [_SLIDE] * 4, [_SLIDE, _FULL] * 2, [_FULL] * 3 + [_SLIDE]],
    "no_rope_layers": [None, [], [1, 1, 1, 0], [0, 1, 0, 1], [1] * 4, [0] * 4],
    "no_rope_layer_interval": [None, 1, 2, 4], "use_rope": [True], "rope_interleaved": [None, True, False],
    "attention_multiplier": [1.0, 0.1, 0.25], "query_pre_attn_scalar": [16, 24, 1], "attn_scale": [None, 0.1],
    "attn_logit_softcapping": [None, 2.0, 50.0], "final_logit_softcapping": [None, 30.0],
    "attn_temperature_tuning": [None, False, True, 0, 4], "attention_chunk_size": [None, 8192, 64],
    "floor_scale": [None, 8192], "is_causal": [None, True, False], "use_bidirectional_attention": [None, False, True],
    "alibi": [False, True], "clip_qkv": [None, 8.0], "scale_attn_weights": [True], "use_qk_norm": [True, False],
    "attention_bias": [True, False], "torch_dtype": ["float32", "bfloat16"], "parallel_attn": [True, False],
    "position_embedding_type": ["rope", "rope_gptj"], "layer_switch": [2, 4], "cache_implementation": ["hybrid"],
}  # fmt: skip
MOST_FAR = 5000  # the position of the query that is compared


def changed(rng: random.Random) -> tuple[str, Config, Config, int | None]:
    """A case's name, its configuration after some changes, the changes, and the longest context asked for."""
    name = rng.choice(list(CASES))
    config, max_len = copy.deepcopy(CASES[name])
    text = config.get("text_config", config)
    own, changes = [key for key in VALUES if key in text], {}
    for _ in range(rng.randint(1, 4)):
        key = rng.choice(own if own and rng.random() < 0.4 else list(VALUES))
        place = text if rng.random() < 0.93 else config
        if rng.random() < 0.15:
            place.pop(key, None)
            changes[key] = "absent"
        else:
            changes[key] = place[key] = copy.deepcopy(rng.choice(VALUES[key]))
    return name, config, changes, rng.choice([max_len, max_len, None, 512, 2048, 4096])


def outcome(config: Config, max_len: int | None, torch: Any) -> str:
    """ "equal", "refused" by us, "not loaded" by transformers, or what differs."""
    try:
        shape = shape_of(config, max_len)
    except SpecError:
        return "refused"
    far = max(8, min(MOST_FAR, shape.max_len - 1))
    try:
        theirs = record(config, shape.max_len, torch, far)
    except Exception:  # whatever its classes raise
        return "not loaded"
    try:
        compare(shape, theirs, far)
    except SpecError:
        return "refused"
    except AssertionError as wrong:
        # bases that differ by layer are none of what transformers' layers are grouped by
        return "equal" if "grouped alike" in str(wrong) else str(wrong).strip() or "another shape"
    return "equal"


def fuzz(seed: int, seconds: float = 1e9, cases: int = 1 << 30) -> tuple[Counter[str], list[str]]:
    """Outcomes counted, and a line for each configuration that is misread."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    rng, ends = random.Random(seed), time.monotonic() + seconds
    counts: Counter[str] = Counter()
    misread = []
    while time.monotonic() < ends and counts.total() < cases:
        name, config, changes, max_len = changed(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = outcome(config, max_len, torch)
        if found not in ("equal", "refused", "not loaded"):
            misread.append(f"{name} with {json.dumps(changes)}, {max_len} positions: {' '.join(found.split())[:200]}")
            found = "misread"
        counts[found] += 1
    return counts, misread


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    counts, misread = fuzz(given.seed, given.seconds)
    print("\n".join([*misread, ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))]))
    return int(bool(misread))


if __name__ == "__main__":
    in_a_sentence(lambda: sys.exit(main()))
