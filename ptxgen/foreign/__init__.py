"""What ptxas takes and the table's notation lacks, rewritten into it: node for node, with the lines that it had.

Texts of other compilers go through `canonical` before they are checked, and through `lowered` before they run.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ptxgen.foreign.aliases import by_one_name
from ptxgen.foreign.fresh import Fresh
from ptxgen.foreign.lowering import spelled_out, without_video
from ptxgen.foreign.operands import rewritten
from ptxgen.foreign.reserved import with_reserved
from ptxgen.foreign.variables import lifted
from ptxgen.foreign.vectors import in_scalars
from ptxgen.nodes import Directive, Function, Module, Variable
from ptxgen.targets import newest_ptx, own_target, target

EXECUTED_AS = "sm_90a"  # of texts for an architecture that is older than the table


def is_older(module: Module) -> bool:
    """Whether a text is for an architecture before those of the table (sm_30 … sm_62)."""
    name = module.targets[0] if module.targets else ""
    return own_target(module.targets) is None and re.fullmatch(r"sm_[1-6][0-9]", name) is not None


def notes(module: Module) -> list[str]:
    """What to warn of, as findings: versions and architectures that the table does not have."""
    found = []
    newest = newest_ptx()
    if module.version > newest:
        got, known = (".".join(map(str, version)) for version in (module.version, newest))
        said = f".version {got} is newer than {known}, the last that is known here"
        found.append(module.finding(module.line_of(".version"), f"{said}: what it adds is refused where it is used"))
    if is_older(module):
        said = f".target {module.targets[0]} is older than the table of instructions: it runs as {EXECUTED_AS}"
        found.append(module.finding(module.line_of(".target"), said))
    return found


def canonical(module: Module) -> Module:
    """The module as the table writes it: legal where ptxas takes it, and otherwise as wrong as it was."""
    module = by_one_name(module)
    older = is_older(module)
    version, targets = min(module.version, newest_ptx()), module.targets
    if older:
        targets = (EXECUTED_AS, *targets[1:])
        version = max(version, target(EXECUTED_AS).lowest_ptx)
    items: list[Function | Variable | Directive] = []
    for item in module.items:
        if not isinstance(item, Function) or item.body is None:
            items.append(item)
            continue
        fresh = Fresh()
        item = in_scalars(item)
        outside, item = lifted(item)
        items += outside
        items.append(rewritten(without_video(item), fresh, older))
    return replace(module, version=version, targets=targets, items=tuple(items))


def lowered(module: Module) -> Module:
    """The module with instructions that the executor has no emitter of spelled out in others; checked before."""
    module = spelled_out(module)
    functions = module.functions
    wanted = [name for name in ("malloc", "free") if name in functions and functions[name].body is None]
    if wanted:
        from ptxgen.foreign.device_runtime import with_runtime

        module = with_runtime(module, wanted)
    return with_reserved(module)


__all__ = ["EXECUTED_AS", "canonical", "is_older", "lowered", "notes"]
