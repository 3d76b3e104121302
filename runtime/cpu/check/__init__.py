"""Support functions of check mode: shadow memory, races, and who knows of whose work."""
