"""The page as text: everything escaped, the policy true, every size of run, nothing unknown shown as a number."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from regen.observe.page import figures
from regen.observe.page.facts import EventKind, ProgressFacts, Seen
from regen.observe.page.history import happened, stretches, thinned
from regen.observe.page.html import Verbatim, e, render
from regen.observe.page.lengths import quantile
from regen.observe.page.page import main_part, whole_page
from regen.records import Eta, EtaState, Status
from tests.page_facts import HOSTILE, NOW, empty, made_up, not_numbers

TAGS = {
    "html head meta link title style body a header h1 bdi p span fieldset legend label input nav main section h2 h3 div"
    " table caption thead tbody tfoot tr th td dl dt dd b code time ul li details summary pre footer script figure"
    " figcaption svg g line rect text polyline circle"
}
ATTRIBUTES = {
    "lang charset http-equiv content name rel href class id type checked role aria-label aria-labelledby aria-hidden"
    " data-page data-at data-ended datetime scope colspan tabindex dir title x y x1 x2 y1 y2 dx dy width height cx cy r"
    " points fill vector-effect viewbox preserveaspectratio text-anchor"
}


class Parsed(HTMLParser):
    """What a browser would see: elements, attributes, text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def words(names):
    return set(" ".join(names).split())


def test_hostile_text_is_text_everywhere():
    tame, hostile = Parsed(whole_page(made_up())), Parsed(whole_page(made_up(hostile=HOSTILE)))
    assert hostile.open == []
    assert hostile.tags["script"] == 1
    assert set(hostile.tags) <= words(TAGS)
    assert {name for _, name, _ in hostile.attributes} <= words(ATTRIBUTES)
    # Long names get a title, and text that was empty a place: nothing else differs in what elements there are.
    assert hostile.tags == tame.tags
    assert hostile.text.count("<script>window.ran=1</script>") > 20


def test_what_a_browser_would_obey_becomes_a_sign():
    text = Parsed(whole_page(made_up(hostile=HOSTILE))).text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069]", text)
    assert "[U+202E]evil\u2400\u241b[31m[U+2028]" in text


@pytest.mark.parametrize("char", ["\ud800", "\u2066", "\u061c", "\ufeff", "\U000e0041", "\x85"])
def test_unsafe_characters_are_named(char):
    assert render(e("p", char)) == f"<p>[U+{ord(char):04X}]</p>"


def test_writing_that_needs_joiners_and_emoji_are_left_alone():
    assert render(e("p", "👩\u200d🚀 \u0645\u06cc\u200c\u062e\n\t")) == "<p>👩\u200d🚀 \u0645\u06cc\u200c\u062e\n\t</p>"


def test_a_quote_cannot_leave_an_attribute():
    assert render(e("a", href='" onclick="x')) == '<a href="&quot; onclick=&quot;x"></a>'


@pytest.mark.parametrize("name", ["on click", "a>b", "", "ü"])
def test_names_are_never_data(name):
    with pytest.raises(ValueError, match="no name"):
        render(e(name))


def test_elements_take_nested_children_and_leave_none_out():
    assert render(e("p", [["a"], None, [e("b", "c")]], None, hidden=True, id=None, checked=False)) == (
        '<p hidden="">a<b>c</b></p>'
    )


@pytest.mark.parametrize("is_live", [False, True])
def test_the_policy_allows_the_pages_own_style_and_script_and_no_other(is_live):
    page = whole_page(made_up(is_live=is_live))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#x27;", "'").split("; "))
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules.get("connect-src") == ("'self'" if is_live else None)


def test_nothing_is_fetched_from_elsewhere():
    parsed = Parsed(whole_page(made_up()))
    leads = [value for _, name, value in parsed.attributes if name in ("href", "src")]
    assert all(lead.startswith("#") or lead == "data:," for lead in leads)
    # The policy forbids style in attributes: the page would lose it.
    assert not [one for one in parsed.attributes if one[1] == "style" or one[1].startswith("on")]


@pytest.mark.parametrize(
    "facts",
    [empty(), made_up(1, 1), made_up(40, 64), not_numbers(), empty(samples=())],
    ids=["empty", "one source", "many", "not numbers", "no samples"],
)
def test_every_size_of_run_makes_a_whole_page(facts):
    page = whole_page(facts)
    parsed = Parsed(page)
    assert parsed.open == []
    assert not re.search(r"\b(nan|inf|None)\b", re.sub("<(style|script)>.*?</", "", page, flags=re.DOTALL))
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {lead[1:] for _, name, lead in parsed.attributes if name == "href" and lead.startswith("#")} <= set(ids)
    assert len(page) < 600_000


def test_the_part_that_changes_stands_in_the_page_as_it_is():
    assert main_part(made_up(is_live=True)) in whole_page(made_up(is_live=True))


def test_another_build_or_run_has_another_mark():
    def mark(facts):
        (found,) = re.findall(r'data-page="([^"]*)"', main_part(facts))
        return found

    facts = made_up()
    assert len({mark(facts), mark(replace(facts, key="other")), mark(replace(facts, version="9"))}) == 3
    assert mark(facts) == mark(replace(facts, at=NOW + 9))


def test_charts_and_tables_say_what_they_are():
    parsed = Parsed(whole_page(made_up()))
    labelled = [value for tag, name, value in parsed.attributes if tag == "svg" and name == "aria-label"]
    hidden = [one for one in parsed.attributes if one[:2] == ("svg", "aria-hidden")]
    images = [one for one in parsed.attributes if one == ("svg", "role", "img")]
    assert len(labelled) == len(images)
    # Inside a chart only the part that stretches is neither.
    assert parsed.tags["svg"] == len(images) + len(hidden) + 2
    assert parsed.tags["table"] == parsed.tags["caption"]
    assert any("lowest" in text and "highest" in text for text in labelled)


@pytest.mark.parametrize(
    ("eta", "changes", "said"),
    [
        (Eta(EtaState.WARMING), {}, "warming uptoo little is seen yet"),
        (Eta(EtaState.WARMING), {"has_ended": True}, "nobody runs it"),
        (Eta(EtaState.STALLED), {}, "stalledno token comes"),
        (Eta(EtaState.STALLED, 60, 120, 600), {}, "no token comes; 1 min 00 s to 10 min 00 s"),
        (Eta(EtaState.ESTIMATING, 3600, 7200, 90000), {}, "1 h 00 min to 1 d 1 h"),
        (Eta(EtaState.FINISHED, 0, 0, 0), {}, "what this session is to make is made"),
        (Eta(EtaState.FINISHED, 0, 0, 0), {"has_ended": True}, "nobody runs it"),
    ],
)
def test_the_time_to_go_says_its_state_in_words(eta, changes, said):
    facts = empty(progress=ProgressFacts(100, 50, eta=eta), **changes)
    assert said in Parsed(whole_page(facts)).text


@pytest.mark.parametrize(
    ("deadline", "said"),
    [
        (5_000.0, "Attention: limits.hours ends this session in 1 h 23 min, before the rows are likely to be done"),
        (15_000.0, "which may be before all rows are done"),
        (99_000.0, "the rows are likely to be done before"),
    ],
)
def test_the_deadline_is_compared_with_the_time_to_go(deadline, said):
    progress = ProgressFacts(100, 50, eta=Eta(EtaState.ESTIMATING, 8e3, 1e4, 2e4), deadline_seconds=deadline)
    assert said in Parsed(whole_page(empty(progress=progress))).text


def test_done_is_said_when_every_row_is_committed():
    assert "every row has an outcome" in Parsed(whole_page(empty(progress=ProgressFacts(10, 10)))).text


def test_rows_that_are_to_be_made_again_are_not_done():
    parsed = Parsed(whole_page(empty(progress=ProgressFacts(10, 10, reopened=5))))
    assert "50.0 %" in parsed.text
    assert "every row has an outcome" not in parsed.text


def test_rates_are_of_one_session_and_gaps_stay_gaps():
    history = (
        Seen(0, "a"),
        Seen(100, "a", 500, 10, 12),
        Seen(200, "a", 400, 10, 12),
        Seen(5000, "b", 400, 10, 12),
        Seen(5010, "b", 900, 20, 13),
    )
    first, second = stretches(history)
    assert [(point.tokens_per_second, point.accept_length) for point in first] == [(5.0, 2.2), (None, None)]
    assert [(point.at, point.tokens_per_second, point.accept_length) for point in second] == [(5010, 50.0, 1.1)]


def test_thinning_keeps_the_ends_of_sessions_and_the_sums():
    history = tuple(Seen(at, "a" if at < 4000 else "b", output_tokens=at) for at in range(10_000))
    few = thinned(history, 50)
    assert len(few) < 60
    assert {0, 3999, 4000, 9999} <= {seen.at for seen in few}
    assert all(point.tokens_per_second == pytest.approx(1.0) for stretch in stretches(few) for point in stretch)


def test_troubles_between_two_moments_are_told_once():
    history = (
        Seen(0, "a"),
        Seen(10, "a", troubles={"restarts": 2, "stalls": 0}),
        Seen(20, "a", troubles={"restarts": 2}),
    )
    faults = [event for event in happened(history) if event.kind is EventKind.FAULT]
    assert [(event.at, event.text.endswith(": 2 restarts")) for event in faults] == [(10, True)]


def test_quantiles_are_the_upper_ends_of_buckets():
    assert quantile((), 0.5) is None
    assert [quantile((0, 0, 4, 4), part) for part in (0.5, 0.9, 1.0)] == [3, 5, 5]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (figures.count(83_000), "83,000"),
        (figures.count(math.nan), "n/a"),
        (figures.short(1_234_567), "1.23 M"),
        (figures.short(0.0), "0"),
        (figures.share(1, 3), "33.3 %"),
        (figures.share(1, 100_000), "0.1 %"),
        (figures.share(99_999, 100_000), "99.9 %"),
        (figures.share(0, 0), "n/a"),
        (figures.duration(59.6), "1 min 00 s"),
        (figures.duration(-1), "0 s"),
        (figures.duration(math.inf), "n/a"),
        (figures.money(12_345.678, "EUR"), "12,345.68 EUR"),
        (figures.clock(NOW), "2026-11-30 00:53:20 UTC"),
    ],
)
def test_figures(made, wanted):
    assert made == wanted


def test_every_status_has_a_colour_in_the_style():
    page = whole_page(made_up())
    assert all(f".s-{status} " in page for status in Status)


def test_a_script_that_could_end_its_element_is_refused(monkeypatch):
    from regen.observe.page import assets

    monkeypatch.setattr("importlib.resources.files", lambda package: FakeFolder())
    with pytest.raises(ValueError, match="must not hold"):
        assets.packaged("page.js")


class FakeFolder:
    def joinpath(self, name):
        return self

    def read_text(self, encoding):
        return "x = '</script>'"


def test_verbatim_is_for_the_pages_own_style_and_script():
    assert render(e("style", Verbatim("a > b {}"))) == "<style>a > b {}</style>"
