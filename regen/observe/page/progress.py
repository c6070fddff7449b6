"""The first screen: is it alive, how far is it, when is it done, is it fast, does speculation pay, its cost."""

from __future__ import annotations

from collections.abc import Iterator

from regen.observe.page import figures
from regen.observe.page.charts import bar
from regen.observe.page.facts import PageFacts, ProgressFacts
from regen.observe.page.history import mean_rate
from regen.observe.page.html import Child, Element, e
from regen.observe.page.parts import remark, section
from regen.records import EtaState, Phase, Status

_LOST = (Status.REJECTED, Status.FAILED, Status.DEGENERATE, Status.TRUNCATED, Status.PARTIAL)


def progress_section(facts: PageFacts) -> Element:
    return section(
        "progress",
        "Progress",
        _whole_bar(facts.progress),
        e("div", _tiles(facts), class_="tiles"),
        [remark(note, is_bad=True) for note in facts.faults.notes],
        _deadline(facts.progress),
    )


def _whole_bar(progress: ProgressFacts) -> Element:
    said = f"{figures.count(progress.done)} of {figures.count(progress.planned)} rows have an outcome"
    done = max(0, progress.done - progress.reopened) / progress.planned if progress.planned else 0.0
    return e("div", bar((("line", done),), said), class_="whole")


def _tiles(facts: PageFacts) -> Iterator[Element]:
    progress = facts.progress
    yield _tile("Rows", _share_done(progress), _rows_said(progress))
    yield _tile("Time to go", *_eta(facts))
    yield _speed(facts)
    yield _tile("Accept length", figures.ratio(facts.acceptance.accept_length), _accept_said(facts))
    yield _tile("Rows without a good answer", *_lost(facts))
    yield _cost(progress)


def _cost(progress: ProgressFacts) -> Element:
    """Money where the spec has a price, and time held in any case."""
    if (money := progress.money) is None:
        unit, seconds = ("GPU", progress.gpu_seconds) if progress.gpu_seconds else ("Engine", progress.engine_seconds)
        return _tile(f"{unit} time so far", figures.duration(seconds), "no price in the spec")
    low, mid, high = money.to_go
    to_go = f"{figures.money(mid, money.currency)} to go ({figures.ratio(low)} to {figures.ratio(high)})"
    held = f"{figures.duration(progress.gpu_seconds)} of GPU time held; " if progress.gpu_seconds else ""
    return _tile("Cost so far", figures.money(money.so_far, money.currency), f"{held}{to_go}")


def _tile(name: str, value: str, said: Child) -> Element:
    return e("div", e("h3", name), e("p", value, class_="value"), e("p", said, class_="soft"), class_="tile")


def _share_done(progress: ProgressFacts) -> str:
    return figures.share(max(0, progress.done - progress.reopened), progress.planned)


def _rows_said(progress: ProgressFacts) -> str:
    if progress.planned is None:
        return "not planned yet"
    parts = [f"{progress.done:,} of {progress.planned:,} committed"]
    named = (
        (progress.reopened, "to be made again"),
        (progress.in_flight, "in flight"),
        (progress.uncommitted, "finished, not committed yet"),
        (progress.queued, "queued"),
    )
    return ", ".join(parts + [f"{count:,} {name}" for count, name in named if count])


def _eta(facts: PageFacts) -> tuple[str, Child]:
    """The middle, then the range and the time of day. What is not known is said in words."""
    progress, eta = facts.progress, facts.progress.eta
    is_finished = progress.planned is not None and progress.done >= progress.planned and not progress.reopened
    if is_finished:
        return "done", "every row has an outcome"
    if eta.state is EtaState.FINISHED and not facts.has_ended:  # a pilot's are a few, and the store may be away
        return "all made", "what this session is to make is made; the last of it is yet to be committed"
    if facts.has_ended or not figures.is_known(eta.mid_seconds):
        return _unknown(facts)
    words = f"{figures.duration(eta.low_seconds)} to {figures.duration(eta.high_seconds)} (10th to 90th percentile)"
    if eta.state is EtaState.STALLED:
        return "stalled", f"no token comes; {words} from when they come again"
    early = "; few rows are seen yet" if eta.state is EtaState.WARMING else ""
    return figures.duration(eta.mid_seconds), (words, early, "; done about ", _end(facts))


def _unknown(facts: PageFacts) -> tuple[str, str]:
    if facts.has_ended:
        return figures.UNKNOWN, "nobody runs it"
    if facts.phase == Phase.DRAINING:
        return figures.UNKNOWN, "it drains: whoever resumes the run makes what is left then"
    if facts.progress.eta.state is EtaState.STALLED:
        return "stalled", "no token comes"
    return "warming up", "too little is seen yet"


def _end(facts: PageFacts) -> Element | str:
    return figures.moment(facts.at + (facts.progress.eta.mid_seconds or 0.0))


def _speed(facts: PageFacts) -> Element:
    """Now, or over all the time that it ran."""
    committed = f"{figures.short(facts.progress.output_tokens)} tokens committed since the run began"
    if figures.is_known(facts.progress.tokens_per_second):
        return _tile("Useful tokens a second", figures.count(facts.progress.tokens_per_second), committed)
    mean = mean_rate(facts.history)
    return _tile("Useful tokens a second", figures.count(mean), f"on average while it ran; {committed}")


def _accept_said(facts: PageFacts) -> str:
    if not facts.acceptance.drafts:
        return "no speculation, or no step of it is committed yet"
    return f"tokens per verification step; {figures.short(facts.acceptance.drafts)} steps; 1.00 does nothing"


def _lost(facts: PageFacts) -> tuple[str, str]:
    counts = dict.fromkeys(_LOST, 0)
    for source in facts.sources:
        for status in _LOST:
            counts[status] += source.outcomes.get(status, 0)
    told = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)
    return figures.share(sum(counts.values()), facts.progress.done), told or "none so far"


def _deadline(progress: ProgressFacts) -> Element | None:
    """`limits.hours` drains the session; whether the rows are done by then."""
    if progress.deadline_seconds is None or not figures.is_known(progress.deadline_seconds):
        return None
    until = f"limits.hours ends this session in {figures.duration(progress.deadline_seconds)}"
    high, mid = progress.eta.high_seconds, progress.eta.mid_seconds
    if mid is None or high is None:
        return remark(until)
    if mid > progress.deadline_seconds:
        return remark(until, ", before the rows are likely to be done; `regen resume` goes on then", is_bad=True)
    if high > progress.deadline_seconds:
        return remark(until, ", which may be before all rows are done")
    return remark(until, "; the rows are likely to be done before")
