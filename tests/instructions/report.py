"""`python -m tests.instructions.report`: the largest errors of the approximations, in ulp, as a Markdown table.

Three columns: the CPU executor and the recorded GPU against the true value, and the share of the bound that they use.
"""

from __future__ import annotations

import sys

from tests.devices import open_device
from tests.instructions import bounds, record
from tests.instructions.catalogue import TOPICS, entries
from tests.instructions.runner import run


def rows() -> list[str]:
    """One line per approximate form."""
    recorded, _, meta = record.load()
    lines = [f"| form | executor, ulp | of its bound | {meta['device']}, ulp | of its bound |", "| --- " * 5 + "|"]
    for entry in (e for topic in TOPICS for e in entries(topic)):
        forms = [f for f in entry.forms if not f.exact and not f.name.startswith("mma")]
        results = run(entry, open_device("fast")) if forms else {}
        for form in forms:
            cells = []
            for got in (results[form.name][0], recorded[form.name][0]):
                found = bounds.errors(form, got, recorded[form.name][0])
                cells += [f"{found.ulp:.3g}", f"{100 * found.share:.0f} %"]
            lines.append(f"| `{form.name}` | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
    sys.exit(0)
