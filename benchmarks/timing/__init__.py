"""How calls are timed on a GPU: as nodes of graphs, over inputs in rotation."""
