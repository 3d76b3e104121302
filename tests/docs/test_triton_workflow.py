"""The workflow to copy for Triton projects: what it installs and sets is what the package has and reads."""

import re

from ptxgen.targets import target
from ptxgen.testing import triton
from tests.support.packages import ROOT

WORKFLOW = (ROOT / "examples" / "triton_ci" / "triton.yml").read_text()


def said(pattern: str) -> str:
    """What the workflow has in the pattern's group."""
    found = re.search(pattern, WORKFLOW)
    assert found, pattern
    return found[1]


def test_it_installs_an_extra_of_the_checkout():
    where = said(r"path: (\S+)")
    extra = said(rf"pip install './{re.escape(where)}\[(\w+)\]'")
    assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.M)


def test_its_matrix_reaches_the_driver_through_the_variables_that_it_sets(monkeypatch):
    listed = {name: said(rf"{name}: \[(.*)\]").split(", ") for name in ("mode", "target", "seed")}
    assert sorted(listed["mode"]) == sorted(triton.MODES)
    assert [target(name).name for name in listed["target"]] == listed["target"]
    variables = dict(re.findall(r"(PTXGEN_TRITON\w*): \$\{\{ matrix\.(\w+) \}\}", WORKFLOW))
    for variable, name in variables.items():
        monkeypatch.setenv(variable, listed[name][-1])
    seen = []
    monkeypatch.setattr(triton, "install", lambda *given, **named: seen.append((given, named)))
    triton.install_from_environment()
    assert seen == [((listed["mode"][-1], listed["target"][-1]), {"seed": int(listed["seed"][-1])})]
