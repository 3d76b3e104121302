"""Instruction sequences that several kernel types share. Each takes the builder first and appends to its fragment."""
