"""The checks of preflight, by what they look at. Pure: evidence in, at most one fault out."""
