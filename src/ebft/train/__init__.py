"""Training: the trainer, what it logs, what it leaves, and how it resumes."""
