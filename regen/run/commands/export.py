"""`regen export`: a run folder -> files for one trainer.

Reads the store alone, and the target's tokenizer where the format holds text. Writes nothing into the run folder. A run
that is not finished is refused unless asked for (`partial`): what is done first is no fair sample, short answers come
early, and files do not show what they lack.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from regen import __version__
from regen.data.plan import open_plan, read_summary
from regen.data.retokenise import text_mismatch
from regen.data.target import Target, identity, resolve_target
from regen.data.template import TokenizerTemplate, load_template
from regen.data.turn_markers import TurnMarkers, turn_markers
from regen.errors import ExportRefused, FingerprintDrift, SpecError, UserError
from regen.protocols import Plan, Storage
from regen.records import SampledTurn, Status
from regen.run.record import RunRecord, require_record
from regen.store.export.card import NOT_FOUND, CardFacts, Markers, card, manifest
from regen.store.export.conversation import Fields
from regen.store.export.export import write_records
from regen.store.export.files import ExportFolder, WrittenFile
from regen.store.export.format import Format
from regen.store.export.formats import FORMATS
from regen.store.export.reading import fields_of, finished_rows
from regen.store.export.selection import DEFAULT_STATUSES, EVERY_SPLIT, TRAIN, WITHOUT_ANSWERS, Selection
from regen.store.export.tally import Tally
from regen.store.replay import replay
from regen.store.storage import open_storage

RECORDS_PER_FILE = 10_000
TURN_MARKER_IN_TEXT = "turn_marker_in_text"
SPLITS = (TRAIN, "eval", EVERY_SPLIT)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the command line says. `statuses` are taken besides `ok` and `native`.

    `allow_extra_loss`: go on where the trainer would also train on tokens that the template writes behind answers.
    """

    format: str
    out: str
    statuses: frozenset[Status] = frozenset()
    split: str = TRAIN
    records_per_file: int = RECORDS_PER_FILE
    overwrite: bool = False
    partial: bool = False
    allow_extra_loss: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """What came of it."""

    out: Path
    files: tuple[WrittenFile, ...]
    tally: Tally

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"out": str(self.out), "files": [asdict(file) for file in self.files], **self.tally.to_json()}

    def summary(self) -> str:
        """For a person: what is there, and what was left out by reason."""
        tally = self.tally
        lines = [
            f"{self.out}: {tally.records.total():,} records with {tally.generations:,} generations of"
            f" {tally.rows_kept:,} rows, in {len(self.files):,} files; {tally.rows_seen - tally.rows_kept:,} of"
            f" {tally.rows_seen:,} rows left out"
        ]
        lines += [f"  left out {count:,}: {reason}" for reason, count in tally.reasons().most_common()]
        lines += [f"  turns left out {count:,}: {reason}" for reason, count in tally.turns_left_out.most_common()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Source:
    """The run that is exported."""

    storage: Storage
    record: RunRecord
    plan: Plan
    done: int
    reopened: int

    @property
    def rows_per_shard(self) -> int:
        return self.record.spec.checkpoint.rows_per_shard


def statuses_named(text: str) -> frozenset[Status]:
    """`truncated,partial` -> statuses. Raises SpecError for a word that is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in set(Status):
            raise SpecError(f"--include {name}: is no status; there are {', '.join(Status)}")
    return frozenset(Status(name) for name in names)


def export(run_url: str, options: ExportOptions, say: Say) -> Exported:
    """Write the export. `say` gets warnings for a person.

    Raises SpecError for options, UserError where the run is not finished or something stands in the way, ExportRefused
    where nothing can be exported truthfully, FingerprintDrift where the target's tokenizer or template is another now,
    JournalDamaged, StoreError.
    """
    format_, selection = _asked_for(options)
    source = _opened(run_url, options.partial)
    if source.reopened:
        say(
            f"{source.reopened:,} rows were opened again and are not made again yet: of them the older results are"
            f" exported; `regen resume {run_url}` makes them"
        )
    text = _Text.loaded(source.record) if format_.reads_text else None
    if text is not None and not options.allow_extra_loss:
        _refuse_extra_loss(format_, text.markers)
    fields = fields_of(source.storage, source.plan, source.rows_per_shard) if format_.reads_text else Fields()
    out = Path(options.out).expanduser()
    with ExportFolder(out, format_.suffix, fields, options.records_per_file, options.overwrite) as folder:
        rows = finished_rows(source.storage, source.plan, source.rows_per_shard)
        tally = write_records(rows, selection, format_, fields, text.mismatch if text else None, folder)
        _refuse_nothing(format_, tally)
        facts = _facts(source)
        written = card(facts, format_, selection, tally, folder.files, fields, _markers(text))
        folder.publish(written, manifest(facts, format_, selection, tally, folder.files))
    _warn(format_, tally, say)
    return Exported(out, tuple(folder.files), tally)


class _Text:
    """The target's template as a trainer has it: kwargs and calls come to it as the format passes them."""

    def __init__(self, template: TokenizerTemplate, stop_token_ids: tuple[int, ...]) -> None:
        self._template = template
        self._stop_token_ids = stop_token_ids
        self.markers = turn_markers(template, stop_token_ids)

    @classmethod
    def loaded(cls, record: RunRecord) -> _Text:
        spec = record.spec.target
        target = resolve_target(spec)
        _refuse_other_text(target, record)
        template = load_template(target.folder, spec.trust_remote_code, {}, calls_as_given=True)
        return cls(template, target.eos_token_ids)

    def mismatch(
        self,
        messages: Sequence[Mapping[str, object]],
        turns: Sequence[SampledTurn],
        tools_json: str | None,
        kwargs_json: str | None,
    ) -> str | None:
        """See `store.export.format.TextCheck`. Text with a turn's beginning in it fools readers that look for that."""
        marker = self.markers.before.strip() if self.markers else ""
        if len(marker) > 1 and any(marker in str(message["content"]) for message in messages):
            return TURN_MARKER_IN_TEXT
        ended = [replace(turn, stop_token_ids=(*turn.stop_token_ids, *self._stop_token_ids)) for turn in turns]
        found = text_mismatch(self._template, messages, ended, tools_json, kwargs_json)
        return None if found is None else found.value


def _asked_for(options: ExportOptions) -> tuple[Format, Selection]:
    format_ = FORMATS.get(options.format)
    if format_ is None:
        raise SpecError(f"--to {options.format}: no such format; there are {', '.join(sorted(FORMATS))}")
    if options.split not in SPLITS:
        raise SpecError(f"--split {options.split}: is none of {', '.join(SPLITS)}")
    if options.records_per_file < 1:
        raise SpecError(f"--rows-per-file {options.records_per_file}: must be at least 1")
    if "://" in options.out:
        raise SpecError(f"--out {options.out}: only a local folder, in this version")
    if without := sorted(options.statuses & WITHOUT_ANSWERS):
        raise SpecError(f"--include {without[0]}: such rows have no answer to export")
    return format_, Selection(DEFAULT_STATUSES | options.statuses, options.split)


def _opened(run_url: str, partial: bool) -> _Source:
    storage = open_storage(run_url)
    record = require_record(storage)
    if read_summary(storage) is None:
        raise UserError(f"{storage.url}: is not planned yet, so there is nothing to export")
    plan = open_plan(storage)
    standing = replay(storage, plan.count, plan.settled())
    done = standing.totals.done
    if done < plan.count and not partial:
        raise UserError(
            f"{storage.url}: {done:,} of {plan.count:,} rows are done. Short answers come early, so this is no fair"
            f" part of the whole: finish it with `regen resume {run_url}`, or export what there is with --partial"
        )
    return _Source(storage, record, plan, done, len(standing.reopened.pending))


def _refuse_other_text(target: Target, record: RunRecord) -> None:
    """Ids were made with one tokenizer and template; text must be checked with the same."""
    for name, now in identity(target).items():
        if name != "target.commit" and record.shaping.get(name) != now:
            raise FingerprintDrift(
                f"{name} of {target.model} is {now}, and {record.shaping.get(name)} made this run: text cannot be"
                " checked against its ids. Put the files back, or export a format of ids (speculators, specforge-ids)"
            )


def _refuse_extra_loss(format_: Format, markers: TurnMarkers | None) -> None:
    if not format_.trains_behind_answers or (markers is not None and markers.marks_answers):
        return
    if markers is not None and not markers.behind_tokens:
        return
    what = f"{markers.behind!r}, which the template writes behind" if markers else "whatever the template writes behind"
    raise ExportRefused(
        f"--to {format_.name}: the trainer finds answers by rendering, and would also train on {what} each answer and"
        " the target never sampled. With --allow-extra-loss it is exported so, and the card says it;"
        " formats of ids (speculators, specforge-ids) train on exactly what was sampled"
    )


def _refuse_nothing(format_: Format, tally: Tally) -> None:
    if not tally.rows_kept:
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in tally.reasons().most_common(5))
        raise ExportRefused(
            f"--to {format_.name}: none of {tally.rows_seen:,} rows can be exported: {reasons or 'there are none'}."
            " Nothing was written"
        )


def _facts(source: _Source) -> CardFacts:
    record = source.record
    spec, shaping = record.spec, record.shaping
    return CardFacts(
        name=spec.name,
        fingerprint=record.fingerprint,
        target=spec.target.model,
        target_commit=str(shaping["target.commit"]),
        engine=str(shaping["engine.version"]),
        draft=spec.speculation.draft_name if spec.speculation else None,
        sampling={name: _sampling_text(field) for name, field in record.sampling.items()},
        template_kwargs=spec.target.template_kwargs,
        planned=source.plan.count,
        done=source.done,
        reopened=source.reopened,
        regen_version=__version__,
    )


def _sampling_text(field: Mapping[str, Any]) -> str:
    return f"{json.dumps(field['value'])} ({field['from']})"


def _markers(text: _Text | None) -> Markers:
    found = text.markers if text else None
    return NOT_FOUND if found is None else Markers(found.before, found.closing, found.behind)


def _warn(format_: Format, tally: Tally, say: Say) -> None:
    over, limit = tally.cut_records + tally.lost_records, format_.limit
    if over and limit is not None:
        say(
            f"warning: {over:,} records are longer than {limit.setting} is by default ({limit.default_tokens:,});"
            f" the longest has {tally.longest_tokens:,} tokens. Set it, or they are cut"
        )
