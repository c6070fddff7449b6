"""Row shapes, one file per family: a raw row becomes a `Given`, or is refused with a closed reason. Pure."""
