"""docs/model-configs.md is what the tables of families and keys say."""

from __future__ import annotations

from tests.tools.model_configs import PAGE, page


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text() == page(), "python -m tests.tools.model_configs writes it"
