"""docs/preflight.md, made from the table of checks: `python -m regen.speculative.page > docs/preflight.md`. Pure."""

from __future__ import annotations

from regen.speculative.preflight import ALL_CHECKS, SECTIONS, Check, Section

_HEAD = """\
# What preflight checks

`regen preflight SPEC` looks at files alone: the draft's `config.json`, the headers and small tables of its weights,
samples of its numbers (of a draft on this machine), the target's `config.json` and tokenizer, the installed engine's
source, and the spec. No engine is started, no GPU is used, no weights are downloaded; it takes seconds for a target of
any size. `regen run` begins with the same checks, before it writes anything.

- **refuse**: it cannot work, or nobody could tell that it does not. Exit code 3, and nothing has been started.
- **warn**: probably wrong, and files cannot be sure. Said at every start.
- **note**: good to know.

`--json` prints the findings as a list of objects with `code`, `severity`, `found`, `why` and `fix`; codes do not change
their meaning. `speculation.accept: [CODE]` in the spec goes on in spite of a finding that refuses. It is then said as
a warning at every start. That is also how lossy verification is asked for by name.

What is checked is what runs: every worker gives its engine a copy of the draft's config, with the weights linked, that
says the auxiliary layers where each runner reads them. The copy's path holds no word that an engine could guess a
method from.

What files cannot tell: a head with random weights is whole. Only counters show it.

This page is made from the table in `regen/speculative/preflight.py`: `python -m regen.speculative.page`.
"""


def page() -> str:
    """The whole page, in Markdown."""
    other = Section("Preflight itself", tuple(check for check in ALL_CHECKS if check not in _in_sections()))
    return "\n".join([_HEAD, *(_section(section) for section in (*SECTIONS, other))])


def _in_sections() -> list[Check]:
    return [check for section in SECTIONS for check in section.checks]


def _section(section: Section) -> str:
    rows = [f"| `{check.code}` | {check.severity} | {check.title}. {check.why} |" for check in section.checks]
    return (
        "\n".join([f"## {section.title}", "", "| code | | what, and why it matters |", "| --- | --- | --- |", *rows])
        + "\n"
    )


if __name__ == "__main__":
    print(page(), end="")
