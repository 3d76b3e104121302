"""Which line of a template places a fragment, for messages of what has not been rendered."""

from __future__ import annotations

import re

from ptxgen.packages import find_template
from ptxgen.places import Place


def placement(template: str, name: str) -> Place | None:
    """The line of a skeleton, or of a template that it names, that places a fragment; None where none is found."""
    seen, todo = set(), [f"{template}.ptx.j2"]
    while todo:
        each = todo.pop(0)
        seen.add(each)
        file = find_template(each)
        if file is None:
            continue
        source = file.read_text(encoding="utf-8")
        for number, line in enumerate(source.splitlines(), 1):
            if re.search(rf"{{{{[^}}]*\b{re.escape(name)}\b", line):
                return Place(str(file), number)
        todo += [found for found in re.findall(r"""["']([\w/]+\.ptx\.j2)["']""", source) if found not in seen]
    return None
