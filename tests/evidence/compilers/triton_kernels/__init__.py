"""Triton kernels of the collection, of our own writing. They need triton; the tests run the texts it made of them."""

from typing import Any


def named(name: str) -> Any:
    """The kernel of this name."""
    from tests.evidence.compilers.triton_kernels import elements, products, reductions

    return next(getattr(module, name) for module in (products, reductions, elements) if hasattr(module, name))
