"""Packages with kernel types of their own, as an installer leaves them, and commands run beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def installed(folder: Path, name: str, files: dict[str, str], module: str) -> None:
    """What an installer leaves of a package: its files, and metadata with one entry point."""
    for file, text in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[ptxgen.kernels]\n{name} = {module}\n")


def run(*command: str, cwd: Path, path: tuple[Path, ...], **env: str) -> subprocess.CompletedProcess[str]:
    """A Python program or module (`-m`, `-c`), with these folders before all others."""
    where: dict[str, Any] = {"cwd": cwd, "env": os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), **env}}
    return subprocess.run([sys.executable, *command], **where, capture_output=True, text=True)


def done(*command: str, cwd: Path, path: tuple[Path, ...], **env: str) -> str:
    """What such a program prints; it must end well."""
    made = run(*command, cwd=cwd, path=path, **env)
    assert made.returncode == 0, f"{' '.join(command)}\n{made.stdout[-6000:]}\n{made.stderr[-3000:]}"
    return made.stdout


def pip_install(source: Path, target: Path) -> None:
    """A package into a folder, offline."""
    program = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done(*program, "--disable-pip-version-check", "--target", str(target), str(source), cwd=source, path=())
