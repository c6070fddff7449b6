"""report.html and README.md of a run folder, made from what the store has: in the middle of a run, and after it.

Both are derived and replaceable. A README.md that regen has not written, or that somebody made his own, stays.
Costs what `page_facts.from_store` costs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from regen.errors import RegenError, StoreRefused, UserError
from regen.observe.page.page import whole_page
from regen.protocols import Storage
from regen.run.page.facts import StoredRun, from_store
from regen.run.patience import patiently
from regen.store import layout
from regen.store.run_card import RunCardFacts, is_ours, run_card

Say = Callable[[str], None]


def write_pages(storage: Storage, say: Say, with_samples: bool = True) -> None:
    """Both, into the run folder. Raises SpecError if there is no run, JournalDamaged, StoreError."""
    run = from_store(storage, with_samples)
    page = whole_page(run.page(datetime.now(UTC)))
    try:
        storage.replace(layout.REPORT_PAGE, page.encode())
    except StoreRefused as error:
        raise StoreRefused(
            f"{error}. Of a folder that is only to be read: regen report {storage.url} --html FILE"
        ) from error
    say(f"report: {storage.url}/{layout.REPORT_PAGE}")
    if _is_kept(storage):
        say(f"{storage.url}/{layout.CARD} is not regen's own any more, and stays as it is")
    else:
        storage.replace(layout.CARD, run_card(_card_facts(storage, run)).encode())


def leave_pages(storage: Storage, say: Say) -> None:
    """Both, at a session's end: that they cannot be written takes nothing from what is done."""
    try:
        patiently(lambda: write_pages(storage, say), say)
    except RegenError as error:
        say(f"the report is not written ({error}); `regen report {storage.url}` writes it")
    except Exception as error:  # a defect: the rows are there, and how the command ends says so
        traceback.print_exc()
        say(f"the report is not written ({type(error).__name__}: {error})")


def write_page_to(storage: Storage, path: Path, with_samples: bool = True) -> None:
    """The page alone, into a local file; nothing is written into the run folder. Raises UserError, and as above."""
    page = whole_page(from_store(storage, with_samples).page(datetime.now(UTC)))
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--html {path}: cannot be written: {error.strerror or error}") from error


def _is_kept(storage: Storage) -> bool:
    try:
        return not is_ours(storage.read(layout.CARD).decode("utf-8", errors="replace"))
    except KeyError:
        return False


def _card_facts(storage: Storage, run: StoredRun) -> RunCardFacts:
    about, known = run.about, run.known
    return RunCardFacts(
        name=about.spec.name,
        target=about.spec.target.model,
        planned=about.planned,
        totals=known.totals,
        made_with=tuple((fact.name, fact.value) for fact in about.provenance),
        shards=sum(1 for stored in storage.list(layout.SHARDS) if layout.shard_range(stored.key)),
        has_eval_rows=about.eval_rows > 0,
        reopened=known.reopened,
    )
