"""Draft, target and counters in; findings and verdicts out. Pure: no engine, no clock, no I/O."""
