"""Every exception that ptxgen raises on purpose. One base class, so that a caller can catch them all."""

from __future__ import annotations

from collections.abc import Iterable


class PtxgenError(Exception):
    """Base of all errors of this package."""


class SpecError(PtxgenError, ValueError):
    """A kernel specialisation is not legal; the text gives every reason and the nearest legal choice."""


class FileError(PtxgenError, ValueError):
    """A model file is damaged, or holds what is not covered; the text names the file, the place and the value."""


class TargetError(PtxgenError, ValueError):
    """A target name is unknown, or a target lacks what was asked of it."""


class IsaError(PtxgenError, ValueError):
    """PTX text or a DSL call does not fit the instruction table: unknown form, wrong operand, undeclared register."""


class TemplateError(PtxgenError):
    """A template and the fragments of its kernel type do not fit together."""


class AssembleError(PtxgenError):
    """The assembler refused a text, or none is installed whose code for it may be run."""


class ExecutionError(PtxgenError):
    """The CPU executor found faults in running PTX: bounds, races, barriers, uninitialised data, deadlocks.

    `findings`: the text of each (a `ptxgen.finding.Finding`, with its parts), in the order in which they were found.
    """

    def __init__(self, *findings: object) -> None:
        from ptxgen.finding import Finding  # no part of `import ptxgen`, for which it would take a millisecond

        self.findings = tuple(one if isinstance(one, Finding) else Finding(str(one)) for one in findings)
        super().__init__("\n\n".join(self.findings))


class ExecutionNote(UserWarning):
    """What the CPU executor saw in running PTX that is no fault by itself: unordered stores of equal values."""


class CudaError(PtxgenError):
    """A CUDA driver call failed; the text names the call, the status and what it means."""


class ModuleLoadError(CudaError):
    """A module could not be loaded; the text carries the JIT log and the versions that matter."""


class CapacityError(PtxgenError):
    """A KV cache cannot hold what was asked; nothing was changed."""


class LogitsError(PtxgenError, ArithmeticError):
    """A model's logits are NaN: weights are damaged, or values overflow the cache's type."""


class ConfigWarning(UserWarning):
    """A model's configuration has a key that is not known, or says what kernels do otherwise; or a context was asked
    for that is longer than the model's own, or matrices that are quantised are quantised again."""


class CacheWarning(RuntimeWarning):
    """A cache directory cannot be used; its entries stay in memory."""


class VersionWarning(UserWarning):
    """A text's `.version` is newer than the instruction table."""


# what Python raises where a text nests, counts or measures beyond all bounds: one place turns it into an error
UNREADABLE = (RecursionError, ValueError, OverflowError, MemoryError)


def unreadable(wrong: BaseException) -> str:
    """What is said of a text for which Python raised one of `UNREADABLE`."""
    if isinstance(wrong, RecursionError):
        return "cannot be read (it nests too deeply)"
    if isinstance(wrong, MemoryError):
        return "cannot be read (it takes more memory than there is)"
    return "cannot be read (a value in it is beyond what can be counted)"


_LONGEST = 60


def brief(value: object) -> str:
    """A value as the text of an error shows it: its repr, without the middle of a long one."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integers of thousands of digits
        text = f"{type(value).__name__} too long to print"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]} … {text[-15:]}"


def near(name: object, known: Iterable[str], alike: float = 0.6) -> str:
    """The one of `known` that is nearest to a name, "" where none is near: by as much as `alike` of 1."""
    import difflib

    text = str(name)
    close = difflib.get_close_matches(text, list(known), 1, alike) if len(text) <= _LONGEST else []
    return close[0] if close else ""


def nearest(name: object, known: Iterable[str], alike: float = 0.6) -> str:
    """`; nearest: X` for the end of an error about a name that is not known, nothing where none of `known` is near."""
    found = near(name, known, alike)
    return f"; nearest: {found}" if found else ""


__all__ = [
    "UNREADABLE",
    "AssembleError",
    "CapacityError",
    "ConfigWarning",
    "CudaError",
    "ExecutionError",
    "ExecutionNote",
    "FileError",
    "IsaError",
    "ModuleLoadError",
    "PtxgenError",
    "SpecError",
    "TargetError",
    "TemplateError",
    "VersionWarning",
    "brief",
    "nearest",
    "unreadable",
]
