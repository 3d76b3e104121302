"""A pytest plug-in: the fixture `ptx_device`, and findings of the executor as failures with the lines they are about.

`--ptx-check` runs every test that has the fixture in fast mode, in several random orders and in check mode; without
it, in fast mode only. Nothing of the runtime is imported before a test asks for a device.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ptxgen.errors import ExecutionError

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.device import CpuDevice

_SEEDS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plug-in."""
    group = parser.getgroup("ptxgen", "PTX on the CPU executor")
    group.addoption("--ptx-check", action="store_true",
                    help="run tests that use ptx_device in fast, random and check mode: races, missing barriers, "
                         "accesses out of bounds are failures")  # fmt: skip
    group.addoption("--ptx-seeds", type=_count, default=_SEEDS, metavar="N",
                    help=f"random orders of --ptx-check (default: {_SEEDS})")  # fmt: skip
    group.addoption("--ptx-equal-stores", action="store_true",
                    help="unordered stores of equal values are failures, not warnings")  # fmt: skip


def _count(word: str) -> int:
    """An option's number of random orders."""
    if not (word.isascii() and word.isdigit()):
        raise ArgumentTypeError(f"must be an integer ≥ 0 (got {word!r})")
    return int(word)


def _runs(config: pytest.Config) -> list[str]:
    """`fast`, `random-0`, …, `check`."""
    if not config.getoption("--ptx-check"):
        return ["fast"]
    return ["fast", *(f"random-{seed}" for seed in range(config.getoption("--ptx-seeds"))), "check"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that has the fixture, once for each mode and order."""
    if "ptx_device" in metafunc.fixturenames:
        metafunc.parametrize("ptx_device", _runs(metafunc.config), indirect=True)


@pytest.fixture
def ptx_device(request: pytest.FixtureRequest) -> Iterator[CpuDevice]:
    """The CPU executor: `ptx_device.module(text)["entry"].launch(grid, block, [ptx_device.array(x), …])`, with the
    device protocol of `ptxgen.runtime.open_device`; one host thread, so that a finding comes again."""
    from ptxgen.runtime.cpu.device import CpuDevice

    mode, _, seed = getattr(request, "param", _runs(request.config)[-1]).partition("-")
    stores = "finding" if request.config.getoption("--ptx-equal-stores") else "note"
    device = CpuDevice(mode=mode, seed=int(seed or 0), threads=1, equal_stores=stores)
    yield device
    device.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
    """A test that ends with findings shows them, and where it has launched, in the place of the runtime's own calls."""
    outcome = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, ExecutionError):
        outcome.get_result().longrepr = _failure(item, call.excinfo)


def _failure(item: pytest.Item, info: Any) -> str:
    from ptxgen.finding import with_source

    here = [entry for entry in info.traceback if str(entry.path) == str(item.path)]
    where = f"{here[-1].path}:{here[-1].lineno + 1}: {str(here[-1].statement).strip()}" if here else item.nodeid
    return "\n\n".join([*map(with_source, info.value.findings), where])
