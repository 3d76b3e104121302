"""A case: a spec and a target whose text is kept, and where it lies."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.generator import Ptx, generate
from ptxgen.kernel import KernelType
from ptxgen.targets import Target


@dataclass(frozen=True)
class Case:
    """A spec and a target; `file` is where its text lies, `manifest` where its manifest does (if it has one)."""

    spec: KernelType
    target: Target
    file: str
    manifest: str | None = None

    @property
    def folder(self) -> str:
        """Directory of the file."""
        return self.file.rpartition("/")[0]

    @property
    def stem(self) -> str:
        """Name of the file, without `.ptx`."""
        return self.file.rpartition("/")[2].removesuffix(".ptx")

    def generate(self) -> Ptx:
        """The kernel as it is generated now."""
        return generate(self.spec, self.target)


def golden_file(spec: KernelType, where: Target) -> str:
    """Where a golden lies below its root: `<target>/<kernel_type>/<slug>.ptx`."""
    return f"{where}/{spec.kernel_name}/{spec.slug}.ptx"
