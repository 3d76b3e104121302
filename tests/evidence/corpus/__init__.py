"""CUDA C++ written for these tests, the PTX that nvcc made of it, and what each kernel must compute."""
