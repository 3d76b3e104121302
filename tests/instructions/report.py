"""`python -m tests.instructions.report > docs/approximations.md`: the largest errors of the approximations, in ulp.

The CPU executor and the recorded GPU, each against the true value, and the share of the documented bound that it uses.
"""

from __future__ import annotations

import sys

from tests.devices import open_device
from tests.instructions import bounds, record
from tests.instructions.catalogue import FORMS, TOPICS, entries
from tests.instructions.runner import run

HEAD = """# Approximate instructions: how far from the truth

Every other instruction form of the CPU executor gives the bits that the GPU gave when `tests/instructions` was recorded
({exact} forms, on an {device}). The forms below are approximations, whose results the PTX ISA leaves open within a
bound. For each: the largest error against the true value over the recorded inputs, in units in the last place of the
result, and the share of the ISA's bound that it uses (some bounds are absolute or relative errors, so that many ulp can
be a small share, near a zero of the function). Inputs at the edges of the formats are in the forms named `edges`;
zeros, infinities and NaN are the GPU's in all of them. `mma.sync` leaves the order of its sums open too: the executor
is within 2⁻¹⁸ of the recorded sums of magnitude 16.

Made by `python -m tests.instructions.report`; a test compares it with a fresh run.

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


def text() -> str:
    """The whole page."""
    device = str(record.load()[2]["device"]).partition(",")[0].strip("\0 ")
    exact = sum(f.exact for f in FORMS.values())
    return HEAD.format(exact=exact, device=device) + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
