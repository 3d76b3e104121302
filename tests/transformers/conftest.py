"""What tests of transformers share."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def without_gradients() -> Iterator[None]:
    torch: Any = importlib.import_module("torch")
    with torch.no_grad():
        yield
