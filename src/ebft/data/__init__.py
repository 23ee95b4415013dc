"""From texts to packed sequences.

Rows are read (`rows`), turned into tokens and answer flags (`row_format`), kept on disk in flat files, and cut into
sequences of T tokens (`packing`).
"""
