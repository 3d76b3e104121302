"""A generated kernel as views take it: what `ptxgen.generate` returns."""

from __future__ import annotations

from typing import Protocol

from ptxgen.kernel import KernelType
from ptxgen.launch import Launch, Param
from ptxgen.lines.sources import SourceMap
from ptxgen.nodes import Module
from ptxgen.requires import Requirements
from ptxgen.targets import Target


class GeneratedKernel(Protocol):
    """Text and contract; `ptxgen.generator.Ptx` says more of each."""

    @property
    def spec(self) -> KernelType:
        """The spec that it was generated from."""

    @property
    def target(self) -> Target:
        """The architecture."""

    @property
    def entry(self) -> str:
        """The name of the function."""

    @property
    def text(self) -> str:
        """The PTX."""

    @property
    def params(self) -> tuple[Param, ...]:
        """The entry's parameters, in order."""

    @property
    def launch(self) -> Launch:
        """Grid, block, shared memory and cluster of a launch."""

    @property
    def requires(self) -> Requirements:
        """PTX version and architecture, and the lines that need them."""

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""

    @property
    def module(self) -> Module:
        """The parsed text."""

    @property
    def source_map(self) -> SourceMap:
        """Where its lines come from."""
