"""Regenerates the corpus: compiles every .cu here to the .ptx beside it, with the nvcc on PATH.

The PTX is committed, so that tests need no compiler: `python tests/evidence/corpus/build.py [TOPIC …]`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.report.sentence import show_help

HERE = Path(__file__).parent
ARCHITECTURES = {"wgmma": "sm_90a", **dict.fromkeys(("async_variants", "cluster", "pipeline", "tensor"), "sm_90")}
DEFAULT_ARCHITECTURE = "sm_80"


def build(source: Path, nvcc: str) -> Path:
    """Compiles one source; the header that names the compiler's build is dropped, so that the text is stable."""
    target = source.with_suffix(".ptx")
    arch = ARCHITECTURES.get(source.stem, DEFAULT_ARCHITECTURE)
    command = [nvcc, "-ptx", f"-arch={arch}", "-std=c++17", "-fmad=true", "-o", str(target), source.name]
    subprocess.run(command, check=True, cwd=HERE)
    text = re.sub(r"\A(//.*\n|\n)*", "", target.read_text())
    target.write_text(f"// {source.name} by nvcc -ptx -arch={arch}\n{text}")
    return target


def main(topics: list[str]) -> int:
    """Builds the named topics, or all."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        print("build.py: nvcc is not on PATH; the committed .ptx files stay as they are", file=sys.stderr)
        return 2
    for source in sorted(HERE.glob("*.cu")):
        if not topics or source.stem in topics:
            print(build(source, nvcc).name)
    return 0


if __name__ == "__main__":
    show_help(__doc__)
    sys.exit(main(sys.argv[1:]))
