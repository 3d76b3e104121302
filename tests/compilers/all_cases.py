"""Importing this registers every case of every compiler."""

from tests.compilers import triton_cases  # noqa: F401
