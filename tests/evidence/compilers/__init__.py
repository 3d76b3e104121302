"""PTX by other compilers: sources, texts, and what NumPy says of their results."""
