"""`make demo`: the model in `examples/models` goes on with a text, on the GPU or on the CPU executor; then what ran.

Its tokens are compared with those of a NumPy model in float64, the PTX is written to files, and the CPU executor runs
one token once more in check mode.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.errors import ExecutionError
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.complete import Completion

if TYPE_CHECKING:
    from ptxgen.generator import Ptx
    from ptxgen.runtime.program.model import Model

MODEL = Path(__file__).resolve().parent.parent / "examples" / "models" / "kjv-q8_0.gguf"
PROMPT = "And God said,"
TOKENS = 96


def write(completion: Completion, model: Model) -> list[int]:
    """Print the prompt and what the model makes of it; its tokens."""
    tokens: list[int] = []
    take = model.forward_to_token

    def kept(token: int) -> int:
        tokens.append(take(token))
        return tokens[-1]

    model.forward_to_token = kept  # type: ignore[method-assign,assignment]
    print(completion.prompt, end="", flush=True)
    for piece in completion.run(model):
        print(piece, end="", flush=True)
    print("\n")
    return tokens
