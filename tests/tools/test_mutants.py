"""The command that applies mutations: each is one change that compiles, and what tests notice is told apart."""

import pytest

from tests.support import sweep
from tests.tools import mutants

SOURCE = """
LIMIT = 8.0
Pair = tuple[int, str]


def f(a: int, b: list[int]) -> bool:
    with a.lock:
        g(a, [a, b])
    return not a < 3 and b == [1, 2]
"""


def test_each_mutation_changes_one_place_and_compiles():
    found = mutants.mutations(SOURCE)
    texts = [mutants.applied(SOURCE, one) for one in found]
    assert len(set(texts)) == len(texts) == len(found)
    assert SOURCE not in texts
    for text in texts:
        compile(text, "mutant", "exec")
        changed = [(a, b) for a, b in zip(SOURCE.splitlines(), text.splitlines(), strict=True) if a != b]
        assert len(changed) == 1
    said = "\n".join(one.what for one in found)
    for what in ("8.0 → 80.0", "a.lock → True", "< → <=", "== → !=", "and → or", "3 → 4", "g(a, [a, b]) → pass"):
        assert what in said, what


def test_every_file_and_its_tests_are_there():
    for file, tests in mutants.TESTS.items():
        assert (mutants.ROOT / file).exists(), file
        assert all((mutants.ROOT / test.partition("::")[0]).exists() for test in tests), file
    for file in sweep.drawn(mutants.TESTS):
        assert mutants.mutations((mutants.ROOT / file).read_text()), file


def test_a_sample_is_drawn_by_its_seed():
    file = "runtime/core/diskcache.py"
    source = (mutants.ROOT / file).read_text()
    known = mutants.equivalent(source, file)
    every = [one for one in mutants.mutations(source) if one not in known]
    drawn = mutants.chosen_of(source, file, 10, 1)
    assert len(drawn) == 10
    assert set(drawn) < set(every)
    assert drawn == mutants.chosen_of(source, file, 10, 1) != mutants.chosen_of(source, file, 10, 2)
    assert mutants.chosen_of(source, file, None, 1) == mutants.chosen_of(source, file, 10**6, 1) == every


@pytest.mark.parametrize("file", mutants.EQUIVALENT)
def test_what_changes_nothing_is_there_and_has_a_reason(file):
    source = (mutants.ROOT / file).read_text()
    lines, every = source.splitlines(), mutants.mutations(source)
    for part, what, reason in mutants.EQUIVALENT[file]:
        assert any(part in lines[one.line - 1] and one.what == what for one in every), (file, part, what)
        assert len(reason) > 20


def test_what_tests_do_not_notice_survives(tmp_path, capsys):
    source = "LIMIT = 8\nOTHER = 5\n"
    (tmp_path / "m.py").write_text(source)
    (tmp_path / "test_m.py").write_text("import m\n\n\ndef test():\n    assert m.LIMIT == 8\n")
    every = mutants.chosen_of(source, "m.py", None, 1)
    assert len(every) == 2
    assert mutants.survivors(tmp_path, "m.py", ("test_m.py",), every) == ["m.py:2: 5 → 6"]
    assert (tmp_path / "m.py").read_text() == source
    assert mutants.again(source, "m.py", capsys.readouterr().out) == every[1:]
