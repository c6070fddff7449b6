"""What is written down for a row whose attempts are used up."""

from __future__ import annotations

from regen.records import Observed, OutputRow, PlannedRow, Role, Stage, Status, WorkerId
from regen.run.reading import effective_template_kwargs
from regen.run.schedule import Exhausted
from regen.run.setup import RunSetup


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
        detail=exhausted.detail,
        split=planned.split,
    )
