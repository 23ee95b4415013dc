"""Benchmarks: their problems, prompts, the reading of answers, and the tests."""
