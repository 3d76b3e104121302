"""Batches of one prompt's sequences beside the float64 model."""

from __future__ import annotations

import numpy as np

from ptxgen.models.reference import ReferenceModel
from ptxgen.runtime.model.batch import Batch
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import PROMPT

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}  # whole units and tiles
CLOSE = {"exact": 3e-6, "fast": 3e-2, "e4m3": 3e-2}  # logits, by precision: of the largest


def has_models_tokens(batch: Batch, file: ArrayFile, sequences: int, count: int, precision: str | None = None) -> None:
    """`count` tokens of each sequence are the float64 model's; with a `precision` the first step's logits are close to
    its, too, and of tokens that are not "exact" the first alone counts."""
    want = ReferenceModel(file.spec, file.values()).generate(PROMPT, count)
    found = {slot: [token] for slot, token in (batch.join(PROMPT) for _ in range(sequences))}
    for number in range(1, count):
        for slot, token in batch.step().items():
            found[slot].append(token)
        if number == 1 and precision is not None:
            logits = ReferenceModel(file.spec, file.values()).forward([*PROMPT, want[0]])[-1]
            largest, rows = np.abs(logits).max(), batch.logits()[sorted(found)]
            np.testing.assert_allclose(rows / largest, [logits / largest] * sequences, rtol=0, atol=CLOSE[precision])
    same = count if precision in (None, "exact") else 1
    assert {slot: tokens[:same] for slot, tokens in found.items()} == dict.fromkeys(found, want[:same])
