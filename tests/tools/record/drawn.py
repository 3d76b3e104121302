"""Records the tokens that the shipped model draws on the CPU executor.

`python -m tests.tools.record.drawn` writes tests/data/drawn.json. The tests compare every device with the record.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report.sentence import show_help
from ptxgen.runtime import Model, Sampling, open_device

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "tests" / "data" / "drawn.json"
MODEL = ROOT / "examples" / "models" / "kjv-q8_0.gguf"
PROMPT, N_TOKENS, MAX_LEN = "And it came to pass", 24, 64
SETTINGS = {
    "temperature": Sampling(temperature=0.8, seed=1),
    "top_k": Sampling(temperature=1.0, top_k=20, seed=2),
    "top_p": Sampling(temperature=1.2, top_p=0.9, seed=3),
    "min_p": Sampling(temperature=1.5, min_p=0.05, seed=1 << 63),
    "penalty": Sampling(temperature=0.7, penalty=1.3, seed=5),
    "all": Sampling(temperature=1.1, top_k=50, top_p=0.95, min_p=0.01, penalty=1.1, seed=6),
}


def drawn(model: Model, sampling: Sampling) -> list[int]:
    """The tokens after the prompt."""
    text = model.source.text()
    return list(model.tokens(text.encode(PROMPT), N_TOKENS, sampling=sampling))


def main() -> None:
    model = Model.load(MODEL, open_device("cpu"), "f32", MAX_LEN)
    found = {name: drawn(model, sampling) for name, sampling in SETTINGS.items()}
    RECORD.write_text(json.dumps(found) + "\n")
    print(f"{RECORD}: {len(found)} settings, {N_TOKENS} tokens each")


if __name__ == "__main__":
    show_help(__doc__)
    main()
