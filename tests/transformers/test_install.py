"""`install` without what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ptxgen.transformers
from ptxgen.errors import SpecError


@pytest.mark.parametrize("missing", ["transformers", "torch"])
def test_says_which_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("ptxgen.transformers.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "torch":
        monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'ptxgen\[transformers\]'"):
        ptxgen.transformers.install()


def test_a_growing_cache_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ptxgen.transformers.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'ptxgen\[transformers\]'"):
        ptxgen.transformers.growing_cache(None)


@pytest.mark.parametrize("given", ["meta-llama/Llama-3.2-1B", {}, 5], ids=["str", "dict", "int"])
def test_a_growing_cache_is_made_of_a_config(given: object) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(SpecError, match=rf"must be a model's config.*\(got {type(given).__name__}\)"):
        ptxgen.transformers.growing_cache(given)


def test_import_is_cheap() -> None:
    code = "import ptxgen.transformers, sys; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
