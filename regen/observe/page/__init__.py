"""The run as one HTML page: a file (report.html) and a live page are the same generator over the same facts.

Pure: facts in, text out. No clock, no I/O but the package's own style and script. Everything that a run says is text
here and never markup: `html.render` is the only place that escapes, and the only one that writes a tag.
"""
