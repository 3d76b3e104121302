"""The goldens of this project are what is generated now, in any process; a one-field change is a local diff."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptxgen.golden import Goldens
from ptxgen.golden.case import Case
from ptxgen.kernel import supports
from ptxgen.kernels import KvCacheScatter
from ptxgen.targets import target
from tests.support import sweep
from tests.support.draws import beside, domains
from tests.support.goldens import different
from tests.support.kernels import GOLDENS, NAMES, TYPES


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_what_is_generated(name: str) -> None:
    findings = list(Goldens(GOLDENS, (name,)).check())
    assert not [str(f) for f in findings if f.fails]


def test_no_golden_belongs_to_no_kernel_type() -> None:
    assert Goldens(GOLDENS).orphans() == []


@pytest.mark.parametrize("name", NAMES)
def test_every_golden_has_a_target_and_every_target_a_golden(name: str) -> None:
    cls, cases = TYPES[name], Goldens(GOLDENS, (name,)).cases()
    assert {case.target.name for case in cases} == set(cls.golden_targets)
    assert {case.spec for case in cases} == {cls(**fields) for fields in cls.goldens}


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_read_by_people(name: str) -> None:
    for case in Goldens(GOLDENS, (name,)).cases():
        first, *rest = (GOLDENS / case.file).read_text().splitlines()
        assert first == f"// {case.spec!r} for {case.target}"
        code = [line for line in rest if not line.lstrip().startswith("//")]  # headings are what makes it readable
        assert len(code) <= case.spec.golden_lines, case.file
        wide = [line for line in rest if len(line) > 140]
        assert all(re.search(r"mma|st.async|cp.async.bulk|\.v4\.", line) for line in wide), case.file


def test_the_same_bytes_in_any_process_and_hash_seed() -> None:
    files = sweep.drawn(case.file for case in Goldens(GOLDENS).cases())
    program = (
        f"from pathlib import Path; from ptxgen.golden import Goldens; chosen = {files}\n"
        f"for case in Goldens(Path({str(GOLDENS)!r})).cases():\n"
        "    if case.file in chosen: print(case.file, case.generate().digest)"
    )

    def digests(seed: str) -> str:
        env, cwd = os.environ | {"PYTHONHASHSEED": seed}, Path(__file__).resolve().parents[2]
        done = subprocess.run([sys.executable, "-c", program], env=env, cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = dict(line.split() for line in digests("1").splitlines())
    assert found == {file: hashlib.sha256((GOLDENS / file).read_bytes()).hexdigest() for file in files}


# -- a one-field change gives a local diff ----------------------------------------------------------------------------


LOCAL = 12  # lines that hold one size, in a text of any length


def changed_lines(old: str, new: str) -> int:
    """Lines that are replaced, inserted or deleted."""
    body = [text.splitlines()[1:] for text in (old, new)]  # line 1 is the spec itself
    matcher = difflib.SequenceMatcher(None, body[0], body[1], autojunk=False)
    return sum(max(b - a, d - c) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal")


def sizes(name: str) -> list[str]:
    """Sizes that the goldens of a kernel type state, and that only the lines that hold them show."""
    stated = {field for golden in TYPES[name].goldens for field in golden}
    return [field for field, known in domains(TYPES[name]).items() if known.local and field in stated]


def resized(case: Case, field: str, size: int) -> Case | None:
    """The case with another size, as many query heads to a KV head; None where that is not legal."""
    fields = {**vars(case.spec), field: size}
    if field == "n_kv_heads" and hasattr(case.spec, "n_heads"):
        fields["n_heads"] = size * fields["n_heads"] // vars(case.spec)["n_kv_heads"]
    legal = supports({"kernel_type": case.spec.kernel_name, **fields}, case.target)
    return Case(type(case.spec)(**fields), case.target, "") if legal else None


def pairs(case: Case, field: str) -> Iterator[tuple[Case, Case]]:
    """The case, and where its length chooses a shape the same with a long cache, beside others of nearby sizes."""
    size = getattr(case.spec, field)
    for base in (size, 4096 * size) if field == "max_len" and shape(case) else (size,):
        first = resized(case, field, base)
        if first is None:
            assert base > size  # longer than any cache may be
            continue
        for other in (2 * base, base + size, base + 16, base + 1, base - 1):
            if second := resized(case, field, other):
                yield first, second


def shape(case: Case) -> object:
    """What a size may choose beside the lines that hold it: the plan, and whether a tile may reach past the cache.

    None for kernel types without a plan: their sizes choose nothing.
    """
    if not hasattr(case.spec, "plan"):
        return None
    plan = case.spec.plan(case.target)
    return plan, vars(case.spec)["max_len"] % plan.shape.tile == 0


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in NAMES for field in sizes(name)])
def test_a_different_size_changes_only_lines_that_hold_it(name: str, field: str) -> None:
    """Unless another shape is chosen; n_kv_heads near a golden's choose one only where the cache is long."""
    cases = [c for c in different() if c.spec.kernel_name == name and getattr(c.spec, field)]
    compared = 0
    for case in sweep.some(cases, 6):
        alike = [(a, b) for a, b in pairs(case, field) if shape(a) == shape(b)]
        if field != "max_len" and vars(case.spec).get("max_len", 0) < 32768:
            assert len(alike) == len(list(pairs(case, field))), case.file
        compared += len(alike)
        for first, second in alike:
            old = first.generate().text
            fields = vars(case.spec)  # all offsets from row to row; the parts of a stacked row
            most = LOCAL * (2 if fields.get("page_layout") == "nhd" or fields.get("stacked") else 1)
            if "%section" in old:
                most = 6 * LOCAL  # prefill on wgmma: a way to share out heads for every divisor of their number
            assert 0 < changed_lines(old, second.generate().text) <= most, (
                f"{beside(TYPES[name], field)}: field(local=True), and other lines change too "
                f"({case.file}: {first.spec}, {second.spec})"
            )
    assert compared, "no golden has a size whose neighbours choose the same shape"


def test_the_measure_of_locality_sees_renumbered_registers() -> None:
    text = Case(KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2), target("sm_80"), "").generate().text
    renumbered = re.sub(r"%([a-z_]+)\b", lambda name: f"%r{len(name[1])}", text)
    assert changed_lines(text, renumbered) > 3 * LOCAL


def test_the_measure_of_locality_sees_what_comes_and_goes() -> None:
    assert changed_lines("\na\nb\n", "\na\nnew\nnew\nb\n") == 2
    assert changed_lines("\na\nold\nold\nb\n", "\na\nb\n") == 2
    assert changed_lines("\na\nold\nb\n", "\na\nnew\nnew\nnew\nb\n") == 3
