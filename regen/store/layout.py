"""The names of the run folder, each way. Pure; no other file spells them out."""

from __future__ import annotations

import re

RUN = "run.json"
PLAN = "plan.json"
HOLDER = "holder.json"
REPORT = "report.json"
REPORT_PAGE = "report.html"
CARD = "README.md"
PILOT_PAGE = "pilot.html"
PILOT = "pilot/"
PLAN_PARTS = "plan/"
JOURNAL = "journal/"
SHARDS = "shards/"

_JOURNAL_KEY = re.compile(r"^journal/(\d{8})\.parquet$", re.ASCII)
_SHARD_KEY = re.compile(r"^shards/shard-(\d{8,})-(\d{8,})\.parquet$", re.ASCII)


LAST_NUMBER = 10**8 - 1


def journal_key(number: int) -> str:
    """The name of a journal file; numbers count from 0."""
    if not 0 <= number <= LAST_NUMBER:
        raise ValueError(f"a journal has the numbers 0 to 99999999, not {number}")
    return f"{JOURNAL}{number:08d}.parquet"


def journal_number(key: str) -> int | None:
    """The inverse of `journal_key`; None for any other name."""
    found = _JOURNAL_KEY.match(key)
    return int(found[1]) if found else None


def shard_key(first: int, last: int) -> str:
    """The name of the shard that holds the ordinals `first` to `last`, both included."""
    if not 0 <= first <= last:
        raise ValueError(f"not a range of ordinals: {first} to {last}")
    return f"{SHARDS}shard-{first:08d}-{last:08d}.parquet"


def shard_range(key: str) -> tuple[int, int] | None:
    """The inverse of `shard_key`: (first, last); None for any other name."""
    found = _SHARD_KEY.match(key)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    return (first, last) if first <= last and shard_key(first, last) == key else None
