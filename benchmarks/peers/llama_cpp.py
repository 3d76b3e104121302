"""llama.cpp on the GPU: built from its source beside whatever else runs, and timed by its own two programs.

python -m benchmarks.peers.llama_cpp write FOLDER MODEL…                     GGUF files, as `LlamaCpp.write` does
python -m benchmarks.peers.llama_cpp build FOLDER SOURCE ARCHITECTURE        the programs, as `LlamaCpp` does

A lock lets one process at a time write to a folder; the next one finds what is there.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cases.models import MODELS, random_model
from benchmarks.peers.gguf_files import write_gguf
from benchmarks.report.rows import RESULTS
from benchmarks.report.sentence import show_help

TARGETS = ("llama-bench", "llama-batched-bench")
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_CUDA=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_CCACHE=OFF",
)  # fmt: skip
POSITIONS = 32768
WEIGHTS = "q4_k_m"


class LlamaCpp:
    """Its programs in `folder`, whatever brings them there in the background: `source` is an archive of its source,
    which is built for an architecture, or an archive or a folder with the programs and their libraries. Those that are
    in `folder` already are used."""

    def __init__(self, source: Path, folder: Path | None = None, architecture: str = "90a") -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="llama.cpp-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "build.log"
        self._places = (self.folder, source) if source.is_dir() else (self.folder,)
        self._writing: subprocess.Popen[bytes] | None = None
        self._building: subprocess.Popen[bytes] | None = None
        if not all(program(name, self._places) for name in TARGETS):
            if source.is_dir():
                raise FileNotFoundError(f"{source}: a folder without {' and '.join(TARGETS)}")
            self._building = self._begin(self.log, "build", str(source.resolve()), architecture)

    def _begin(self, log: Path, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        """This module in a process of its own, at the lowest priority."""
        root = RESULTS.parent.parent
        path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
        with log.open("ab") as out:
            return subprocess.Popen(
                ["nice", "-n", "15", sys.executable, "-m", __name__, what, str(self.folder.resolve()), *arguments],
                cwd=root, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip

    def write(self, names: Sequence[str]) -> None:
        """Begin to write these models' files, in the background."""
        self._writing = self._begin(self.folder / "files.log", "write", *names)

    def ready(self, name: str = "") -> bool:
        """Whether the programs, and a model's file, are there. Raises `RuntimeError` with the end of a log for what
        failed."""
        self._building = _going(self._building, self.log)
        if name and not path_of(self.folder, name).exists():
            self._writing = _going(self._writing, self.folder / "files.log")
        return self._building is None and (self._writing is None or path_of(self.folder, name).exists())

    @property
    def processes(self) -> tuple[subprocess.Popen[bytes] | None, ...]:
        """A build and a conversion, each the leader of a session; None for one that has ended."""
        return self._building, self._writing

    def stop(self) -> None:
        """End a build or a conversion that is under way."""
        for process in self.processes:
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()

    def file(self, name: str) -> Path:
        """The GGUF file of a model with random weights, written once."""
        return written(self.folder, name)

    def bench(
        self, file: Path, seconds: float, *, prompt: int, tokens: int, depths: Sequence[int]
    ) -> list[dict[str, Any]]:
        """llama-bench's rows: `n_depth`, `n_prompt`, `n_gen`, `avg_ts`."""
        said = self._run(
            "llama-bench", seconds, "-m", file, "-ngl", 99, "-fa", 1, "-r", 3, "-p", prompt, "-n", tokens,
            "-d", ",".join(map(str, depths)), "-o", "jsonl",
        )  # fmt: skip
        return rows_of(said)

    def batched(
        self, file: Path, seconds: float, *, depths: Sequence[int], batches: Sequence[int], tokens: int
    ) -> list[dict[str, Any]]:
        """llama-batched-bench's rows: `pp`, `pl`, `tg`, `t_tg`."""
        context = max(batches) * (max(depths) + tokens)
        said = self._run(
            "llama-batched-bench", seconds, "-m", file, "-ngl", 99, "-fa", "on", "-c", context, "-b", 2048, "-ub", 512,
            "-npp", ",".join(map(str, depths)), "-ntg", tokens, "-npl", ",".join(map(str, batches)),
            "--output-format", "jsonl",
        )  # fmt: skip
        return rows_of(said)

    def _run(self, name: str, seconds: float, *arguments: object) -> str:
        path = program(name, self._places)
        if path is None:
            raise RuntimeError(f"{name}: not among the programs in {self.folder}")
        libraries = [str(path.parent), str(path.parent.parent / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        done = subprocess.run(
            [str(path), *map(str, arguments)], capture_output=True, text=True, timeout=max(1.0, seconds),
            env=os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))},
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{name}: exit {done.returncode}: {done.stderr[-300:]}")
        return done.stdout + done.stderr


def program(name: str, places: Sequence[Path]) -> Path | None:
    """Where a program is, in the first of these folders that has it."""
    return next((path for place in places for path in sorted(place.rglob(name)) if path.is_file()), None)


@contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """No other process does `what` in a folder meanwhile; one that does is waited for."""
    with (folder / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(folder: Path, source: Path, architecture: str) -> None:
    """Unpack, and unless the programs are there then, configure and compile."""
    with alone(folder, "build"):
        tree, into = folder / "source", folder / "build"
        if not (folder / "unpacked").exists():
            with tarfile.open(source) as packed:
                packed.extractall(tree, filter="data")
            (folder / "unpacked").touch()
        if all(program(name, [folder]) for name in TARGETS):
            return
        if not (tree / "CMakeLists.txt").exists():  # a folder of its own in the archive
            (tree,) = (found.parent for found in tree.glob("*/CMakeLists.txt"))
        jobs = str(max(1, (os.cpu_count() or 2) - 1))
        configure = ["cmake", "-G", "Ninja", "-S", tree, "-B", into, f"-DCMAKE_CUDA_ARCHITECTURES={architecture}"]
        for command in ([*configure, *OPTIONS], ["cmake", "--build", into, "-j", jobs, "--target", *TARGETS]):
            if code := subprocess.run(list(map(str, command))).returncode:
                raise SystemExit(code)


def _going(process: subprocess.Popen[bytes] | None, log: Path) -> subprocess.Popen[bytes] | None:
    """The process while it goes on; None when it has ended well."""
    if process is None or (code := process.poll()) == 0:
        return None
    if code is not None:
        raise RuntimeError(f"{log.name}: exit {code}: {log.read_text(errors='replace')[-300:]}")
    return process


def path_of(folder: Path, name: str) -> Path:
    """Where a model's file is."""
    return folder / f"{name}-{WEIGHTS}.gguf"


def written(folder: Path, name: str) -> Path:
    """A model's file, written where it is not there yet."""
    path = path_of(folder, name)
    if not path.exists():
        import_gguf(folder)
        write_gguf(path.with_suffix(".part"), random_model(MODELS[name], WEIGHTS, POSITIONS)).rename(path)
    return path


def import_gguf(folder: Path) -> None:
    """Find the package that comes with the source, where none is installed."""
    try:
        import gguf  # noqa: F401
    except ModuleNotFoundError:
        found = next(folder.glob("**/gguf-py/gguf"), None)
        if found is None:
            raise
        sys.path.append(str(found.parent))


def rows_of(said: str) -> list[dict[str, Any]]:
    """The JSON objects among the lines of a program."""
    found = []
    for line in said.splitlines():
        start = line.find("{")
        if start >= 0 and line.rstrip().endswith("}"):
            try:
                found.append(json.loads(line[start:]))
            except json.JSONDecodeError:
                continue
    if not found:
        raise RuntimeError(f"no rows in what was said: {said[-300:]}")
    return found


if __name__ == "__main__":
    show_help(__doc__)
    what, place, *others = sys.argv[1:]
    if what == "build":
        build(Path(place), Path(others[0]), others[1])
    else:
        with alone(Path(place), "files"):
            for each in others:
                print(written(Path(place), each), flush=True)
