"""Our attention inside transformers' models."""
