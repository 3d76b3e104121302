"""Lines of texts: where they come from in Python and templates, and how they are shown."""
