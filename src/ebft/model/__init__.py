"""The method on transformers models: attention over packed sequences, rollouts and features."""
