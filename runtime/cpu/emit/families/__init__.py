"""Instruction emitters, one file a family; `registry.py` says how to add one."""
