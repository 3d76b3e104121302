"""The host side of native code: LLVM IR as text, its compiler, and the layout of native state. Nothing of PTX."""
