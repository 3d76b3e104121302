"""The pytest plug-in of the Triton driver: where `PTXGEN_TRITON` is set, it is installed before tests are read."""

from __future__ import annotations

import os


def pytest_configure(config: object) -> None:
    """Install the driver as the environment says (`ptxgen.testing.triton`)."""
    if os.environ.get("PTXGEN_TRITON"):
        from ptxgen.testing.triton import install_from_environment

        install_from_environment()
