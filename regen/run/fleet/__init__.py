"""Replica slots: which are open and where they lie, what happens when an engine dies, and which rows are to blame."""
