"""What went wrong and was dealt with."""

from __future__ import annotations

from regen.observe.page import figures
from regen.observe.page.facts import Fact, PageFacts
from regen.observe.page.html import Element
from regen.observe.page.parts import facts_list, section, table


def faults_section(facts: PageFacts) -> Element:
    faults = facts.faults
    retries = sorted(faults.retries.items(), key=lambda one: -one[1])
    return section(
        "faults",
        "Faults and retries",
        facts_list(
            (
                Fact("attempts that failed", figures.count(sum(faults.retries.values()))),
                Fact("engines started again", figures.count(sum(replica.restarts for replica in facts.replicas))),
                Fact("stalls", figures.count(sum(replica.stalls for replica in facts.replicas))),
                Fact("coordinator restarts", figures.count(faults.coordinator_restarts)),
                Fact("store errors", figures.count(faults.store_errors)),
                Fact("rows suspected of killing engines", figures.count(faults.suspects)),
            )
        ),
        table("Failed attempts by reason", ("reason", "attempts"), [(name, f"{count:,}") for name, count in retries])
        if retries
        else None,
    )
