"""The main loop without tensor cores."""
