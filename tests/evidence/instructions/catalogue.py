"""All forms, by topic and by name."""

from __future__ import annotations

from tests.evidence.instructions import convert_forms, float_forms, integer_forms, matrix_forms, warp_forms, wgmma_forms
from tests.evidence.instructions.form import Entry, Form, bundle

TOPICS: dict[str, tuple[Form, ...]] = {
    "integer": tuple(integer_forms.forms()),
    "float": tuple(float_forms.forms()),
    "convert": tuple(convert_forms.forms()),
    "warp": tuple(warp_forms.forms()),
    "matrix": tuple(matrix_forms.forms()),
    "wgmma": tuple(wgmma_forms.forms()),
}
FORMS: dict[str, Form] = {f.name: f for forms in TOPICS.values() for f in forms}
assert len(FORMS) == sum(map(len, TOPICS.values())), "two forms have one name"


def entries(topic: str) -> list[Entry]:
    """The entries of one topic, many forms each."""
    return bundle(TOPICS[topic])
