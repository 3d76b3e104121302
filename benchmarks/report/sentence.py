"""How a benchmark or a tool ends where something is missing, a GPU, a package, a file; and where help is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ptxgen.errors import PtxgenError


def show_help(doc: str | None) -> None:
    """Print a module's docstring and end, where `-h` or `--help` is asked for; for commands without a parser."""
    if not {"-h", "--help"}.isdisjoint(sys.argv[1:]):
        print((doc or "").strip())
        raise SystemExit(0)


def in_a_sentence(main: Callable[[], object]) -> None:
    """Run it; one sentence and exit 2 for what it cannot do without."""
    try:
        main()
    except (PtxgenError, ImportError, FileNotFoundError) as missing:
        said = " ".join(str(missing).split())
        print(f"{Path(sys.argv[0]).stem}: {said}", file=sys.stderr)
        raise SystemExit(2) from None
