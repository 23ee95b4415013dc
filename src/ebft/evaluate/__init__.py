"""The commands `ebft eval` and `ebft score`, and the tables they show. The work is done in `ebft.tasks`."""
