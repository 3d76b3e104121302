"""What tests of products on wgmma share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ptxgen.generator import clear_cache
from ptxgen.products.wgmma.tiling import shape


@pytest.fixture
def few_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CTA goes on to further tiles."""
    monkeypatch.setattr(shape, "PROCESSORS", 2)
    yield
    clear_cache()
