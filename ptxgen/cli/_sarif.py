"""Findings as SARIF 2.1.0, which code hosts show beside the lines they are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ptxgen import __version__

if TYPE_CHECKING:
    from ptxgen.finding import Spot
    from ptxgen.runtime.tools.checker import Report, Seen

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(reports: Sequence[Report]) -> dict[str, Any]:
    """Findings as a SARIF 2.1.0 log with one run."""
    seen = [one for report in reports for one in report.seen]
    rules = list(dict.fromkeys(one.finding.kind for one in seen))
    driver = {
        "name": "ptxgen check", "version": __version__,
        "rules": [{"id": _id(title), "shortDescription": {"text": title}} for title in rules],
    }  # fmt: skip
    results = [_result(one, rules.index(one.finding.kind)) for one in seen]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _id(title: str) -> str:
    return "ptx/" + title.replace(" ", "-")


def _result(seen: Seen, rule: int) -> dict[str, Any]:
    finding = seen.finding
    first = finding.spots[0] if finding.spots else None
    places = [_place(finding.file, max(finding.line, 1), first.text if first else "")]
    if first is not None and first.source is not None:
        places.insert(0, _place(*first.source, ""))
    return {
        "ruleId": _id(finding.kind), "ruleIndex": rule, "level": "note" if seen.note else "error",
        "message": {"text": str(finding)},
        "locations": [{**places[0], "logicalLocations": [{"name": finding.kernel, "kind": "function"}]}],
        "relatedLocations": [{"id": n, **place} for n, place in enumerate(places[1:], 1)],
        "properties": {"runs": seen.runs, "buffer": finding.buffer, "threads": [_who(spot) for spot in finding.spots]},
    }  # fmt: skip


def _place(file: str, line: int, text: str) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": line}
    if text:
        region["snippet"] = {"text": text}
    return {"physicalLocation": {"artifactLocation": {"uri": file}, "region": region}}


def _who(spot: Spot) -> dict[str, Any]:
    return {"cta": spot.cta, "warp": spot.warp, "lanes": spot.lanes}
