"""Why a row is refused while it is normalised, and what is changed in rows that are accepted. Pure.

Both lists are closed: they are counted per source, and docs/data.md explains each.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from regen.errors import RowRefused
from regen.records import Stage


class Reason(StrEnum):
    """Why a row is no conversation."""

    UNKNOWN_SHAPE = "unknown_shape"
    MISSING_KEY = "missing_key"
    WRONG_TYPE = "wrong_type"
    EMPTY_CONVERSATION = "empty_conversation"
    NO_USER_TURN = "no_user_turn"
    EMPTY_USER_TURN = "empty_user_turn"
    NO_CONTENT = "no_content"
    NON_TEXT_PART = "non_text_part"
    UNKNOWN_ROLE = "unknown_role"
    BAD_TOOLS = "bad_tools"
    BAD_TOOL_CALLS = "bad_tool_calls"
    UNPARSABLE_ARGUMENTS = "unparsable_arguments"
    ORPHAN_TOOL_RESULT = "orphan_tool_result"
    HISTORY = "history_not_supported"
    NOT_A_CHAT_REQUEST = "not_a_chat_request"
    UNPAIRED_SURROGATE = "unpaired_surrogate"
    HUGE_INTEGER = "huge_integer"
    ASSISTANT_FIRST = "assistant_first"
    CONSECUTIVE_USERS = "consecutive_users"
    CONSECUTIVE_ASSISTANTS = "consecutive_assistants"
    SEVERAL_SYSTEMS = "several_systems"
    NEEDS_NATIVE = "needs_mode_native"
    NO_ANSWER = "no_answer"
    EMPTY_ANSWER = "empty_answer"
    BAD_TOKENS = "bad_tokens"
    NO_LOSS_TOKENS = "no_loss_tokens"
    BAD_SAMPLING = "bad_sampling"


class Note(StrEnum):
    """What was changed in an accepted row, or kept although it is odd."""

    LEADING_ASSISTANT_DROPPED = "leading_assistant_dropped"
    ASSISTANT_TURNS_MERGED = "assistant_turns_merged"
    TRAILING_SYSTEM_DROPPED = "trailing_system_dropped"
    TRAILING_TURNS_DROPPED = "trailing_turns_dropped"
    ROW_SYSTEM_PROMPT_USED = "row_system_prompt_used"
    SPEC_SYSTEM_PROMPT_USED = "spec_system_prompt_used"
    USER_TURNS_KEPT = "consecutive_users_kept"
    USER_TURNS_MERGED = "consecutive_users_merged"
    SYSTEMS_KEPT = "several_systems_kept"
    SYSTEMS_MERGED = "several_systems_merged"
    EMPTY_TURN_DROPPED = "empty_turn_dropped"
    ORPHAN_RESULT_DROPPED = "orphan_tool_result_dropped"
    ARGUMENTS_KEPT = "unparsable_arguments_kept"
    PART_DROPPED = "non_text_part_dropped"
    SURROGATE_REPLACED = "unpaired_surrogate_replaced"
    HUGE_INTEGER_KEPT = "huge_integer_kept"
    TOOLS_WRAPPED = "tools_wrapped"
    TOOL_TYPES_RENAMED = "tool_types_renamed"
    TOOL_IDS_ASSIGNED = "tool_ids_assigned"
    TOOL_IDS_RENEWED = "tool_ids_renewed"
    TOOL_CALLS_FROM_TEXT = "tool_calls_from_text"
    TOOL_RESULT_UNWRAPPED = "tool_result_unwrapped"
    TOOL_RESULT_AS_JSON = "tool_result_as_json"
    REASONING_FROM_TEXT = "reasoning_from_text"
    REQUEST_SAMPLING_IGNORED = "request_sampling_ignored"
    REQUEST_SAMPLING_USED = "request_sampling_used"
    REQUEST_FIELDS_IGNORED = "request_fields_ignored"
    CONTROL_TOKENS_AS_TEXT = "control_tokens_as_text"
    CONTROL_TOKENS_ALLOWED = "control_tokens_allowed"
    TOOLS_UNSEEN = "tools_unseen_by_template"


def refuse(reason: Reason, detail: str) -> NoReturn:
    """Raises RowRefused."""
    raise RowRefused(Stage.NORMALIZE, reason, detail)
