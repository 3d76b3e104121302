"""The command line. A file of this package is a command: its name, and its `command`; a new command edits no other.

Nothing else is named here: `ptxgen.cli.list` is the command `list`. Files with an underscore are shared by commands.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the program."""
    from ptxgen.cli._main import INTERRUPTED, deliver_interrupts, invoke

    deliver_interrupts()
    code = invoke()
    if code == INTERRUPTED:  # at once, whatever a compiler is at
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
