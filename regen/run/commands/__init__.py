"""Each command that is not the run itself, and what it needs: nothing else in run/ imports from here."""
