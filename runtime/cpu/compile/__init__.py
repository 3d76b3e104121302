"""From an entry to object code: what it needs, and where both are kept."""
