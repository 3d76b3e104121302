"""`python -m tests.evidence.instructions.report > docs/approximations.md`: the approximations' largest errors, in ulp.

The CPU executor and the recorded GPU, each against the true value, and the share of the documented bound that it uses.
"""

from __future__ import annotations

import sys

from benchmarks.report.sentence import show_help
from tests.evidence.devices import open_device
from tests.evidence.instructions import bounds, record
from tests.evidence.instructions.catalogue import FORMS, TOPICS, entries
from tests.evidence.instructions.runner import run

HEAD = """# Approximate instructions: how far from the truth

How exact the CPU executor's approximate instructions are, beside a GPU's.

The results of {recorded} instruction forms were recorded on an {device} (`tests/evidence/instructions`):

- {exact} forms: the CPU executor gives the same bits.
- {approximate} forms, in the table: approximations, whose results the PTX ISA leaves open within a bound. The executor
  uses less of the bound than the GPU does, or about as much. Zeros, infinities and NaN are the GPU's in all of them.
- {sums} forms of `mma`, which leaves the order of its sums open: the executor is within 2⁻¹⁸ of the recorded sums of
  magnitude 16.

The table has the largest error against the true value over the recorded inputs, in units in the last place (ulp) of the
result, and the share of the ISA's bound that it uses. Some bounds are absolute or relative errors, so many ulp can be a
small share near a zero of the function. Forms named `edges` have inputs at the edges of the formats.

Made by `python -m tests.evidence.instructions.report`; a test compares it with a fresh run.

| form | executor, ulp | of its bound | GPU, ulp | of its bound |
| --- | --- | --- | --- | --- |
"""


def rows() -> list[str]:
    """One line per approximate form, in the order of the names."""
    recorded, lines = record.load()[0], []
    for entry in (e for topic in TOPICS for e in entries(topic)):
        forms = [f for f in entry.forms if not f.exact and not f.name.startswith("mma")]
        results = run(entry, open_device("fast")) if forms else {}
        for form in forms:
            cells = []
            for got in (results[form.name][0], recorded[form.name][0]):
                found = bounds.errors(form, got, recorded[form.name][0])
                cells += [f"{found.ulp:.3g}", f"{100 * found.share:.0f} %"]
            lines.append(f"| `{form.name}` | {' | '.join(cells)} |")
    return sorted(lines)


def counts() -> dict[str, int]:
    """How many forms were recorded, and how many of these are exact, approximations, sums in any order."""
    recorded = [FORMS[name] for name in record.load()[0]]
    sums = sum(form.name.startswith("mma") and not form.exact for form in recorded)
    exact = sum(form.exact for form in recorded)
    return {"recorded": len(recorded), "exact": exact, "approximate": len(recorded) - exact - sums, "sums": sums}


def text() -> str:
    """The whole page."""
    device = str(record.load()[2]["device"]).partition(",")[0].strip("\0 ")
    return HEAD.format(device=device, **counts()) + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    show_help(__doc__)
    sys.stdout.write(text())
