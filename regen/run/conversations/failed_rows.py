"""What is written down for a row that has no answer: its attempts are used up, or no file takes what was made.

An engine's error may quote a secret of its process, and what is written down is read by others: values of variables
that are named like secrets are taken out here, in the worker's process, before anything leaves it.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa

from regen.data.text import DETAIL_CHARS, printable
from regen.observe.log import without_secrets
from regen.records import FailedAttempt, Observed, OutputRow, PlannedRow, Role, Stage, Status, WorkerId
from regen.rows import to_table
from regen.run.conversations.reading import effective_template_kwargs
from regen.run.schedule import Exhausted
from regen.run.setup import RunSetup

UNSTORABLE = "unstorable"


def storable_table(row: OutputRow) -> pa.Table:
    """A finished row as a table in `rows.SCHEMA`: without its answers, and rejected, if it cannot be one with them."""
    try:
        return to_table([row])
    except Exception as error:
        return to_table([_unstorable(row, error)])


def failed_attempt(ordinal: int, reason: str, detail: str) -> FailedAttempt:
    """What a worker says of an attempt that failed."""
    return FailedAttempt(ordinal, reason, without_secrets(detail, os.environ))


def refusal_detail(text: str) -> str:
    """For a row that can never be sent. Cut last: half a secret would not be found."""
    return printable(without_secrets(text, os.environ), DETAIL_CHARS)


def failed_row(planned: PlannedRow, exhausted: Exhausted, worker: WorkerId, setup: RunSetup, round_: int) -> OutputRow:
    """The conversation up to where the target was to speak, no generation, and the reason of the last attempt.

    `round_` above 0: re-opened once, and its older result was lost with its file.
    """
    conversation = planned.conversation
    assert conversation is not None, "refused rows are never leased"
    first_slot = next(i for i, message in enumerate(conversation.messages) if message.role is Role.ASSISTANT)
    return OutputRow(
        ordinal=planned.ordinal,
        row_id=planned.row_id,
        source=planned.source,
        location=planned.location,
        source_id=planned.source_id,
        status=Status.FAILED,
        round=round_,
        messages=conversation.messages[:first_slot],
        generations=(),
        observed=Observed(worker.slot, setup.session, exhausted.attempts, "", None, setup.fingerprint),
        tools_json=conversation.tools_json,
        template_kwargs_json=effective_template_kwargs(setup, conversation),
        stage=Stage.GENERATE,
        reason=exhausted.reason,
        detail=printable(exhausted.detail, DETAIL_CHARS),
        split=planned.split,
    )


def _unstorable(row: OutputRow, error: Exception) -> OutputRow:
    """Only what was given is left of it."""
    roles = [message.role for message in row.messages]
    given = roles.index(Role.ASSISTANT) if Role.ASSISTANT in roles else len(roles)
    return replace(
        row,
        status=Status.REJECTED,
        stage=Stage.WRITE,
        reason=UNSTORABLE,
        detail=printable(f"{type(error).__name__}: {error}", DETAIL_CHARS),
        messages=row.messages[:given],
        generations=(),
        observed=replace(row.observed, generations=()),
    )
