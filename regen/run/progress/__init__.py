"""How far a run is: what is left, how fast it goes, what was counted."""
