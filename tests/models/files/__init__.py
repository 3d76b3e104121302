"""Tests of model files: GGUF, safetensors, llama2.c; damaged and large ones."""
