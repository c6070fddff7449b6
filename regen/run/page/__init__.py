"""The page of a run: its facts, live and as a report."""
