"""A text as people and tools read it: with the origin of its lines, with `.file` and `.loc`, as HTML."""
