"""What vLLM's plug-in loader calls; needs neither torch nor vLLM."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import ptxgen.vllm
from tests.vllm.fake import SHARED, VERSIONS, modules


@pytest.fixture(params=VERSIONS)
def registry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = modules(request.param)
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found["vllm.v1.attention.backends.registry"]


def test_takes_the_slot(registry: Any) -> None:
    ptxgen.vllm.register()
    assert registry.overridden == {registry.AttentionBackendEnum.CUSTOM: ptxgen.vllm.BACKEND}
    module, _, name = ptxgen.vllm.BACKEND.rpartition(".")
    path = Path(ptxgen.vllm.__file__).parent / f"{module.rpartition('.')[2]}.py"
    assert f"class {name}(" in path.read_text(encoding="utf-8")


def test_leaves_anothers_backend(registry: Any) -> None:
    registry.register_backend(registry.AttentionBackendEnum.CUSTOM, "other.Backend")
    ptxgen.vllm.register()
    assert list(registry.overridden.values()) == ["other.Backend"]


def test_entry_point() -> None:
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'[project.entry-points."{SHARED["entry_point_group"]}"]\nptxgen = "ptxgen.vllm:register"' in text
    installed = [e for e in entry_points(group=SHARED["entry_point_group"]) if e.name == "ptxgen"]
    assert all(e.load() is ptxgen.vllm.register for e in installed)
