"""Our backend for vLLM, against a record of its interfaces."""
