"""Engines: what makes tokens. Each file is one implementation of `protocols.Engine`."""
