"""Wheels and source archives hold what the links `ptxgen/runtime` and `ptxgen/templates` lead to; without them they are
refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_HELD = {"ptxgen/runtime": "__init__.py", "ptxgen/templates": "flow.ptx.j2"}


class LinksHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before a wheel or a source archive is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`SystemExit` where a link is lost; an editable installation works without them."""
        lost = [name for name, file in _HELD.items() if not (Path(self.root) / name / file).is_file()]
        if lost and version != "editable":
            raise SystemExit(
                f"ptxgen: {' and '.join(lost)} must be links to ../runtime and ../templates, and this checkout lost "
                "them: git config core.symlinks true; git checkout -- ptxgen; or install it in place (pip install -e .)"
            )
