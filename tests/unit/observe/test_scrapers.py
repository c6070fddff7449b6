"""Who is waited for at the end, on times that are handed in."""

from __future__ import annotations

from regen.observe.scrapers import INTERVALS, LONGEST_SECONDS, Awaited, Scrapers


def scrape(scrapers: Scrapers, name: str, at: float) -> None:
    scrapers.came(name, at)
    scrapers.answered(name, at)


def every(interval: float, scrapes: int, name: str = "prometheus") -> Scrapers:
    scrapers = Scrapers()
    for number in range(scrapes):
        scrape(scrapers, name, number * interval)
    return scrapers


def test_before_the_end_nobody_is_waited_for() -> None:
    assert every(15, 3).awaited(40, 100) is None


def test_nobody_who_scraped_means_no_wait() -> None:
    scrapers = Scrapers()
    scrapers.end(10)
    assert scrapers.awaited(10, None) is None


def test_who_scraped_is_waited_for_two_intervals_and_a_half() -> None:
    scrapers = every(10, 3)
    scrapers.end(25)
    assert scrapers.awaited(25, None) == Awaited(INTERVALS * 10, ("prometheus",))
    assert scrapers.awaited(49.9, None) is not None
    assert scrapers.awaited(50, None) is None


def test_and_no_longer_than_it_needs() -> None:
    scrapers = every(10, 3)
    scrapers.end(25)
    scrape(scrapers, "prometheus", 30)
    assert scrapers.awaited(30.2, None) is None


def test_never_longer_than_a_minute() -> None:
    scrapers = every(120, 3)
    scrapers.end(250)
    assert scrapers.awaited(250, None) == Awaited(LONGEST_SECONDS, ("prometheus",))
    assert scrapers.awaited(250 + LONGEST_SECONDS, None) is None


def test_who_has_gone_is_not_waited_for() -> None:
    scrapers = every(10, 3)
    scrapers.end(20 + INTERVALS * 10 + 0.1)
    assert scrapers.awaited(46, None) is None


def test_who_came_once_may_come_again_within_a_minute() -> None:
    scrapers = every(10, 1)
    scrapers.end(59)
    assert scrapers.awaited(59, None) == Awaited(60, ("prometheus",))
    looked_once = every(10, 1)
    looked_once.end(61)
    assert looked_once.awaited(61, None) is None


def test_a_scrape_that_began_before_the_end_has_not_seen_it() -> None:
    scrapers = every(10, 3)
    scrapers.came("prometheus", 24.9)
    scrapers.end(25)
    scrapers.answered("prometheus", 24.9)
    assert scrapers.awaited(25.2, None) is not None


def test_a_scrape_without_its_answer_has_not_seen_it_either() -> None:
    scrapers = every(10, 3)
    scrapers.end(25)
    scrapers.came("prometheus", 30)
    assert scrapers.awaited(31, None) is not None
    scrapers.answered("prometheus", 30)
    assert scrapers.awaited(31, None) is None
    scrapers.came("prometheus", 40)
    assert scrapers.awaited(41, None) is None, "it has seen it before"


def test_each_of_two_scrapers_gets_the_end() -> None:
    scrapers = every(10, 3, "one")
    for at in (0, 20):
        scrape(scrapers, "other", at)
    scrapers.end(25)
    scrape(scrapers, "one", 30)
    assert scrapers.awaited(31, None) == Awaited(25 + 50 - 31, ("other",))
    scrape(scrapers, "other", 40)
    assert scrapers.awaited(41, None) is None


def test_a_number_of_seconds_is_waited_for_anybody() -> None:
    scrapers = Scrapers()
    scrapers.end(10)
    assert scrapers.awaited(10, 100) == Awaited(100, ())
    assert scrapers.awaited(109, 100) is not None
    assert scrapers.awaited(110, 100) is None
    scrape(scrapers, "prometheus", 20)
    assert scrapers.awaited(21, 100) is None


def test_a_number_of_seconds_is_a_bound_and_no_longer() -> None:
    scrapers = every(10, 3)
    scrapers.end(25)
    assert scrapers.awaited(25, 5) == Awaited(5, ("prometheus",))
    assert scrapers.awaited(30, 5) is None
    assert scrapers.awaited(25, 0) is None


def test_many_scrapers_take_no_more_room() -> None:
    scrapers = Scrapers()
    for number in range(1000):
        scrape(scrapers, f"client {number}", 1)
    scrapers.end(2)
    awaited = scrapers.awaited(2, None)
    assert awaited is not None
    assert len(awaited.names) <= 16
