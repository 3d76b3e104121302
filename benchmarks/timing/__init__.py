"""How commands take times: calls on a GPU in turn; launches and whole steps that are bound before."""
