"""Differential fuzzing: random LLVM IR through NVPTX, PTX and the executor, against the same IR on this machine."""
