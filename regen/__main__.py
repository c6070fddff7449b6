"""`python -m regen`: the entrypoint of a Ray job, the same as the `regen` command."""

from regen.cli import main

main()
