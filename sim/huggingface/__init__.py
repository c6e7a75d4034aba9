"""Read a model from its Hugging Face ``config.json``."""
