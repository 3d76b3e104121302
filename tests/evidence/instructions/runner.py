"""Runs entries on any device (`array`, `module(text)[entry].launch`), and compares results with recorded ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.evidence.instructions.form import Entry, Form, module_text

POISON = 0xA5


def run(entry: Entry, device: Any) -> dict[str, list[np.ndarray]]:
    """Results of every form of an entry, by name: one array of raw bits per result."""
    inputs = entry.inputs() if entry.sources else np.zeros((1, entry.threads), np.uint64)
    results = np.full((entry.rows, entry.threads), int.from_bytes(bytes([POISON]) * 8, "little"), np.uint64)
    args = [device.array(a) for a in (inputs, results, np.full(entry.threads * 16, POISON, np.uint8))]
    kernel = device.module(module_text([entry]))[entry.name]
    kernel.launch(grid=(entry.threads // entry.block,), block=(entry.block,), args=args, shared=0)
    return {form.name: rows for form, rows in entry.results(args[1].numpy())}


def float_view(row: np.ndarray, type_: str) -> np.ndarray | None:
    """Raw bits as float64 `[n]` or `[n, 2]`; None for types that hold no floats."""
    import ml_dtypes

    kinds = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16}
    kind = kinds.get(type_.removesuffix("x2"))
    if kind is None:
        return None
    with np.errstate(invalid="ignore"):  # signalling NaN
        view = row.view(kind).astype(np.float64)
    return view.reshape(-1, 2) if type_.endswith("x2") else view


def differences(form: Form, got: list[np.ndarray], expected: list[np.ndarray]) -> list[str]:
    """What differs bit for bit, at most three lines."""
    inputs, found = form.inputs(), []
    for n, (a, b) in enumerate(zip(got, expected, strict=True)):
        for i in np.flatnonzero(a != b)[:3]:
            operands = ", ".join(f"{int(v):#x}" for v in inputs[:, i])
            found.append(f"{form.name}: d{n} of ({operands}) is {int(a[i]):#x}, recorded {int(b[i]):#x}"
                         f" ({(a != b).sum()} of {a.size} differ)")  # fmt: skip
    return found[:3]
