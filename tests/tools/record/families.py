"""Records what transformers' own classes say of the small models of `tests.support.models.families`, in float64.

`python -m tests.tools.record.families` writes tests/data/families.npz. Needs torch and transformers; nothing else here
does. The tests compare with the record, and with the classes themselves where they are installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.sentence import in_a_sentence, show_help
from tests.support.models.families import CONFIGS, N_TOKENS, PROMPT, random_weights, small_spec, torch_name

RECORD = Path(__file__).parents[2] / "data" / "families.npz"


def model_of(family: str, seed: int = 0) -> Any:
    """transformers' model of a family with our random weights, in float64."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = dict(CONFIGS[family])
    theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling", None)
    if family != "gemma3_text":
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta} | (scaling or {})
        if "partial_rotary_factor" in config:
            config["rope_parameters"]["partial_rotary_factor"] = config.pop("partial_rotary_factor")
    else:
        pattern, n = config.pop("sliding_window_pattern"), config["num_hidden_layers"]
        kinds = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(n)]
        config["layer_types"] = kinds
        config["rope_parameters"] = {
            "full_attention": {"rope_type": "default", "rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
    made = AutoConfig.for_model(**config, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    made._attn_implementation = "eager"  # soft caps exist only there
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float64).eval()
    weights = random_weights(small_spec(family), seed)
    state = {torch_name(name): torch.from_numpy(values.astype(np.float64)) for name, values in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


def logits_of(model: Any, tokens: list[int]) -> np.ndarray:
    """Logits after each token `[tokens, vocab]`, without a cache."""
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy())


def record(family: str) -> dict[str, np.ndarray]:
    """The logits of the prompt, and the greedy tokens after it."""
    model, tokens = model_of(family), list(PROMPT)
    logits = logits_of(model, tokens)
    for _ in range(N_TOKENS):
        tokens.append(int(np.argmax(logits_of(model, tokens)[-1])))
    return {f"{family}.logits": logits.astype(np.float32), f"{family}.tokens": np.array(tokens[len(PROMPT) :])}


def main() -> None:
    found: dict[str, np.ndarray] = {}
    for family in CONFIGS:
        found |= record(family)
    np.savez_compressed(RECORD, **found)


if __name__ == "__main__":
    show_help(__doc__)
    in_a_sentence(main)
