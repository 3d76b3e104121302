"""Tests of PTX by others without a GPU: drivers of other compilers. Each part imports its compiler when it is used."""
