"""How it is computed, and nothing of what: files, messages, timing, graphs, processes, sharding, launching."""
