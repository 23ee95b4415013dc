"""The commands `ebft eval`, `ebft score` and `ebft generate`, and what they measure and show."""
