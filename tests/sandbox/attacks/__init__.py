"""Hostile programs. Each is an answer to a small problem and must be contained: it does not pass and harms nothing."""
