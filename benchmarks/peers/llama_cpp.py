"""llama.cpp on the GPU: built from its source beside whatever else runs, and timed by its own two programs.

python -m benchmarks.peers.llama_cpp FOLDER MODEL…      write GGUF files, which `LlamaCpp.write` does beside
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases.models import MODELS, random_model
from benchmarks.peers.gguf_files import write_gguf
from benchmarks.report.rows import RESULTS

TARGETS = ("llama-bench", "llama-batched-bench")
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_CUDA=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_CCACHE=OFF",
)  # fmt: skip
POSITIONS = 32768
WEIGHTS = "q4_k_m"


class LlamaCpp:
    """A build in `folder`, begun at once and gone on with in the background; one that is there already is used."""

    def __init__(self, source: Path, folder: Path | None = None, architecture: str = "90a") -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="llama.cpp-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "build.log"
        self._writing: subprocess.Popen[bytes] | None = None
        self._building: subprocess.Popen[bytes] | None = None
        if not all(self._program(name).exists() for name in TARGETS):
            self._building = self._build(source, architecture)

    def _program(self, name: str) -> Path:
        return self.folder / "build" / "bin" / name

    def _build(self, source: Path, architecture: str) -> subprocess.Popen[bytes]:
        """Unpack, configure and compile, at the lowest priority."""
        tree, build = self.folder / "source", self.folder / "build"
        if not tree.exists():
            with tarfile.open(source) as packed:
                packed.extractall(tree, filter="data")
        if not (tree / "CMakeLists.txt").exists():  # a folder of its own in the archive
            (tree,) = (found.parent for found in tree.glob("*/CMakeLists.txt"))
        configure = ["cmake", "-G", "Ninja", "-S", tree, "-B", build, f"-DCMAKE_CUDA_ARCHITECTURES={architecture}"]
        jobs = str(max(1, (os.cpu_count() or 2) - 1))
        compile = ["cmake", "--build", build, "-j", jobs, "--target", *TARGETS]
        script = 'n=$1; shift; "${@:1:n}" && "${@:n+1}"'  # the first command of n words, then the other
        commands = [*map(str, (*configure, *OPTIONS)), *map(str, compile)]
        count = str(len(configure) + len(OPTIONS))
        with self.log.open("wb") as log:
            return subprocess.Popen(
                ["nice", "-n", "15", "bash", "-c", script, "build", count, *commands],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def write(self, names: Sequence[str]) -> None:
        """Begin to write these models' files, in the background."""
        root = RESULTS.parent.parent
        path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
        with (self.folder / "files.log").open("wb") as log:
            self._writing = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self.folder), *names], cwd=root, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip

    def ready(self, name: str = "") -> bool:
        """Whether the programs, and a model's file, are there. Raises `RuntimeError` with the end of a log for what
        failed."""
        self._building = _going(self._building, self.log)
        if name and not path_of(self.folder, name).exists():
            self._writing = _going(self._writing, self.folder / "files.log")
        return self._building is None and (self._writing is None or path_of(self.folder, name).exists())

    def stop(self) -> None:
        """End what goes on."""
        for process in (self._building, self._writing):
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

    def _run(self, program: str, seconds: float, *arguments: object) -> str:
        command = [str(self._program(program)), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, seconds))
        if done.returncode:
            raise RuntimeError(f"{program}: exit {done.returncode}: {done.stderr[-300:]}")
        return done.stdout + done.stderr


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
        found = next((folder / "source").glob("**/gguf-py/gguf"), None)
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
    for each in sys.argv[2:]:
        print(written(Path(sys.argv[1]), each))
