"""From texts to packed sequences: rows are read, turned into tokens and answer flags, and cut into sequences."""
