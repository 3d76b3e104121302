"""The CPU executor: PTX compiled to native code for this host, with checks that a GPU does not make."""
