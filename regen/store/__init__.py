"""The run folder: bytes in a store, the journal of what is done, and what is derived from it."""
