"""Assemblers that only say who they are: their cubin is their name."""

from __future__ import annotations

import pytest

from ptxgen import assembler
from ptxgen.assembler import Assembler
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target

LINKER = Assembler("nvJitLink", (13, 0))
PTXAS = Assembler("ptxas", (13, 0), "/stand-in/ptxas")
OLD_PTXAS = Assembler("ptxas", (11, 0), "/stand-in/old")  # knows no target of Hopper
LOG = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 24 registers
"""


def install(monkeypatch: pytest.MonkeyPatch, *found: Assembler) -> None:
    """These, in this order, are what is installed."""

    def run(one: Assembler, text: str, target: Target) -> tuple[bytes, str, bool]:
        return str(one).encode(), LOG, False

    def known(one: Assembler) -> frozenset[Target]:
        return frozenset(map(parse_target, ("sm_80",) if one is OLD_PTXAS else ("sm_80", "sm_90", "sm_90a")))

    monkeypatch.setattr(assembler, "available_assemblers", lambda: found)
    monkeypatch.setattr(assembler, "supported_targets", known)
    monkeypatch.setattr(assembler, "_by_nvjitlink", run)
    monkeypatch.setattr(assembler, "_by_binary", run)
