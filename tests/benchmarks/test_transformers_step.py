"""transformers as a peer: a process that asks before it uses the GPU, played by one that has no torch."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers.transformers_step import Transformers

PEER = """#!{python}
import json, os, sys
if "transformers_step" not in sys.argv[2]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
say = lambda **line: print(json.dumps(line), flush=True)
print("loading")
for at, case in enumerate(sys.argv[4:]):
    batch, depth = map(int, case.split("x"))
    sizes = dict(batch=batch, depth=depth)
    say(asks="to fill", **sizes)
    assert sys.stdin.readline()
    if batch == 4:
        say(why="no memory", **sizes)
        continue
    say(did="fill")
    if batch == 2:
        raise SystemExit(3)
    say(asks="to be timed", **sizes)
    assert sys.stdin.readline()
    say(us=100.0 * batch + at, **sizes)
"""


def peer(folder: Path) -> Path:
    """A stand-in for Python, as far as this module is concerned: of three cases, of 1, 4 and 2 sequences, it has the
    first, not the second, and breaks at the third."""
    path = folder / "peer"
    path.write_text(PEER.format(python=sys.executable))
    path.chmod(0o755)
    return path


def comes(made: Transformers, case: tuple[int, int]) -> bool:
    """Whether a case is ready before ten seconds have gone."""
    ends = time.monotonic() + 10
    while not made.ready(case):
        if time.monotonic() > ends:
            return False
        time.sleep(0.01)
    return True


def test_cases_are_timed_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(peer(tmp_path)))
    made = Transformers("llama-3.2-1b", ((1, 128), (4, 512), (2, 64)))
    assert comes(made, (1, 128))
    assert not made.ready((4, 512))
    assert made.measure((1, 128))["us"] == 100.0
    assert comes(made, (4, 512))
    assert made.measure((4, 512))["why"] == "no memory"
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exit 3"):
            comes(made, (2, 64))
    made.stop()


def test_a_process_that_waits_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(peer(tmp_path)))
    made = Transformers("llama-3.2-1b", ((1, 128),))
    assert comes(made, (1, 128))
    made.stop()
    assert made.process.returncode == -9
