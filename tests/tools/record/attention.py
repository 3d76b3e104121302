"""Records what transformers' own models do in attention, for the small configurations of `config_cases`.

`python -m tests.tools.record.attention` writes tests/data/attention.json. Needs torch and transformers; nothing else
here does. Of every layer: its heads, scale, window, a query before and after rotation, and what its attention gives for
drawn q, k, v. All tokens of a run are equal, so that a query differs from the first token's by its rotation alone.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.sentence import in_a_sentence, show_help
from tests.support.models.attention_oracle import FAR, POSITIONS, drawn
from tests.support.models.config_cases import CASES, Config

RECORD = Path(__file__).parents[2] / "data" / "attention.json"
NAME = "ptxgen_record"


def observed(config: Config, max_len: int, torch: Any, far: int) -> list[dict[str, Any]]:
    """Every layer of transformers' model of a configuration; windows as a cache of `max_len` positions shows them, the
    last token at position `far`."""
    from transformers import AutoConfig
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    layers: list[dict[str, Any]] = []
    windows: dict[int, int] = {}
    factors: list[float] = []

    def mask(*args: Any, **given: Any) -> Any:
        made = eager_mask(*args, **given)
        windows[id(made)] = _window(given["mask_function"], max_len, torch)
        kept.append(made)
        return made

    def attention(module: Any, q: Any, k: Any, v: Any, made: Any, **given: Any) -> Any:
        own = importlib.import_module(type(module).__module__).eager_attention_forward
        layers.append(_layer(q, k, windows.get(id(made), -1), given))
        q, k, v = (torch.from_numpy(drawn(tuple(x.shape), seed)) for seed, x in enumerate((q, k, v)))
        if getattr(module, "sinks", None) is not None:
            layers[-1]["sinks"] = True
        out = own(module, q, k, v, made, **given)[0]
        layers[-1]["out"] = _plain(out[0, -1, 0])
        return torch.zeros_like(out), None

    kept: list[Any] = []
    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, mask)
    text = AutoConfig.for_model(**copy.deepcopy(config)).get_text_config(decoder=True)
    falcon = text.model_type == "falcon"
    text._attn_implementation = "eager" if falcon else NAME
    text._experts_implementation = "eager"
    torch.manual_seed(0)
    model = _model(text).double().eval()
    for name, values in model.named_parameters():
        if name.endswith("sinks"):
            values.data = torch.linspace(-1, 1, len(values), dtype=torch.float64)

    def see(module: Any, args: Any, given: Any) -> None:
        angles = given.get("position_embeddings", ())
        first = angles[0, 0] if torch.is_tensor(angles) else angles[0][..., 0, :]
        factors.append(float(first.abs().max()))

    for _, module in model.named_modules():
        if type(module).__name__.endswith(("Attention", "TextAttention")) and hasattr(module, "layer_idx"):
            module.register_forward_pre_hook(see, with_kwargs=True)
    if falcon:
        _watch_falcon(layers)
    n = len(POSITIONS)
    with torch.no_grad():
        model(
            input_ids=torch.full((1, n), 3), attention_mask=torch.ones((1, n), dtype=torch.long),
            position_ids=torch.tensor([[*POSITIONS[:-1], far]]), use_cache=False,
        )  # fmt: skip
    return [layer | {"factor": _round(factor)} for layer, factor in zip(layers, factors, strict=True)]


def _model(text: Any) -> Any:
    from transformers import AutoModel, Qwen2_5_VLTextModel

    return Qwen2_5_VLTextModel(text) if text.model_type == "qwen2_5_vl_text" else AutoModel.from_config(text)


def _window(function: Any, max_len: int, torch: Any) -> int:
    """How many positions the last query of a cache sees; 0 for all."""
    none, own = torch.tensor(0), torch.tensor(max_len - 1)
    seen = int(torch.as_tensor(function(none, none, own, torch.arange(max_len))).expand(max_len).sum())
    return seen if seen < max_len else 0


def _layer(q: Any, k: Any, window: int, given: dict[str, Any]) -> dict[str, Any]:
    found = {
        "heads": q.shape[1], "kv_heads": k.shape[1], "head_dim": q.shape[-1], "window": window,
        "scale": _round(given["scaling"]), "cap": _round(given.get("softcap") or 0.0), "sinks": False,
        "query": _plain(q[0, 0, 0]),
    }  # fmt: skip
    return found | {"rotated": _plain(q[0, 0, -1])}


def _watch_falcon(layers: list[dict[str, Any]]) -> None:
    """Falcon has no attention function to stand in for: what its rotation gives is looked at. Heads that share keys
    have equal ones there."""
    module = importlib.import_module("transformers.models.falcon.modeling_falcon")
    rotation = "apply_rotary_pos_emb"
    rotate = getattr(getattr(module, rotation), "watched", getattr(module, rotation))

    def watched(q: Any, k: Any, *args: Any, **more: Any) -> Any:
        q, k = rotate(q, k, *args, **more)
        heads = len(np.unique(k[0, :, 1].numpy().round(9), axis=0))
        layers.append(_layer(q, k, 0, {"scaling": q.shape[-1] ** -0.5}) | {"kv_heads": heads})
        return q, k

    watched.watched = rotate  # type: ignore[attr-defined]
    setattr(module, rotation, watched)


def _round(value: float) -> float:
    return float(f"{float(value):.6g}")


def _plain(values: Any) -> list[float]:
    return [_round(x) for x in values.tolist()]


def record(config: Config, max_len: int, torch: Any, far: int = FAR) -> dict[str, Any]:
    """The different layers of a case, and which each layer is."""
    found: list[dict[str, Any]] = []
    order: list[int] = []
    for layer in observed(config, max_len, torch, far):
        # queries differ from layer to layer by their weights: one of a kind is kept
        key = {name: value for name, value in layer.items() if name not in ("query", "rotated")} | {
            "turns": layer["query"] != layer["rotated"]
        }
        keys = [one["key"] for one in found]
        if key not in keys:
            found.append({"key": key, "layer": layer})
        order.append([one["key"] for one in found].index(key))
    return {"kinds": [one["layer"] for one in found], "layers": order}


def main(only: list[str]) -> None:
    import torch
    import transformers

    cases = {}
    for name, (config, max_len) in CASES.items():
        if not only or name in only:
            cases[name] = record(config, max_len, torch)
    if only:
        print(json.dumps(cases, indent=1))
        return
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    RECORD.write_text(f'{{"versions": {json.dumps(versions)}, "cases": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    show_help(__doc__)
    in_a_sentence(lambda: main(sys.argv[1:]))
