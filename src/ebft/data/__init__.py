"""From texts to packed sequences.

Rows are read (`rows`), turned into tokens and answer flags (`formats`), kept on disk in a flat file (`store`), and cut
into sequences of T tokens (`packing`). `builtin` holds data that every machine has.
"""
