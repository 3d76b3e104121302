"""Cases of Triton's texts: signatures, constants, inputs, and NumPy's results. `triton_kernels` has the kernels."""

from tests.evidence.compilers.triton_cases import elements, products, reductions  # noqa: F401
