"""Energy-Based Fine-Tuning of language models."""

__version__ = "0.1.0.dev0"
