"""Speculation of one session: before an engine gets rows, what pays, and while the run goes on."""
