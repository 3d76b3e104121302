"""Kernel types of other packages: the example of `examples/own_kernel`, installed; and those that cannot be had."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.packages import ROOT, done, installed, pip_install, run

EXAMPLE = ROOT / "examples" / "own_kernel"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the example is installed."""
    source, target = tmp_path_factory.mktemp("source") / "own_kernel", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "dist"))
    pip_install(source, target)
    return target


def ptxgen(site: Path, *words: str, cwd: Path) -> str:
    return done("-m", "ptxgen", *words, cwd=cwd, path=(ROOT, site))


def test_every_command_knows_it(site: Path, tmp_path: Path) -> None:
    kernel = ["squared-relu", "--dim", "200", "--leak", "0.5"]
    names = [each["name"] for each in json.loads(ptxgen(site, "list", "--json", cwd=tmp_path))]
    assert "squared_relu" in names
    assert "rope" in names
    text = ptxgen(site, "generate", *kernel, "--target", "sm_80", cwd=tmp_path)
    assert text.startswith("// SquaredRelu(dim=200, dtype=f32, leak=0.5) for sm_80\n")
    assert "ok" in ptxgen(site, "run", *kernel, "--device", "cpu", "--mode", "check", cwd=tmp_path)
    ptxgen(site, "export", *kernel, "--target", "sm_80", "-o", "out", cwd=tmp_path)
    assert any("squared_relu" in path.name or "squared_relu" in str(path) for path in (tmp_path / "out").rglob("*.ptx"))
    (tmp_path / "k.ptx").write_text(text)
    ptxgen(site, "verify", "k.ptx", cwd=tmp_path)


def test_its_goldens_lie_in_its_own_repository(site: Path, tmp_path: Path) -> None:
    said = run("-m", "ptxgen", "golden", "check", cwd=EXAMPLE, path=(ROOT, site))
    assert (said.returncode, said.stdout) == (0, "")
    assert "2 goldens: no difference" in said.stderr
    ptxgen(site, "golden", "update", "--init", "squared-relu", "--root", "mine", cwd=tmp_path)
    files = {path.relative_to(tmp_path / "mine") for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert files == {p.relative_to(EXAMPLE / "golden_ptx") for p in (EXAMPLE / "golden_ptx").rglob("*") if p.is_file()}
    next((tmp_path / "mine").rglob("dim64.ptx")).unlink()
    assert run("-m", "ptxgen", "golden", "check", "--root", "mine", cwd=tmp_path, path=(ROOT, site)).returncode == 1


def test_our_goldens_are_not_asked_for_its_kernel_types(site: Path) -> None:
    program = (
        "from pathlib import Path; from ptxgen.golden import Goldens\n"
        "print(any(c.spec.kernel_name == 'squared_relu' for c in Goldens(Path('golden_ptx')).cases()))"
    )
    assert done("-c", program, cwd=ROOT, path=(ROOT, site)) == "False\n"


def test_specs_are_pickled_and_texts_are_the_same_in_every_process(site: Path, tmp_path: Path) -> None:
    make = "import pickle, ptxgen; from own_kernel.squared_relu import SquaredRelu as S\nspec = S(dim=64, leak=0.25)\n"
    keep = f"{make}pickle.dump(spec, open('spec', 'wb')); print(ptxgen.generate(spec, 'sm_80').digest)"
    again = (
        "import pickle, ptxgen\nspec = pickle.load(open('spec', 'rb'))\n"
        "from ptxgen import make_spec\nassert spec == make_spec('squared-relu', {'dim': 64, 'leak': 0.25})\n"
        "first = ptxgen.generate(spec, 'sm_80'); assert ptxgen.generate(spec, 'sm_80') is first; print(first.digest)"
    )
    digests = {done("-c", program, cwd=tmp_path, path=(ROOT, site)) for program in (keep, again)}
    assert len(digests) == 1


def test_importing_the_module_is_enough(tmp_path: Path) -> None:
    program = (
        "import own_kernel.squared_relu, ptxgen\n"
        "print(ptxgen.generate(ptxgen.make_spec('SquaredRelu', {'dim': 8}), 'sm_80').entry)"
    )
    assert done("-c", program, cwd=tmp_path, path=(ROOT, EXAMPLE)) == "squared_relu\n"


# -- what cannot be had ------------------------------------------------------------------------------------------------


def test_a_module_beside_our_own_templates_is_let_in(tmp_path: Path) -> None:
    """As one in the root of a checkout is."""
    program = (
        "import sys, types, ptxgen\nmade = sys.modules['beside'] = types.ModuleType('beside')\n"
        f"made.__file__ = {str(ROOT / 'beside.py')!r}\n"
        f"exec({MODULE!r}, vars(made)); print(ptxgen.make_spec('squared-relu', {{'dim': 8}}).slug)"
    )
    assert done("-c", program, cwd=tmp_path, path=(ROOT,)) == "dim8\n"


MODULE = (EXAMPLE / "own_kernel" / "squared_relu.py").read_text()
TEMPLATE = (EXAMPLE / "own_kernel" / "squared_relu.ptx.j2").read_text()
GOOD = {"__init__.py": "", "k.py": MODULE, "squared_relu.ptx.j2": TEMPLATE}
BAD = {
    "a module that fails": ({**GOOD, "k.py": "import no_such_module"}, r"bad\.k \(.*\): cannot be imported: "
                            r"ModuleNotFoundError: No module named 'no_such_module'"),
    "a module that ends the process": ({**GOOD, "k.py": "raise SystemExit(3)"}, "cannot be imported: SystemExit: 3"),
    "no module": ({"__init__.py": ""}, r"cannot be imported: ModuleNotFoundError: No module named 'bad\.k'"),
    "no kernel type": ({**GOOD, "k.py": ""}, "registers no kernel type"),
    "a name of ours": ({**GOOD, "k.py": MODULE.replace("SquaredRelu", "Rope")}, r"bad\.k\.Rope: another kernel type is "
                       r"called rope, in ptxgen\.kernels\.rope; give the class another name"),
    "a template of ours": ({**GOOD, "templates/flow.ptx.j2": ""}, r"another template is called flow\.ptx\.j2, "),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_had_is_one_sentence_and_the_others_work(case: str, tmp_path: Path) -> None:
    files, says = BAD[case]
    installed(tmp_path, "bad", files, "bad.k")
    made = run("-m", "ptxgen", "list", cwd=tmp_path, path=(ROOT, tmp_path))
    assert made.returncode == 0
    assert "kv-cache-scatter" in made.stdout
    (sentence,) = made.stderr.splitlines()
    assert sentence.startswith("ptxgen: bad.k (entry point 'bad' of ptxgen.kernels): ")
    assert re.search(says, sentence), sentence
    scatter = ["kv-cache-scatter", "--max-len", "64", "--head-dim", "64", "--n-kv-heads", "2", "--target", "sm_80"]
    assert "Scatter" in done("-m", "ptxgen", "generate", *scatter, cwd=tmp_path, path=(ROOT, tmp_path))


def test_two_packages_with_one_name(tmp_path: Path) -> None:
    installed(tmp_path, "good", GOOD, "good.k")
    installed(tmp_path, "worse", GOOD, "worse.k")
    made = run("-m", "ptxgen", "generate", "squared-relu", "--dim", "8", "--target", "sm_80", cwd=tmp_path,
               path=(ROOT, tmp_path))  # fmt: skip
    assert made.returncode == 0
    assert "another kernel type is called squared_relu, in good.k" in made.stderr


def test_a_missing_template_names_the_places(tmp_path: Path) -> None:
    installed(tmp_path, "lone", {"__init__.py": "", "k.py": MODULE}, "lone.k")
    made = run("-m", "ptxgen", "generate", "squared-relu", "--dim", "8", "--target", "sm_80", cwd=tmp_path,
               path=(ROOT, tmp_path))  # fmt: skip
    assert made.returncode == 2
    assert "template squared_relu.ptx.j2 does not exist beside lone.k, nor in a folder templates there" in made.stderr


def test_annotations_need_not_be_postponed(tmp_path: Path) -> None:
    eager = MODULE.replace("from __future__ import annotations\n", "").replace("if TYPE_CHECKING:", "if True:")
    eager = eager.replace("    from ptxgen.kernel import Arrays\n", "    Arrays = dict\n")
    installed(tmp_path, "eager", {**GOOD, "k.py": eager}, "eager.k")
    words = ["squared-relu", "--dim", "8", "--dtype", "f16", "--leak", "3", "--target", "sm_80"]
    made = run("-m", "ptxgen", "generate", *words, cwd=tmp_path, path=(ROOT, tmp_path))
    assert "SquaredRelu.dtype: must be one of f32 (got f16)" in made.stderr
    assert "SquaredRelu.leak: must be from 0.0 to 1.0 (got 3.0" in made.stderr
