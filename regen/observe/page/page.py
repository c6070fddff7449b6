"""The page as a whole, and the part of it that changes.

`whole_page` is complete without its script: the script only keeps a live page up to date and remembers the reader's
choice of light or dark.
"""

from __future__ import annotations

from regen.observe.page import figures
from regen.observe.page.acceptance import acceptance_section
from regen.observe.page.assets import assets, policy
from regen.observe.page.facts import Fact, PageFacts
from regen.observe.page.faults import faults_section
from regen.observe.page.html import Element, Verbatim, e, render
from regen.observe.page.lengths import lengths_section
from regen.observe.page.outcomes import outcomes_section
from regen.observe.page.over_time import events_section, over_time_section
from regen.observe.page.parts import facts_list, section
from regen.observe.page.progress import progress_section
from regen.observe.page.replicas import replicas_section
from regen.observe.page.samples import samples_section

_SECTIONS = (
    progress_section,
    over_time_section,
    outcomes_section,
    lengths_section,
    acceptance_section,
    replicas_section,
    faults_section,
    events_section,
    samples_section,
)
_SCHEMES = (("auto", "as the system"), ("light", "light"), ("dark", "dark"))


def whole_page(facts: PageFacts) -> str:
    """The document."""
    main = _main(facts)
    page = e("html", _head(facts), e("body", _skip(), _header(facts), main, _footer(facts)), lang="en")
    return f"<!DOCTYPE html>\n{render(page)}\n"


def main_part(facts: PageFacts) -> str:
    """The `main` element alone: what a live page fetches."""
    return render(_main(facts))


def _main(facts: PageFacts) -> Element:
    return e(
        "main",
        _standing(facts),
        [make(facts) for make in _SECTIONS],
        section("provenance", "How it is made", facts_list((Fact("run", facts.url), *facts.provenance))),
        id="main",
        data_page=f"{facts.key} {facts.version} {assets().digest}",
        data_at=figures.clock(facts.at),
        data_ended="yes" if facts.has_ended else "no",
    )


def _standing(facts: PageFacts) -> Element:
    return e(
        "p",
        e("b", facts.phase, class_="phase"),
        f" {facts.phase_note}" if facts.phase_note else None,
        " As of ",
        figures.moment(facts.at),
        ".",
        class_="standing",
    )


def _head(facts: PageFacts) -> Element:
    found = assets()
    return e(
        "head",
        e("meta", charset="utf-8"),
        e("meta", http_equiv="Content-Security-Policy", content=policy(facts.is_live)),
        e("meta", name="viewport", content="width=device-width, initial-scale=1"),
        e("meta", name="referrer", content="no-referrer"),
        e("meta", name="color-scheme", content="light dark"),
        e("link", rel="icon", href="data:,"),
        e("title", f"{facts.name}: regen"),
        e("style", Verbatim(found.style)),
    )


def _header(facts: PageFacts) -> Element:
    return e(
        "header",
        e("h1", e("bdi", facts.name)),
        e("p", e("span", "live", id="live", role="status"), " ", e("span", id="updated"), class_="live")
        if facts.is_live
        else None,
        _scheme_switch(),
        e("nav", [e("a", name, href=f"#{anchor}") for anchor, name in _LINKS], aria_label="Sections"),
    )


_LINKS = (
    ("progress", "Progress"),
    ("over-time", "Over time"),
    ("outcomes", "Outcomes"),
    ("lengths", "Lengths"),
    ("acceptance", "Acceptance"),
    ("replicas", "Replicas"),
    ("faults", "Faults"),
    ("events", "Decisions"),
    ("samples", "Samples"),
    ("provenance", "How it is made"),
)


def _scheme_switch() -> Element:
    """It works by style alone."""
    choices = [
        e("label", e("input", type="radio", name="scheme", id=f"scheme-{name}", checked=name == "auto"), f" {said}")
        for name, said in _SCHEMES
    ]
    return e("fieldset", e("legend", "Colours"), choices, class_="scheme")


def _skip() -> Element:
    return e("a", "To the figures", href="#main", class_="skip")


def _footer(facts: PageFacts) -> tuple[Element, ...]:
    return (
        e("footer", e("p", f"Made by regen {facts.version} from what the run folder holds.", class_="soft")),
        e("script", Verbatim(assets().script)),
    )
