"""What a study found: tables, figures, verdicts, and a page with all of them."""
