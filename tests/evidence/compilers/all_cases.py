"""Importing this registers every case of every compiler."""

from tests.evidence.compilers import cuda_cases, numba_cases, triton_cases  # noqa: F401
