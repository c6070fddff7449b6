"""One source's raw rows -> drafts of planned rows: filtered, normalised, identified, with their split and their mix.

Guarantees: every row that is taken becomes a draft, or as many as its source's weight says, accepted or refused with
stage and reason; what a row holds raises nothing. Rows that are not taken are counted, by why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from regen.data.dry_render import UNEXPECTED, RenderJob
from regen.data.equal_rows import EqualRows
from regen.data.identity import content_digest, numbered, question_digest, row_key, tokens_digest, unreadable_row_key
from regen.data.normalize import Normalized, normalize, rules_of
from regen.data.raw import RawRow
from regen.data.reasons import Note
from regen.data.selection import LeftOut, copies, drawn, left_out, share_of
from regen.data.sources import read_source
from regen.data.text import DETAIL_CHARS, printable
from regen.errors import RowRefused
from regen.records import Conversation, PlannedRow, Refusal, Split, Stage
from regen.spec import RunSpec, SourceSpec


@dataclass(frozen=True, slots=True)
class Draft:
    """A row on its way. `content` is the conversation's digest, empty where there is none.

    `job` is what is to be rendered; None where the row is refused, or left out, already. `is_copy`: taken once more,
    for its weight.
    """

    row: PlannedRow
    content: bytes = b""
    notes: tuple[Note, ...] = ()
    job: RenderJob | None = None
    is_copy: bool = False
    left_out: LeftOut | None = None


class Drafting:
    """Iterate for the drafts, in the source's order. After `is_full` is set no further row is normalised."""

    def __init__(self, spec: RunSpec, source: SourceSpec, counted: Counter[str]) -> None:
        self.is_full = False
        self._spec = spec
        self._source = source
        self._rules = rules_of(source, spec.policies)
        self._left_out = counted
        self._equal = EqualRows()

    def leave_out(self, why: LeftOut) -> None:
        self._left_out[why.value] += 1

    def __iter__(self) -> Iterator[Draft]:
        for raw in read_source(self._source, self._takes):
            if self.is_full:
                self.leave_out(LeftOut.TOKEN_QUOTA)
            else:
                yield from self._drafts(raw)

    def _takes(self, raw: RawRow) -> bool:
        """Whether the filter takes the row; one that cannot be read is taken, and rejected by name."""
        why = left_out(raw.value, self._source.filter) if raw.value is not None and self._source.filter else None
        if why is not None:
            self.leave_out(why)
        return why is None

    def _drafts(self, raw: RawRow) -> Iterator[Draft]:
        if raw.value is None:
            reason, detail = raw.error or (UNEXPECTED, "")
            yield self._refused(raw, Refusal(Stage.LOAD, reason, detail))
            return
        try:
            normalized = normalize(raw.value, self._rules)
            content = _content(normalized)
            key = row_key(self._source.name, normalized.typed_id, content)
        except RowRefused as error:
            yield self._refused(raw, Refusal(Stage.NORMALIZE, error.reason, error.detail))
        except Exception as error:
            yield self._refused(raw, Refusal(Stage.NORMALIZE, UNEXPECTED, type(error).__name__))
        else:
            yield from self._copies(raw, normalized, content, key)

    def _copies(self, raw: RawRow, normalized: Normalized, content: bytes, key: bytes) -> Iterator[Draft]:
        n = self._equal.count(key)
        wanted = 1 if self._source.weight == 1 else copies(key, n, self._source.weight)
        if not wanted:
            draft = self._draft(raw, normalized, content, numbered(key, n), 0)
            yield replace(draft, job=None, left_out=LeftOut.WEIGHT)
        for number in range(wanted):
            yield self._draft(raw, normalized, content, numbered(key, self._equal.count(key) if number else n), number)

    def _draft(self, raw: RawRow, normalized: Normalized, content: bytes, row_id: str, number: int) -> Draft:
        conversation = self._with_kwargs(normalized, row_id)
        row = PlannedRow(
            ordinal=0,
            row_id=row_id,
            source=self._source.name,
            location=printable(raw.location),
            source_id=normalized.source_id,
            conversation=conversation,
            prompt_tokens=0,
            split=self._split(_question(normalized, content)),
        )
        is_inline = Note.REASONING_FROM_TEXT in normalized.notes
        job = RenderJob(conversation, self._rules.is_native, is_inline, normalized.tokens)
        return Draft(row, content, normalized.notes, job, is_copy=number > 0)

    def _with_kwargs(self, normalized: Normalized, row_id: str) -> Conversation:
        """The row's part of the mix of template kwargs. The row id comes before, so a mix changes no id.

        A native row is not made by a worker, which would add the run's own kwargs to what is recorded.
        """
        conversation, target = normalized.conversation, self._spec.target
        if normalized.tokens is not None:
            return conversation
        kwargs = dict(target.template_kwargs) if self._rules.is_native else {}
        if mix := target.template_kwargs_mix:
            point = share_of(b"template_kwargs", bytes.fromhex(row_id))
            kwargs |= mix[drawn([part.share for part in mix], point)].value
        return (
            replace(conversation, template_kwargs_json=json.dumps(kwargs, sort_keys=True)) if kwargs else conversation
        )

    def _split(self, question: bytes) -> Split:
        """Equal conversations are on one side, wherever they come from and however often they are taken."""
        return Split.EVAL if share_of(b"split", question) < self._spec.rows.eval_share else Split.TRAIN

    def _refused(self, raw: RawRow, refusal: Refusal) -> Draft:
        key = unreadable_row_key(self._source.name, raw.identity())
        row = PlannedRow(
            ordinal=0,
            row_id=numbered(key, self._equal.count(key)),
            source=self._source.name,
            location=printable(raw.location),
            source_id=None,
            conversation=None,
            prompt_tokens=0,
            refusal=Refusal(refusal.stage, str(refusal.reason), printable(refusal.detail, DETAIL_CHARS)),
        )
        return Draft(row)


def _content(normalized: Normalized) -> bytes:
    if normalized.tokens is not None:
        return tokens_digest(normalized.tokens.input_ids, normalized.tokens.loss_mask)
    return content_digest(normalized.conversation)


def _question(normalized: Normalized, content: bytes) -> bytes:
    return content if normalized.tokens is not None else question_digest(normalized.conversation)
