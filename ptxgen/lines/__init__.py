"""Lines of texts: where they come from in Python and templates, and the words above them."""
