"""Tools that run long, or write documents and files of the repository."""
