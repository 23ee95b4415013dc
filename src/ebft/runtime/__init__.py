"""How it is computed, and nothing of what: files, messages, timing, processes, sharding, launching."""
