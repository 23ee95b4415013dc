"""The version of ebft, for what it writes."""

__version__ = "0.1.0.dev0"
